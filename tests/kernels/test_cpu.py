"""The CPU kernel against the reference in float64, and what it promises beyond being right."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import reluformer as rf
from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.kernels import RowKeyBias, cpu, cpu_operators
from reluformer.kernels.native.library import PATHS

pytestmark = pytest.mark.usefixtures("kernel")
RULES = ("relu", "relu_plain", "relu_seqlen", "relu2", "sigmoid", "rela", "relu_norm", "relu_exp")


@dataclass(frozen=True)
class Relu2Norm(rules.RowNormalized):
    inner: ClassVar[rules.Pointwise] = rules.Relu2()


def memory(
    queries: int, slots: int, width: int = 16, value_width: int = 16, batch: int = 2, heads: int = 2
) -> list[Tensor]:
    """Heads as the layers have them: transposed views of tokens.

    Sizes are chosen so that no score lies within rounding of its threshold, where the slope of a ReLU jumps.
    """
    generator = torch.Generator().manual_seed(queries + slots)
    sizes = ((queries, width), (slots, width), (slots, value_width))
    return [torch.randn(batch, length, heads, size, generator=generator).transpose(1, 2) for length, size in sizes]


def functional(read: Any, tensors: list[Tensor], stats: bool, **options: Any) -> tuple[Tensor, ...]:
    """The read (and its statistics), and gradients of all inputs for a fixed random functional of them."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    if len(leaves) > 3:
        options["bias"] = RowKeyBias(*leaves[3:])
    out = read(*leaves[:3], return_stats=True, **options) if stats else (read(*leaves[:3], **options), None)
    parts = [out[0]] if out[1] is None else [out[0], out[1].row_sum]
    generator = torch.Generator().manual_seed(3)
    loss = sum((part * torch.randn(part.shape, generator=generator).to(part.dtype)).sum() for part in parts)
    return (*(part.detach() for part in parts), *torch.autograd.grad(loss, leaves))


def assert_like_reference(tensors: list[Tensor], stats: bool = False, **options: Any) -> None:
    got = functional(rf.read, tensors, stats, impl="cpu", **options)
    doubled = [tensor.double() for tensor in tensors]
    expected = functional(rf.read, doubled, stats, impl="reference", **options)
    for one, other in zip(got, expected, strict=True):
        assert float((one - other).abs().max()) <= 2e-5 * max(1.0, float(other.abs().max()))


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each vector path that this processor can run."""
    number = PATHS.index(request.param)
    if number > cpu.loaded().path:
        pytest.skip(f"this processor has no {request.param}")
    monkeypatch.setattr(cpu.loaded(), "path", number)
    return str(request.param)


@pytest.mark.parametrize("width", [1, 9, 16, 33, 64, 100, 128, 256])
def test_every_width_on_every_path(path: str, width: int) -> None:
    assert_like_reference(memory(19, 37, width, 1 + 3 * width // 4), rule="relu", scale=width**-0.5)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("causal", [False, True])
def test_more_than_one_tile(path: str, rule: str, causal: bool) -> None:
    key_mask = torch.arange(450) < torch.tensor([450, 201])[:, None]
    assert_like_reference(memory(233, 450), stats=True, rule=rule, causal=causal, key_mask=key_mask)


@pytest.mark.parametrize("queries", [1, 2, 8, 9])
@pytest.mark.parametrize("rule", RULES)
def test_few_queries(path: str, rule: str, queries: int) -> None:
    key_mask = torch.rand(2, 530, generator=torch.Generator().manual_seed(1)) > 0.3
    assert_like_reference(memory(queries, 530, 24, 70), rule=rule, causal=True, key_mask=key_mask)


@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("queries", [3, 130])
def test_biases_of_rows_and_keys(queries: int, stats: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    biases = [torch.randn(2, queries, generator=generator), torch.randn(2, 1, 150, generator=generator)]
    assert_like_reference([*memory(queries, 150), *biases], stats, rule="relu2", causal=queries < 10)


@pytest.mark.parametrize("shape", [(1, 1, 1, 40), (2, 1, 30, 1), (1, 1), (40,)])
def test_a_bias_tensor_that_is_not_dense(shape: tuple[int, ...]) -> None:
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    q, k, v = memory(30, 40)
    expected = rf.read(q, k, v, rule="sigmoid", bias=bias, impl="reference")
    assert torch.allclose(rf.read(q, k, v, rule="sigmoid", bias=bias, impl="cpu"), expected, atol=1e-6)


def test_distance_as_a_bias() -> None:
    q, k, v = memory(12, 12)
    position = torch.arange(12.0)
    pair = RowKeyBias(-0.1 * position, 0.1 * position)
    dense = -0.1 * (position[:, None] - position[None, :])
    assert torch.allclose(
        rf.read(q, k, v, bias=pair, impl="cpu"), rf.read(q, k, v, bias=dense, impl="reference"), atol=1e-6
    )


def test_a_row_normalized_rule_with_a_row_scale_of_its_own() -> None:
    assert_like_reference(memory(30, 40), stats=True, rule=Relu2Norm(delta=0.5))


@pytest.mark.parametrize("hit", [50.0, 65.0])
def test_the_row_sum_of_a_score_far_above_the_others(hit: float) -> None:
    """Its gradient is next to nothing, though the sum of the row is e^50 and its square beyond float32."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.zeros(1, 1, 16, 4), torch.randn(1, 1, 64, 4, generator=generator)
    q[..., 0], k[..., 5, 0] = 1.0, hit
    k.requires_grad_()
    _, stats = rf.read(q, k, k, rule="relu_exp", scale=1.0, impl="cpu", return_stats=True)
    (gradient,) = torch.autograd.grad(stats.row_sum.sum(), k)
    assert float(gradient.abs().max()) <= 1e-6


def test_bfloat16_is_read_with_float32_sums() -> None:
    q, k, v = (tensor.bfloat16() for tensor in memory(40, 600))
    out = rf.read(q, k, v, rule="relu", impl="cpu")
    expected = rf.read(q.double(), k.double(), v.double(), rule="relu", impl="reference")
    assert out.dtype is torch.bfloat16
    assert float((out - expected).abs().max()) <= 2**-8 * float(expected.abs().max())


def test_any_strides() -> None:
    q, k, v = memory(20, 24, 16, 8)
    odd = [tensor.transpose(2, 3).contiguous().transpose(2, 3) for tensor in (q, k, v)]
    assert torch.equal(rf.read(*odd, impl="cpu"), rf.read(q, k, v, impl="cpu"))


def test_the_output_joins_its_heads_for_free() -> None:
    out = rf.read(*memory(20, 24), impl="cpu")
    assert out.transpose(1, 2).is_contiguous()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("rule", ["relu", "relu_norm", "relu_exp", "sigmoid"])
def test_the_number_of_threads_changes_no_bit(rule: str, heads: int) -> None:
    """Long enough that forward and backward are divided, and so large that two threads are used."""
    tensors = memory(700, 1700, batch=1, heads=heads)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(functional(rf.read, tensors, True, rule=rule, causal=True, impl="cpu"))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_dead_tiles_change_nothing() -> None:
    """Half of the slots score far below zero: their tiles are skipped, and read like hidden slots."""
    q, k, v = memory(100, 400)
    q, k = q.abs(), k.abs()
    k[:, :, 200:] *= -1
    scaled = functional(rf.read, [q, k, v], True, rule="relu_plain", impl="cpu")
    alone = functional(rf.read, [q, k[:, :, :200], v[:, :, :200]], True, rule="relu_plain", impl="cpu")
    out, row_sum, d_q, d_k, d_v = scaled
    assert torch.allclose(out, alone[0]) and torch.allclose(row_sum, alone[1]) and torch.allclose(d_q, alone[2])
    assert not d_k[:, :, 200:].any() and not d_v[:, :, 200:].any()


@pytest.mark.parametrize("queries", [4, 40])
def test_nan_is_not_swallowed(queries: int) -> None:
    q, k, v = memory(queries, 40)
    q[0, 0, 1, 2] = math.nan
    out = rf.read(q, k, v, rule="relu", impl="cpu")
    assert out[0, 0, 1].isnan().all() and int(out.isnan().any(-1).sum()) == 1


def test_the_logarithm_of_the_statistics() -> None:
    """Two weights p and 1 - p have the entropy of a coin, over the whole range of float32."""
    p = torch.logspace(-37, 0, 500, dtype=torch.float64)[:-1]
    q = torch.stack([p, 1 - p], -1).float()[None, None]
    k = torch.eye(2)[None, None]
    _, stats = rf.read(q, k, k, rule="relu_plain", scale=1.0, impl="cpu", return_stats=True)
    w = q[0, 0].double()
    expected = w.sum(-1).log() - (w * w.log().nan_to_num(0, 0, 0)).sum(-1) / w.sum(-1)
    assert torch.allclose(stats.entropy[0, 0].double(), expected, rtol=1e-5, atol=1e-7)


STEP = """
import resource, torch, reluformer as rf

def step(length):
    q, k, v = (torch.randn(1, 1, length, 16, requires_grad=True) for _ in range(3))
    out, stats = rf.read(q, k, v, causal=True, impl="cpu", return_stats=True)
    (out.sum() + stats.entropy.sum()).backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

torch.set_num_threads(1)
print(-step(64) + step(8192))
"""


def test_memory_grows_with_the_length_not_with_its_square() -> None:
    """Of a training step at 8192 tokens, in a process of its own: scores alone would be 256 MB."""
    pytest.importorskip("resource")
    result = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    vectors = 40  # of 16 floats: inputs, outputs, their gradients, copies, and their padding
    assert int(result.stdout) < 8192 * vectors * 16 * 4 + 4 * 2**20


@pytest.mark.parametrize("mode", cpu.MODES)
@pytest.mark.parametrize("cap", [0.0, 1.5])
@pytest.mark.parametrize("delta", [-1.0, 1.0])
def test_the_operators_are_sound(delta: float, cap: float, mode: str) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in memory(10, 12))
    bias = torch.zeros(2, 2, 12, requires_grad=True)
    options = (cpu.MODES[mode], True, False, 0.25, 0, False, 1.0, 0.5, cap, delta)
    rows = torch.zeros(2, 2, 10, requires_grad=True) if cap else None
    arguments = (q, k, v, torch.ones(2, 12, dtype=torch.bool), rows, bias, *options)
    for operator in (torch.ops.reluformer.cpu_read, torch.ops.reluformer.cpu_read_stats):
        assert set(torch.library.opcheck(operator.default, arguments).values()) == {"SUCCESS"}


def with_zeros(share: float, rule: str, length: int, heads: int = 2, width: int = 20, **options: Any) -> list[Tensor]:
    """Read with a threshold that leaves `share` of normal scores without weight; the read and its three gradients."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, length, width, requires_grad=True) for _ in range(3))
    level = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(share)).clamp(-9, 9)
    out = rf.read(q, k, v, rule=rule, bias=-level.reshape(1, 1, 1, 1), **options)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v))]


SPARSE_RULES = ("relu", "relu2", "relu_norm", "rela")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("rule", SPARSE_RULES)
def test_sparse_rows_give_what_dense_rows_give(rule: str, share: float, causal: bool) -> None:
    dense = with_zeros(share, rule, 400, causal=causal, impl="cpu_dense")
    for mode in ("cpu", "cpu_sparse"):
        sparse = with_zeros(share, rule, 400, causal=causal, impl=mode)
        for one, other in zip(sparse, dense, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max() + 1))


@pytest.mark.parametrize("rule", SPARSE_RULES)
def test_pairs_that_were_not_kept_are_found_again_bit_for_bit(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = with_zeros(0.9, rule, 400, impl="cpu_sparse")
    monkeypatch.setattr(cpu_operators, "KEPT_PAIRS", 0)
    found_again = with_zeros(0.9, rule, 400, impl="cpu_sparse")
    assert all(torch.equal(one, other) for one, other in zip(kept, found_again, strict=True))


@pytest.mark.parametrize("mode", ["cpu", "cpu_sparse"])
@pytest.mark.parametrize("heads", [1, 3])
def test_threads_do_not_change_sparse_rows(heads: int, mode: str) -> None:
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(with_zeros(0.9, "relu", 500, heads=heads, impl=mode))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_row_is_read_alike_whatever_its_neighbours_are() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 300, 16)
    crowd = [torch.cat([torch.rand_like(x) + 1, x]) for x in (q, k, v)]  # a neighbour without zeros
    bias = torch.full((1, 1, 1, 1), -2.0)
    alone = rf.read(q, k, v, rule="relu", bias=bias, impl="cpu")
    beside = rf.read(*crowd, rule="relu", bias=bias, impl="cpu")
    assert torch.equal(alone[0], beside[1])


def test_what_is_kept_is_given_back() -> None:
    kept = cpu_operators.kept_bytes()
    q, k, v = (torch.randn(1, 2, 300, 16, requires_grad=True) for _ in range(3))
    out = rf.read(q, k, v, rule="relu", impl="cpu_sparse")
    assert cpu_operators.kept_bytes() > kept
    del out
    gc.collect()
    assert cpu_operators.kept_bytes() == kept


@pytest.mark.parametrize("stats", [False, True])
def test_torch_compile_sees_through(stats: bool) -> None:
    tensors = memory(20, 20)
    compiled = torch.compile(rf.read, fullgraph=True, backend="aot_eager")
    expected = functional(rf.read, tensors, stats, rule=rules.Relu(), causal=True, impl="cpu")
    got = functional(compiled, tensors, stats, rule=rules.Relu(), causal=True, impl="cpu")
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_torch_export_keeps_the_operator() -> None:
    class Read(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return rf.read(q, k, v, rule=rules.Relu(), impl="cpu")

    tensors = tuple(memory(20, 20))
    program = torch.export.export(Read(), tensors)
    assert any("cpu_read" in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(*tensors), Read()(*tensors))


def test_what_it_cannot_do_it_says() -> None:
    q, k, v = memory(6, 6)
    refused: dict[str, dict[str, Any]] = {
        "cannot read rule 'softmax' here: the rule is not one of its formulas": {"rule": "softmax"},
        "no dense mask": {"mask": torch.ones(6, 6, dtype=torch.bool)},
        "no dense bias": {"bias": torch.zeros(6, 6)},
    }
    for message, options in refused.items():
        with pytest.raises(ArgumentError, match=message):
            rf.read(q, k, v, impl="cpu", **options)
    with pytest.raises(ArgumentError, match=r"not torch\.float64"):
        rf.read(q.double(), k.double(), v.double(), impl="cpu")


def test_a_subclass_of_a_rule_may_mean_anything() -> None:
    @dataclass(frozen=True)
    class Shifted(rules.Relu):
        def activate(self, scores: Tensor, n: Tensor) -> Tensor:
            return torch.relu(scores - 1)

    q, k, v = memory(200, 400)
    with pytest.raises(ArgumentError, match="not one of its formulas"):
        rf.read(q, k, v, rule=Shifted(), impl="cpu")
    assert torch.equal(rf.read(q, k, v, rule=Shifted()), rf.read(q, k, v, rule=Shifted(), impl="reference"))


@pytest.mark.parametrize("rows", [1, 4])
def test_values_of_the_slots_that_fired(path: str, rows: int) -> None:
    weights = torch.relu(torch.randn(rows, 700, generator=torch.Generator().manual_seed(0)) - 1.3)
    values = torch.randn(700, 150, generator=torch.Generator().manual_seed(1))
    expected = weights.double() @ values.double()
    got = cpu.gather_values(weights[:, None], values)[:, 0]
    assert float((got - expected).abs().max()) <= 2e-5 * float(expected.abs().max())


def test_gathering_is_for_a_few_rows_with_many_zeros_and_large_values() -> None:
    fired = torch.zeros(2, 1024)
    fired[:, ::8] = 1
    assert cpu.gathering_pays(fired, 1024)
    assert not cpu.gathering_pays(fired, 8)
    assert not cpu.gathering_pays(torch.ones(2, 1024), 1024)
    assert not cpu.gathering_pays(torch.zeros(40, 1024), 1024)
    assert not cpu.gathering_pays(fired.double(), 1024)
    assert not cpu.gathering_pays(fired.clone().requires_grad_(), 1024)
