"""A rule says once what kernels need to know, and a rule of one's own gets all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import reluformer as rf
from reluformer import kernels, rules
from reluformer.errors import ArgumentError
from reluformer.kernels import cpu, triton
from reluformer.layers import FeedForward
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.rules import Formula, Level


@dataclass(frozen=True)
class Damped(rules.Pointwise):
    """ReLU(s) / (3 n^0.7), with methods and a description."""

    name: ClassVar[str] = "damped"

    def activate(self, scores: Tensor, n: Tensor) -> Tensor:
        return torch.relu(scores)

    def row_scale(self, n: Tensor) -> Tensor:
        return 1 / (3 * n**0.7)

    def formula(self) -> Formula:
        return Formula("relu", factor=1 / 3, exponent=0.7)


@dataclass(frozen=True)
class Stated(rules.Formulated):
    """The same by its description alone."""

    name: ClassVar[str] = "stated"

    def formula(self) -> Formula:
        return Formula("relu", factor=1 / 3, exponent=0.7)


@dataclass(frozen=True)
class Above(rules.Formulated):
    """ReLU(s - 0.2 - 0.1 log n)^2 over its row sum: a level that does not move with the scores."""

    name: ClassVar[str] = "above"

    def formula(self) -> Formula:
        return Formula("relu_squared", delta=0.5, level=Level(threshold=0.2, growth=0.1))


@dataclass(frozen=True)
class Sharp(rules.Formulated):
    """A centred level and a sigmoid."""

    name: ClassVar[str] = "sharp"

    def formula(self) -> Formula:
        return Formula("sigmoid", exponent=0.5, level=Level(0.3, 0.1, centred=True, spread=0.5, floor=0.01))


OWN = [Damped(), Stated(), Above(), Sharp()]


def memory(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, 8, generator=generator).to(dtype) for n in (70, 90, 90))
    return q, k, v


@pytest.mark.parametrize("name", rules.names())
def test_the_formula_of_a_registered_rule_is_its_mathematics(name: str) -> None:
    formula = rules.formula_of(rules.get(name))
    assert (formula is None) == (name in ("sparsemax", "entmax15", "softpick"))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("impl", ["cpu", "triton"])
@pytest.mark.parametrize("rule", OWN, ids=lambda rule: rule.name)
def test_a_rule_of_ones_own_gets_every_kernel(
    rule: rules.Rule, impl: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    if reason := (cpu if impl == "cpu" else triton).unavailable():
        pytest.skip(reason)
    q, k, v = memory()
    q = q[:, :, :5] if impl == "triton" else q
    bias = torch.linspace(-1, 1, 90)
    options: dict[str, Any] = dict(rule=rule, causal=causal, bias=bias)
    out, stats = rf.read(q, k, v, impl=impl, return_stats=True, **options)
    expected, expected_stats = rf.read(
        q.double(), k.double(), v.double(), impl="reference", return_stats=True, **options
    )
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(stats.entropy.double(), expected_stats.entropy, rtol=1e-4, atol=1e-4)


def test_auto_takes_the_kernel_for_a_rule_of_ones_own() -> None:
    if reason := cpu.unavailable():
        pytest.skip(reason)
    q, k, v = memory()
    visibility = kernels.Visibility(70, 90, q.device, causal=True)
    assert kernels.fastest(q, k, v, Damped(), visibility, None, False) == "cpu"


def test_the_compiled_decoder_takes_a_rule_of_ones_own() -> None:
    from reluformer.translation.native_decoder import NativeDecoder

    if reason := cpu.unavailable():
        pytest.skip(reason)
    sizes = dict(vocab_size=20, width=16, heads=2, slots=32, encoder_layers=1, decoder_layers=1)
    model = ReLUFormer(rf.ModelConfig(**sizes, decoder_attention=Damped(), cross_attention=Stated())).eval()
    assert NativeDecoder.refusal(model) is None


@pytest.mark.parametrize("name", ["relu_exp", "relu_chance", "relu_rest"])
def test_a_centred_formula_alone_adds_a_gate_after_its_level(name: str) -> None:
    @dataclass(frozen=True)
    class Copied(rules.Formulated):
        def formula(self) -> Formula:
            formula = rules.get(name).formula()
            assert formula is not None
            return formula

    q, k, v = memory(torch.float64)
    gate = torch.cumsum(torch.full((k.size(2),), -0.3, dtype=torch.float64), dim=-1)
    for found, expected in zip(rf.weights(q, k, Copied(), gate=gate), rf.weights(q, k, name, gate=gate), strict=True):
        torch.testing.assert_close(found, expected)
    given = (q.float(), k.float(), v.float(), Copied())
    expected = rf.read(q, k, v, name, causal=True, gate=gate)
    torch.testing.assert_close(rf.read(*given, causal=True, gate=gate.float()).double(), expected, rtol=1e-4, atol=1e-5)


def test_two_ways_to_say_one_thing() -> None:
    q, k, v = memory(torch.float64)
    torch.testing.assert_close(rf.read(q, k, v, rule=Damped()), rf.read(q, k, v, rule=Stated()))


def test_softmax_stated_by_its_formula_is_fused() -> None:
    @dataclass(frozen=True)
    class Mine(rules.Formulated):
        def formula(self) -> Formula:
            return Formula("exp", delta=0.0)

    q, k, v = memory()
    visibility = kernels.Visibility(70, 90, q.device)
    assert kernels.fastest(q, k, v, Mine(), visibility, None, False) == "sdpa"
    assert torch.equal(rf.read(q, k, v, rule=Mine()), rf.read(q, k, v, rule="softmax"))


def test_scores_times_log_n_are_read_by_the_reference_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Sharper(rules.Formulated):
        def formula(self) -> Formula:
            return Formula("relu", exponent=0.5, log_factor=0.4)

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    q, k, v = memory()
    n = torch.arange(21, 91.0)[:, None]
    visible = torch.arange(90) < n
    scores = q @ k.transpose(-1, -2) * 8**-0.5
    expected = (torch.relu(scores) * 0.4 * n.log() / n.sqrt() * visible) @ v
    torch.testing.assert_close(rf.read(q, k, v, Sharper(), causal=True), expected, rtol=1e-5, atol=1e-6)
    visibility = kernels.Visibility(70, 90, q.device, causal=True)
    for impl in ("sdpa", "cpu", "triton"):
        assert kernels.refusal(impl, q, k, v, Sharper(), visibility, None, False) is not None
    layer = FeedForward(8, 2048, Sharper()).train()
    assert layer(torch.randn(1, 512, 8))[0].shape == (1, 512, 8)


@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_exponentials_over_their_sum_do_not_overflow(delta: float) -> None:
    @dataclass(frozen=True)
    class Mine(rules.Formulated):
        def formula(self) -> Formula:
            return Formula("exp", delta=delta)

    scores = torch.tensor([[1000.0, 999.0, -1000.0, 5000.0], [-1000.0, -1001.0, -2000.0, 0.0]])
    visible, n = torch.tensor([True, True, True, False]), torch.tensor(3.0)
    known = rules.get("softmax1" if delta else "softmax")
    torch.testing.assert_close(Mine().weights(scores, n, visible), known.weights(scores, n, visible))
    assert not Mine().weights(scores, n, torch.zeros(4, dtype=torch.bool)).any()


class TestAFormulaThatDoesNotHold:
    def test_a_subclass_with_weights_of_its_own_loses_an_inherited_formula(self) -> None:
        @dataclass(frozen=True)
        class Leaky(rules.Relu):
            def activate(self, scores: Tensor, n: Tensor) -> Tensor:
                return torch.where(scores > 0, scores, 0.1 * scores)

        @dataclass(frozen=True)
        class Halved(rules.ReluNorm):
            def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
                return super().weights(scores, n, visible) / 2

        q, k, v = memory()
        for rule in (Leaky(), Halved()):
            assert rules.formula_of(rule) is None
            assert rule.homogeneity is None
            assert torch.equal(rf.read(q, k, v, rule=rule), rf.read(q, k, v, rule=rule, impl="reference"))

    def test_a_wrong_one_of_its_own_is_an_error_where_it_is_registered(self) -> None:
        @dataclass(frozen=True)
        class Wrong(Damped):
            def formula(self) -> Formula:
                return Formula("relu", factor=1 / 2, exponent=0.7)

        with pytest.raises(ArgumentError, match=r"rule 'wrong': its formula .* gives other weights .* fix formula\(\)"):
            rules.register("wrong")(Wrong)
        assert "wrong" not in rules.names()
        with pytest.raises(ArgumentError, match="gives other weights"):
            rf.read(*memory(), rule=Wrong())

    def test_options_that_a_formula_forgets_are_found(self) -> None:
        @dataclass(frozen=True)
        class Forgetful(rules.Relu):
            def formula(self) -> Formula:
                return Formula("relu", factor=2**0.5, exponent=0.5)

        assert rules.formula_of(Forgetful()) is not None
        with pytest.raises(ArgumentError, match="gives other weights"):
            rules.formula_of(Forgetful(gamma=2.0))


def test_a_clamp_that_differs_is_noticed() -> None:
    @dataclass(frozen=True)
    class Unclamped(rules.RectifiedExp):
        def activate(self, scores: Tensor, n: Tensor) -> Tensor:
            return torch.relu(torch.expm1(scores))

    assert rules.formula_of(Unclamped()) is None


@pytest.mark.parametrize("name", rules.names())
def test_a_learned_memory_reads_as_any_other(name: str) -> None:
    layer = FeedForward(8, 12, rules.get(name)).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer.norm = torch.nn.Identity()
    keys, values = layer.keys.weight[None, None], layer.values.weight.t()[None, None]
    expected = rf.read(x[:, None], *(part.expand(3, -1, -1, -1) for part in (keys, values)), rule=name, scale=1.0)
    torch.testing.assert_close(layer(x)[0], expected[:, 0])
