"""read(): golden values, gradients, statistics, errors, and the choice of implementation."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reluformer as rf
from reluformer import rules
from reluformer.errors import ArgumentError, UnknownNameError

RULES = rf.rules.names()


def tensor4(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)[None, None]


class TestGoldenValues:
    """Three memories worked out by hand."""

    def test_two_slots_one_fires(self) -> None:
        # scores 2 and -1; sqrt(n/2) = 1
        q, k, v = tensor4([[1.0]]), tensor4([[2.0], [-1.0]]), tensor4([[10.0, 1.0], [20.0, 2.0]])
        # relu_exp: 1.5 above the mean of the row, with a deviation of 1.5
        chance = math.expm1(1.5 - 0.3 * math.sqrt(2 * math.log(2)) * math.sqrt(1.5**2 + 0.01))
        picked = math.expm1(2) / (1e-6 + math.expm1(2) + 1 - math.exp(-1))
        deviation, phi = math.sqrt(1.5**2 + 0.01), NormalDist().cdf
        level = (0.6 * math.sqrt(2 * math.log(2)) - 1) * deviation  # below both of them, so slot 2 is left to the rest
        own = math.expm1(1.5 - level)
        below = math.exp(deviation**2 / 2 - level) * phi(level / deviation - deviation)
        rest = 2 * (below + phi(-level / deviation))
        sharp = math.exp(0.43 * math.log(2) * 3)
        beyond, high, low = (2 - math.sqrt(2 * math.log(2))) ** 2, math.exp(2), math.exp(-1)
        e, hit = math.exp(3), math.expm1(1.5 + 1.55 - math.sqrt(1.5**2 + 0.01) - 0.15 * math.log(2))
        expected = {
            "relu_plain": [20.0, 2.0],
            "relu": [20.0, 2.0],
            "relu_seqlen": [10.0, 1.0],
            "pointwise_seqlen": [10.0, 1.0],
            "relu2": [40 / math.sqrt(3), 4 / math.sqrt(3)],
            "relu_norm": [20 / 3, 2 / 3],
            "tra": [10 * beyond, beyond],
            "polynomial": [(10 * 8 - 20) / math.sqrt(2), (8 - 2) / math.sqrt(2)],
            "softmax1": [(10 * high + 20 * low) / (1 + high + low), (high + 2 * low) / (1 + high + low)],
            "relu_exp": [10 * hit / (0.1 + hit), hit / (0.1 + hit)],
            "relu_chance": [10 * chance / (0.1 + chance), chance / (0.1 + chance)],
            "relu_rest": [(10 * own + 15 * rest) / (own + rest), (own + 1.5 * rest) / (own + rest)],
            "softpick": [10 * picked, picked],
            "scalable_softmax": [(10 * sharp + 20) / (sharp + 1), (sharp + 2) / (sharp + 1)],
            "rela": [20.0, 2.0],
            "sigmoid": [
                10 / (1 + 2 * math.exp(-2)) + 20 / (1 + 2 * math.e),
                1 / (1 + 2 * math.exp(-2)) + 2 / (1 + 2 * math.e),
            ],
            "softmax": [(10 * e + 20) / (e + 1), (e + 2) / (e + 1)],
            "softmax_ln": [(10 * e + 20) / (e + 1), (e + 2) / (e + 1)],
            "sparsemax": [10.0, 1.0],
            "entmax15": [10.0, 1.0],
        }
        assert set(expected) == set(RULES)
        for rule, read in expected.items():
            torch.testing.assert_close(rf.read(q, k, v, rule=rule, scale=1.0), tensor4([read]))

    @pytest.mark.parametrize(
        ("h", "weights"),
        [
            ("relu", (2.0, 0.0)),
            ("relu2", (4.0, 0.0)),
            ("gelu", (2 * NormalDist().cdf(2), -NormalDist().cdf(-1))),
            ("softplus", (math.log1p(math.exp(2)), math.log1p(math.exp(-1)))),
            ("identity", (2.0, -1.0)),
            ("relu6", (2.0, 0.0)),
            ("sigmoid", (1 / (1 + math.exp(-2)), 1 / (1 + math.e))),
        ],
    )
    @pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 1.5])
    def test_the_family_of_vision_transformers(self, h: str, weights: tuple[float, float], alpha: float) -> None:
        # scores 2 and -1, values (10, 1) and (20, 2), n = 2
        q, k, v = tensor4([[1.0]]), tensor4([[2.0], [-1.0]]), tensor4([[10.0, 1.0], [20.0, 2.0]])
        out = rf.read(q, k, v, rule={"name": "pointwise_seqlen", "h": h, "alpha": alpha}, scale=1.0)
        read = (10 * weights[0] + 20 * weights[1]) / 2**alpha
        torch.testing.assert_close(out, tensor4([[read, read / 10]]))

    def test_causal_rows_count_their_own_prefix(self) -> None:
        # all scores 1, values 1, 2, 3, 4: row i reads sum(1..i) / sqrt(i/2)
        ones = tensor4([[1.0]] * 4)
        v = tensor4([[1.0], [2.0], [3.0], [4.0]])
        out = rf.read(ones, ones, v, rule="relu", causal=True, scale=1.0)
        expected = [1 / math.sqrt(0.5), 3 / 1, 6 / math.sqrt(1.5), 10 / math.sqrt(2)]
        torch.testing.assert_close(out.flatten(), torch.tensor(expected, dtype=torch.float64))

    def test_close_scores_share_the_simplex(self) -> None:
        # sparsemax of (0.6, 0.2, -3): tau = -0.1, weights (0.7, 0.3, 0)
        # 1.5-entmax of (1, 1, -3): weights (0.5, 0.5, 0)
        v = tensor4([[1.0], [10.0], [100.0]])
        sparse = rf.read(tensor4([[1.0]]), tensor4([[0.6], [0.2], [-3.0]]), v, rule="sparsemax", scale=1.0)
        entmax = rf.read(tensor4([[1.0]]), tensor4([[1.0], [1.0], [-3.0]]), v, rule="entmax15", scale=1.0)
        torch.testing.assert_close(sparse, tensor4([[0.7 * 1 + 0.3 * 10]]))
        torch.testing.assert_close(entmax, tensor4([[5.5]]))

    def test_statistics_of_a_row(self) -> None:
        # relu_plain weights (1, 3, 0, hidden): R = 4, H = log 4 - (3 log 3) / 4, a third of the visible is zero
        q, k = tensor4([[1.0]]), tensor4([[1.0], [3.0], [-2.0], [5.0]])
        key_mask = torch.tensor([[True, True, True, False]])
        _, stats = rf.read(q, k, k, rule="relu_plain", scale=1.0, key_mask=key_mask, return_stats=True)
        assert stats.row_sum.item() == 4
        assert stats.entropy.item() == pytest.approx(math.log(4) - 3 * math.log(3) / 4)
        assert stats.zero_fraction.item() == pytest.approx(1 / 3)
        assert stats.n_visible.item() == 3
        assert not stats.dead.item()


def random_memory(queries: int = 3, slots: int = 4, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, 2, queries, 3), (2, 2, slots, 3), (2, 2, slots, 2))
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("rule", RULES)
def test_gradients_of_read_and_statistics(rule: str, causal: bool) -> None:
    bias = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    key_mask = torch.tensor([[True] * 4, [True, True, True, False]])

    def function(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, b = inputs
        out, stats = rf.read(q, k, v, rule=rule, causal=causal, key_mask=key_mask, bias=b, return_stats=True)
        return out, stats.row_sum, stats.entropy

    assert torch.autograd.gradcheck(function, (*random_memory(), bias.requires_grad_()))


@pytest.mark.parametrize("rule", RULES)
def test_statistics_do_not_change_the_read(rule: str) -> None:
    q, k, v = random_memory()
    out, stats = rf.read(q, k, v, rule=rule, causal=True, return_stats=True)
    torch.testing.assert_close(out, rf.read(q, k, v, rule=rule, causal=True))
    assert {field: tuple(value.shape) for field, value in stats._asdict().items()} == dict.fromkeys(
        ("row_sum", "entropy", "zero_fraction", "n_visible"), (2, 2, 3)
    )


def test_entropy_has_no_gradient_at_zero_weights() -> None:
    q, k, v = torch.ones(1, 1, 1, 1), torch.tensor([[[[-1.0], [-2.0]]]]), torch.ones(1, 1, 2, 1)
    q.requires_grad_()
    _, stats = rf.read(q, k, v, rule="relu", return_stats=True)
    assert stats.dead.all()
    assert stats.entropy.item() == 0
    (gradient,) = torch.autograd.grad(stats.entropy.sum(), q)
    assert gradient.item() == 0


@settings(max_examples=60, deadline=None)
@given(
    rule=st.sampled_from(RULES),
    queries=st.integers(0, 6),
    extra_slots=st.integers(0, 6),
    causal=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_hidden_slots_never_matter(rule: str, queries: int, extra_slots: int, causal: bool, seed: int) -> None:
    """Whatever the shape and the masks: replacing what is hidden changes nothing, and n counts what is visible."""
    generator = torch.Generator().manual_seed(seed)
    slots = queries + extra_slots
    q = torch.randn(2, 2, queries, 3, generator=generator, dtype=torch.float64)
    k = torch.randn(2, 2, slots, 3, generator=generator, dtype=torch.float64)
    v = torch.randn(2, 2, slots, 2, generator=generator, dtype=torch.float64)
    key_mask = torch.rand(2, slots, generator=generator) < 0.6
    mask = torch.rand(2, 1, queries, slots, generator=generator) < 0.7
    options = dict(rule=rule, causal=causal, key_mask=key_mask, mask=mask)
    out, stats = rf.read(q, k, v, return_stats=True, **options)
    hidden = ~key_mask[:, None, :, None]
    again = rf.read(q, k.masked_fill(hidden, 9.0), v.masked_fill(hidden, -7.0), **options)
    torch.testing.assert_close(out, again)
    visible = key_mask[:, None, None, :] & mask
    if causal:
        visible = visible & torch.ones(queries, slots, dtype=torch.bool).tril(slots - queries)
    assert torch.equal(stats.n_visible, visible.sum(-1).expand(2, 2, queries))


@settings(max_examples=40, deadline=None)
@given(rule=st.sampled_from(sorted({*RULES} - {"polynomial"})), scale=st.floats(0.01, 100), seed=st.integers(0, 2**16))
def test_weights_are_not_negative_and_simplex_rules_sum_to_one(rule: str, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(1, 1, 4, 3, generator=generator, dtype=torch.float64)
    k = torch.randn(1, 1, 9, 3, generator=generator, dtype=torch.float64)
    weights, stats = rf.weights(q, k, rule=rule, scale=scale)
    assert (weights >= 0).all()
    assert torch.isfinite(weights).all()
    if rule in ("softmax", "softmax_ln", "sparsemax", "entmax15"):
        torch.testing.assert_close(stats.row_sum, torch.ones_like(stats.row_sum))


class TestImplementations:
    def test_softmax_is_fused_unless_statistics_are_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []
        original = torch.nn.functional.scaled_dot_product_attention
        monkeypatch.setattr(
            "reluformer.kernels.sdpa.scaled_dot_product_attention",
            lambda *args, **options: calls.append(options) or original(*args, **options),
        )
        q, k, v = random_memory(4, 4)
        rf.read(q, k, v, rule="softmax")
        rf.read(q, k, v, rule="softmax_ln", causal=True)
        assert len(calls) == 2
        assert calls[1]["is_causal"]
        rf.read(q, k, v, rule="softmax", return_stats=True)
        rf.read(q, k, v, rule="softmax", impl="reference")
        rf.read(q, k, v, rule="relu")
        assert len(calls) == 2

    def test_an_implementation_that_cannot_says_so(self) -> None:
        with pytest.raises(ArgumentError, match="impl='sdpa' cannot read rule 'relu' here"):
            rf.read(*random_memory(), rule="relu", impl="sdpa")

    def test_an_unknown_implementation_lists_the_known(self) -> None:
        with pytest.raises(
            UnknownNameError, match=r"did you mean 'reference'\? valid: auto, cpu, cpu_dense, cpu_sparse, reference"
        ):
            rf.read(*random_memory(), impl="refrence")


class TestBadInput:
    q, k, v = torch.randn(2, 2, 3, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 6)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"q": torch.randn(2, 3, 4)}, r"q must be \(batch, heads, length, width\), got shape \(2, 3, 4\)"),
            ({"k": torch.randn(2, 2, 5, 3)}, r"k has shape \(2, 2, 5, 3\); .* those of q"),
            ({"v": torch.randn(2, 2, 4, 6)}, r"v has shape \(2, 2, 4, 6\); it needs one value for each key"),
            ({"q": torch.ones(2, 2, 3, 4, dtype=torch.int64)}, r"q must be floating point, got torch.int64"),
            ({"key_mask": torch.ones(2, 5)}, r"key_mask must be boolean .* convert 0/1 with .bool\(\)"),
            ({"key_mask": torch.ones(2, 4, dtype=torch.bool)}, r"key_mask has shape \(2, 4\).*\(2, 5\)"),
            ({"mask": torch.zeros(3, 5)}, r"mask must be boolean .* mask == 0"),
            ({"mask": torch.ones(4, 5, dtype=torch.bool)}, r"mask has shape \(4, 5\), which does not broadcast"),
            ({"bias": torch.ones(5, dtype=torch.bool)}, r"bias must be floating point.*goes into mask or key_mask"),
            ({"bias": torch.ones(7, 5)}, r"bias has shape \(7, 5\), which does not broadcast"),
            ({"bias": torch.ones(1, 2, 2, 3, 5)}, r"bias has shape .* does not broadcast"),
        ],
    )
    def test_the_argument_and_the_fix_are_named(self, change: dict[str, Tensor], message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            rf.read(**{"q": self.q, "k": self.k, "v": self.v, **change})

    def test_more_causal_queries_than_slots(self) -> None:
        with pytest.raises(ArgumentError, match="pass the keys of the whole prefix"):
            rf.read(self.k, self.q, self.q, causal=True)

    def test_unknown_rule(self) -> None:
        with pytest.raises(UnknownNameError, match="unknown rule 'rleu'; did you mean 'relu'"):
            rf.read(self.q, self.k, self.v, rule="rleu")

    def test_something_that_is_no_rule(self) -> None:
        with pytest.raises(ArgumentError, match="expected a name, a mapping with 'name', or a rule object"):
            rf.read(self.q, self.k, self.v, rule=3)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("rule", ["relu", "relu2", "relu_seqlen", "sigmoid", "relu_norm", "relu_exp", "softmax"])
def test_torch_compile_takes_a_read_of_the_reference_as_one_graph(rule: str, causal: bool) -> None:
    torch.compiler.reset()  # each rule is compiled anew, and a process may compile a function a few times only
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    compiled = torch.compile(rf.read, fullgraph=True, backend="aot_eager")
    found = []
    for read in (rf.read, compiled):
        out = read(q, k, v, rule=rf.rules.get(rule), causal=causal, impl="reference")
        found.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)


# ------------------------------------------------------------------ grouped heads, windows, packed sequences, gates


def _tokens(heads: int = 4, key_heads: int = 4, length: int = 12, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(3)
    q = torch.randn(batch, heads, length, 8, dtype=torch.float64)
    k, v = torch.randn(2, batch, key_heads, length, 8, dtype=torch.float64)
    return q, k, v


@pytest.mark.parametrize("rule", ["relu", "softmax", "softmax1", "relu_chance", "sparsemax"])
def test_grouped_heads_read_as_repeated_keys_do(rule: str) -> None:
    q, k, v = _tokens(6, 2, batch=2)
    repeated = [x.repeat_interleave(3, dim=1) for x in (k, v)]
    assert torch.allclose(rf.read(q, k, v, rule, causal=True), rf.read(q, *repeated, rule, causal=True))


@pytest.mark.parametrize("rule", ["relu", "softmax", "softmax1", "relu_chance", "tra"])
@pytest.mark.parametrize(("window", "causal"), [((2, 1), False), ((3, None), False), ((3, 5), True), ((0, 0), False)])
def test_a_window_is_a_mask_whose_slots_n_counts(rule: str, window: tuple[int, int | None], causal: bool) -> None:
    q, k, v = _tokens()
    away = torch.arange(12) - torch.arange(12)[:, None]
    right = 0 if causal else 12 if window[1] is None else window[1]
    mask = (away >= -window[0]) & (away <= right)
    out, stats = rf.read(q, k, v, rule, window=window, causal=causal, return_stats=True)
    assert torch.equal(stats.n_visible, mask.sum(-1).expand(1, 4, 12))
    assert torch.allclose(out, rf.read(q, k, v, rule, mask=mask))
    assert torch.allclose(rf.read(q, k, v, rule, window=window, causal=causal), out)
    newest = rf.read(q[:, :, -3:], k, v, rule, window=window, causal=causal)
    assert torch.allclose(newest, out[:, :, -3:])


@pytest.mark.parametrize("rule", ["relu", "softmax", "softmax1", "relu_chance", "polynomial"])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_read_as_each_of_them_does_alone(rule: str, causal: bool) -> None:
    q, k, v = _tokens(4, 2)
    packed = rf.read(q, k, v, rule, causal=causal, offsets=torch.tensor([0, 5, 5, 6, 12]))
    for begin, end in ((0, 5), (5, 6), (6, 12)):
        alone = rf.read(*(x[:, :, begin:end] for x in (q, k, v)), rule, causal=causal)
        assert torch.allclose(packed[:, :, begin:end], alone)


def test_a_sink_is_a_slot_without_value_that_n_does_not_count() -> None:
    q, k, v = _tokens()
    sink = torch.tensor([0.5, -1.0, 0.0, 2.0], dtype=torch.float64)
    out, stats = rf.read(q, k, v, "softmax", causal=True, sink=sink, return_stats=True)
    scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf)
    share = scores.exp() / (sink.exp()[:, None, None] + scores.exp().sum(-1, keepdim=True))
    assert torch.allclose(out, share @ v)
    assert torch.allclose(rf.read(q, k, v, "softmax", causal=True, sink=sink), share @ v)
    assert torch.allclose(rf.read(q, k, v, "softmax1", sink=torch.zeros(4)), rf.read(q, k, v, "softmax1"))
    assert torch.equal(stats.n_visible[0, 0], torch.arange(1, 13))


@pytest.mark.parametrize("rule", ["relu", "softmax", "softmax1", "relu_norm"])
def test_a_gate_is_a_bias_of_rows_and_keys(rule: str) -> None:
    q, k, v = _tokens(4, 2)
    gate = torch.cumsum(-torch.rand(4, 12, dtype=torch.float64), dim=-1)
    moved = gate.unsqueeze(-1) - gate.unsqueeze(-2)
    for newest in (12, 4):
        out = rf.read(q[:, :, -newest:], k, v, rule, causal=True, gate=gate)
        assert torch.allclose(out, rf.read(q[:, :, -newest:], k, v, rule, causal=True, bias=moved[:, -newest:]))


@pytest.mark.parametrize("rule", ["relu_exp", "relu_chance"])
def test_the_level_of_centred_rules_does_not_know_the_gate(rule: str) -> None:
    q, k, _ = _tokens()
    gate = torch.cumsum(torch.full((4, 12), -3.0, dtype=torch.float64), dim=-1)
    chosen = rules.get(rule)
    scores = q @ k.transpose(-1, -2) / 8**0.5
    n, visible = torch.full((12, 1), 12.0, dtype=torch.float64), torch.ones(12, 12, dtype=torch.bool)
    level = dataclasses.replace(chosen.level, cap=None).of_scores(scores, n, visible)
    x = scores - level + gate.unsqueeze(-1) - gate.unsqueeze(-2)
    if chosen.cap is not None:
        x = x + (chosen.cap - x.amax(-1, keepdim=True)).clamp_min(0)
    u = torch.relu(torch.expm1(x.clamp(max=60)))
    assert torch.allclose(rf.weights(q, k, rule, gate=gate)[0], u / (chosen.delta + u.sum(-1, keepdim=True)))


@pytest.mark.parametrize("rule", ["relu", "softmax", "softmax1", "relu_chance", "sparsemax"])
@pytest.mark.parametrize("options", [{}, {"window": (5, 0)}, {"offsets": torch.tensor([0, 5, 12])}], ids=str)
def test_a_gate_on_the_weights_multiplies_them(rule: str, options: dict[str, Any]) -> None:
    q, k, v = _tokens(4, 2)
    gate = torch.cumsum(-torch.rand(4, 12, dtype=torch.float64) * 99, dim=-1)  # what later slots add has no exponential
    options = {"causal": True, **options}
    factor = torch.exp((gate.unsqueeze(-1) - gate.unsqueeze(-2)).clamp_max(0))
    expected, before = rf.weights(q, k, rule, **options)
    found, stats = rf.weights(q, k, rule, **options, gate=gate, gate_on="weights")
    assert torch.allclose(found, expected * factor)
    assert torch.equal(stats.n_visible, before.n_visible)
    out = found @ v.repeat_interleave(2, dim=1)
    assert torch.allclose(rf.read(q, k, v, rule, **options, gate=gate, gate_on="weights"), out)
    if "offsets" not in options:
        newest = rf.read(q[:, :, -3:], k, v, rule, **options, gate=gate, gate_on="weights")
        assert torch.allclose(newest, out[:, :, -3:])


@pytest.mark.parametrize("rule", ["relu", "relu_chance", "softmax"])
def test_gradients_of_a_gate_on_the_weights(rule: str) -> None:
    q, k, v = (x[:, :, :5, :3] for x in _tokens())
    gate = torch.cumsum(-torch.rand(4, 5, dtype=torch.float64), dim=-1)
    given = [x.clone().requires_grad_() for x in (q, k, v, gate)]

    def read(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
        return rf.read(q, k, v, rule, causal=True, gate=gate, gate_on="weights")

    assert torch.autograd.gradcheck(read, given)


def test_a_gate_on_the_weights_learns_from_pairs_that_a_gate_on_the_scores_has_lost() -> None:
    q, k, v = (x.abs() for x in _tokens(1, 1))
    gradients = {}
    for gate_on in ("scores", "weights"):
        gate = torch.cumsum(torch.full((1, 12), -9.0, dtype=torch.float64), dim=-1).requires_grad_()
        rf.read(q, k, v, "relu", causal=True, gate=gate, gate_on=gate_on).sum().backward()
        assert gate.grad is not None
        gradients[gate_on] = gate.grad.abs().sum()
    assert gradients["scores"] == 0 < gradients["weights"]


def test_a_forget_gate_over_16384_slots_loses_no_digits() -> None:
    length, newest = 16384, torch.arange(5, 16384, 131)
    q, k, v = torch.randn(3, 1, 2, length, 8, generator=torch.Generator().manual_seed(5))
    gate = torch.cumsum(torch.full((2, length), -math.log(2)), dim=-1)
    gate[1] /= 100  # a memory of 100 tokens beside one of a single token
    assert gate.min() < -11_000
    out = rf.read(q, k, v, "softmax", causal=True, gate=gate)
    moved = gate.double()[:, newest, None] - gate.double()[:, None]
    scores = q[:, :, newest].double() @ k.double().transpose(-1, -2) / 8**0.5 + moved
    hidden = torch.arange(length) > newest[:, None]
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v.double()
    assert (out[:, :, newest] - expected).abs().max() <= 2e-5 * expected.abs().max()


def test_an_approximate_read_leaves_out_less_than_it_says() -> None:
    q, k, v = torch.randn(3, 1, 2, 1500, 8, generator=torch.Generator().manual_seed(5))
    gate = torch.cumsum(torch.full((2, 1500), -0.2), dim=-1)
    exact = rf.read(q, k, v, "softmax", causal=True, gate=gate)
    near = rf.read(q, k, v, "softmax", causal=True, gate=gate, approximate=True)
    away = (near - exact).abs().max()
    assert 0 < away <= 2 * math.exp(-10) * v.abs().max()
    with pytest.raises(ArgumentError, match="approximate=True is for softmax with a gate"):
        rf.read(q, k, v, "relu", causal=True, gate=gate, approximate=True)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"window": (70, 0)}, {"offsets": torch.tensor([0, 100, 700])}], ids=str)
@pytest.mark.parametrize("sink", [False, True])
def test_fused_softmax_takes_gates_sinks_and_groups(key_heads: int, options: dict[str, Any], sink: bool) -> None:
    generator = torch.Generator().manual_seed(6)
    q = torch.randn(1, 4, 700, 6, generator=generator)
    k, v = torch.randn(2, 1, key_heads, 700, 6, generator=generator)
    rates = torch.tensor([0.001, 0.02, 0.3, 1.0])[:, None]
    gate = torch.cumsum(-rates * torch.rand(4, 700, generator=generator), -1)
    given = [q, k, v, gate] + ([torch.randn(4, generator=generator)] if sink else [])
    found = []
    for impl, dtype in (("sdpa", torch.float32), ("reference", torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in given]
        more = {"gate": leaves[3], "sink": leaves[4] if sink else None}
        out = rf.read(*leaves[:3], "softmax", causal=True, impl=impl, **more, **options)
        probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        found.append((out, *torch.autograd.grad((out * probe).sum(), leaves)))
    for got, expected in zip(*found, strict=True):
        assert (got.double() - expected).abs().max() <= 2e-5 * expected.abs().max().clamp_min(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 4, "key_heads": 3}, "the heads of k must divide those of q"),
        ({"window": (-1, 0)}, "negative width"),
        ({"window": 5}, r"window must be \(left, right\)"),
        ({"window": (1.5, 0)}, r"window must be \(left, right\)"),
        ({"offsets": torch.tensor([0, 7])}, "offsets must rise from 0 to the number of slots, 12"),
        ({"offsets": torch.tensor([0, 9, 5, 12])}, "offsets must rise"),
        ({"offsets": torch.tensor([0.0, 12.0])}, "offsets must be a tensor of integers"),
        ({"offsets": torch.tensor([0, 12]), "batch": 2}, "offsets with a batch of 2"),
        ({"gate": torch.zeros(5)}, "gate has shape"),
        ({"gate_on": "weights"}, "gate_on='weights' without a gate"),
        ({"gate": torch.zeros(12), "gate_on": "values"}, "use 'scores' or 'weights'"),
        (
            {"gate": torch.zeros(12), "gate_on": "weights", "impl": "cpu"},
            "takes no gate on the weights",
        ),
        ({"gate": torch.zeros(12), "gate_on": "weights", "approximate": True, "rule": "softmax"}, "drop it"),
        ({"sink": torch.zeros(3), "rule": "softmax"}, "one score a head"),
        ({"sink": torch.zeros(4)}, "rule 'relu' takes no sink"),
        ({"window": (3, 0), "impl": "cpu_sparse"}, "impl='auto'"),
    ],
)
def test_operands_that_do_not_fit_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    sizes = {name: change.pop(name) for name in ("heads", "key_heads", "batch") if name in change}
    with pytest.raises(ArgumentError, match=message):
        rf.read(*_tokens(**sizes), **change)


@pytest.mark.parametrize("rule", ["relu", "softmax", "relu_exp"])
@pytest.mark.parametrize("wide", [2**31, 2**63 - 1, 10**30])
def test_a_window_as_wide_as_any_number_is_none(wide: int, rule: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 12, 8, generator=torch.Generator().manual_seed(0))
    found = rf.read(q, k, v, rule, window=(wide, wide))
    assert torch.allclose(found, rf.read(q, k, v, rule), atol=1e-6)
    assert torch.allclose(rf.read(q, k, v, rule, window=(wide, 0)), rf.read(q, k, v, rule, causal=True), atol=1e-6)
