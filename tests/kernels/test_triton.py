"""The Triton kernels against the reference in float64; without a GPU under Triton's interpreter."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from reluformer import kernels, rules
from reluformer.conformance import cases
from reluformer.conformance.cases import ENTROPY_GRADIENT_TOLERANCE, PADDINGS, TOLERANCE, Case, error
from reluformer.errors import ArgumentError
from reluformer.kernels import Bias, RowKeyBias, Visibility, triton

pytest.importorskip("triton", reason="triton is not installed: pip install 'reluformer[triton]'")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def is_read(rule: rules.Rule) -> bool:
    formula = rules.formula_of(rule)
    if formula is None or formula.rest or (formula.level is not None and formula.level.cap is not None):
        return False
    return formula.activation in triton.ACTIVATIONS


RULES = [name for name in rules.names() if is_read(rules.get(name))]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialised memory is NaN, so that a forgotten write shows."""
    allocate = torch.Tensor.new_empty

    def allocate_nan(self: Tensor, *args: Any, **options: Any) -> Tensor:
        tensor = allocate(self, *args, **options)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch.Tensor, "new_empty", allocate_nan)


def read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: str | rules.Rule = "relu",
    causal: bool = False,
    key_mask: Tensor | None = None,
    mask: Tensor | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    return_stats: bool = False,
    impl: str = "triton",
) -> Any:
    """`reluformer.read`, on the device under test for `triton`."""
    home, device = q.device, DEVICE if impl == "triton" else q.device
    q, k, v, key_mask, mask = (x if x is None else x.to(device) for x in (q, k, v, key_mask, mask))
    if bias is not None:
        bias = RowKeyBias(*(x.to(device) for x in bias)) if isinstance(bias, RowKeyBias) else bias.to(device)
    visibility = Visibility(q.size(2), k.size(2), q.device, causal, key_mask, mask)
    scale = 1 / math.sqrt(q.size(-1)) if scale is None else scale
    out, stats = kernels.run(impl, q, k, v, rules.get(rule), visibility, bias, scale, return_stats)
    if stats is not None:
        stats = type(stats)(*(part.to(home) for part in stats))
    return (out.to(home), stats) if return_stats else out.to(home)


def specified(*args: Any, **options: Any) -> Any:
    return read(*args, **options, impl="reference")


def by_turns(rule: str, dtype: torch.dtype) -> list[Case]:
    """The rule with each pattern, the paddings by turns."""
    return [Case(rule, pattern, PADDINGS[i % len(PADDINGS)], dtype) for i, pattern in enumerate(PATTERNS)]


# what the kernels refuse, and gates, which reach them as a bias
OTHERS = ("grouped", "window", "packed", "sink", "gated", "forgetting")
PATTERNS = tuple(pattern for pattern in cases.PATTERNS if pattern not in ("long", *OTHERS))
# the whole grid takes minutes under the interpreter, and several tiles have tests of their own below;
# rules with the same activation differ in a factor
WITH_ALL_PATTERNS = ("relu", "relu2", "sigmoid", "relu_exp")
GRID = [
    *(Case("relu", pattern, padding, torch.float32) for pattern, padding in product(PATTERNS, PADDINGS)),
    *(case for rule in WITH_ALL_PATTERNS[1:] for case in by_turns(rule, torch.float32)),
    *(Case(rule, "causal", "ragged", torch.float32) for rule in RULES if rule not in WITH_ALL_PATTERNS),
    *(case for rule in ("relu", "relu_exp") for case in by_turns(rule, torch.bfloat16)),
]


@pytest.mark.parametrize(
    ("rule", "heads", "window", "message"),
    [
        ("relu", 2, None, "as many heads of keys as of queries"),
        ("relu", 1, (1, 1), "no window and no offsets"),
        ("relu_rest", 1, None, "a rest is read by the CPU kernel and the reference only"),
    ],
)
def test_what_the_kernels_do_not_read_is_refused(
    rule: str, heads: int, window: tuple[int, int] | None, message: str
) -> None:
    q, k = torch.zeros(1, heads, 4, 8, device=DEVICE), torch.zeros(1, 1, 4, 8, device=DEVICE)
    visibility = Visibility(4, 4, q.device, window=window)
    reason = kernels.refusal("triton", q, k, k, rules.get(rule), visibility, None, False)
    assert reason is not None and message in reason


@pytest.mark.parametrize("case", GRID, ids=str)
def test_the_grid(case: Case) -> None:
    inputs, options = case.tensors()
    out, gradients = cases.run(read, inputs, options)
    expected, expected_gradients = cases.run(specified, cases.in_float64(inputs), options)
    assert out.dtype == case.dtype
    assert error(out, expected, case.dtype) <= TOLERANCE[case.dtype]
    for name, gradient in gradients.items():
        assert error(gradient, expected_gradients[name], case.dtype) <= TOLERANCE[case.dtype], name


def assert_statistics(
    inputs: dict[str, Tensor], options: dict[str, Any], read: cases.Read = read, specified: cases.Read = specified
) -> None:
    stats, gradients = cases.run_stats(read, inputs, options)
    expected, expected_gradients = cases.run_stats(specified, cases.in_float64(inputs), options)
    assert torch.equal(stats.n_visible, expected.n_visible)
    for field in ("row_sum", "entropy", "zero_fraction"):
        got, wanted = getattr(stats, field).detach(), getattr(expected, field).detach()
        assert error(got, wanted, torch.float32) <= TOLERANCE[torch.float32], field
    for name, gradient in gradients.items():
        assert error(gradient, expected_gradients[name], torch.float32) <= ENTROPY_GRADIENT_TOLERANCE, name


STATISTICS = [
    *by_turns("relu", torch.float32),
    *(Case(rule, "causal", "ragged", torch.float32) for rule in RULES if rule not in ("relu", "relu_plain", "rela")),
]


@pytest.mark.parametrize("case", STATISTICS, ids=str)
def test_statistics_and_their_gradients(case: Case) -> None:
    assert_statistics(*case.tensors())


def memory(queries: int, slots: int, width: int, value_width: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (2, 1, queries, width), "k": (2, 1, slots, width), "v": (2, 1, slots, value_width)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def assert_same(
    inputs: dict[str, Tensor], options: dict[str, Any], read: cases.Read = read, specified: cases.Read = specified
) -> None:
    out, gradients = cases.run(read, inputs, options)
    expected, expected_gradients = cases.run(specified, cases.in_float64(inputs), options)
    assert error(out, expected, torch.float32) <= TOLERANCE[torch.float32]
    for name, gradient in gradients.items():
        assert gradient.shape == inputs[name].shape
        assert error(gradient, expected_gradients[name], torch.float32) <= TOLERANCE[torch.float32], name


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "tile_of", lambda kernel, width, dtype: triton.Tile(16, 32, stages=1, warps=4))


@pytest.mark.parametrize(
    ("rule", "queries", "slots", "causal"),
    [("relu", 35, 75, True), ("sigmoid", 40, 70, False), ("relu_exp", 35, 75, True)],
    ids=["causal", "cross", "centred"],
)
def test_many_tiles(small_tiles: None, rule: str, queries: int, slots: int, causal: bool) -> None:
    inputs = memory(queries, slots, 10, 7)
    inputs["bias"] = torch.linspace(-1, 1, slots).expand(2, 1, 1, slots).clone()
    key_mask = torch.arange(slots) < torch.tensor([slots, slots - 33])[:, None]
    options = dict(rule=rule, causal=causal, key_mask=key_mask)
    assert_same(inputs, options)
    assert_statistics(inputs, options)


def test_tiles_above_the_diagonal_are_not_visited(small_tiles: None) -> None:
    inputs = memory(64, 64, 8, 8)
    inputs["v"][:, :, 32:] = torch.nan  # times a weight of zero it would still be NaN
    out, gradients = cases.run(read, inputs, {"causal": True})
    assert torch.isfinite(out[:, :, :32]).all()
    assert torch.isfinite(gradients["q"][:, :, :32]).all()
    assert out[:, :, 32:].isnan().all()


@pytest.mark.parametrize("width", [1, 33, 256])
def test_widths_of_a_head(width: int) -> None:
    assert_same(memory(5, 9, width, 257 - width), {"causal": True})


def test_half_precision() -> None:
    inputs = {name: tensor.half() for name, tensor in memory(9, 20, 16, 16).items()}
    out, gradients = cases.run(read, inputs, {"rule": "relu"})
    expected, expected_gradients = cases.run(specified, cases.in_float64(inputs), {"rule": "relu"})
    assert out.dtype == torch.float16
    # eight times as fine as bfloat16, so an eighth of its tolerance
    tolerance = TOLERANCE[torch.bfloat16] / 8
    assert error(out, expected, torch.bfloat16) <= tolerance
    for name, gradient in gradients.items():
        assert error(gradient, expected_gradients[name], torch.bfloat16) <= tolerance, name


@pytest.mark.parametrize("shape", [(9,), (1, 1, 1, 1), (1, 3, 1, 9), (2, 1, 1, 9)], ids=str)
def test_a_bias_of_the_slots_in_every_shape(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = {name: torch.randn(2, 3, n, 8, generator=generator) for name, n in (("q", 5), ("k", 9), ("v", 9))}
    assert_same(inputs | {"bias": torch.randn(shape, generator=generator)}, {"rule": "relu2"})


@pytest.mark.parametrize("shape", [(5, 1), (1, 3, 5, 1), (2, 1, 5, 1)], ids=str)
def test_a_bias_of_the_rows_in_every_shape(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = {name: torch.randn(2, 3, n, 8, generator=generator) for name, n in (("q", 5), ("k", 9), ("v", 9))}
    assert_same(inputs | {"bias": torch.randn(shape, generator=generator)}, {"rule": "relu2"})


def of_rows_and_slots(read: cases.Read) -> cases.Read:
    """`read` with a bias of the rows and of the slots, one behind the other in a single leaf."""

    def with_both(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, **options: Any) -> Any:
        return read(q, k, v, bias=RowKeyBias(bias[..., : q.size(2)], bias[..., q.size(2) :]), **options)

    return with_both


@pytest.mark.parametrize(
    ("rule", "causal"),
    [("relu", True), ("sigmoid", False), (rules.ReluExp().core, True)],
    ids=["relu", "sigmoid", "divided"],
)
def test_biases_of_rows_and_slots_with_their_gradients(small_tiles: None, rule: str | rules.Rule, causal: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = {name: torch.randn(2, 2, n, 8, generator=generator) for name, n in (("q", 20), ("k", 37), ("v", 37))}
    inputs["bias"] = torch.randn(2, 2, 20 + 37, generator=generator)
    key_mask = torch.arange(37) < torch.tensor([37, 21])[:, None]
    options = dict(rule=rule, causal=causal, key_mask=key_mask)
    both = of_rows_and_slots(read), of_rows_and_slots(specified)
    assert_same(inputs, options, *both)
    assert_statistics(inputs, options, *both)


@pytest.mark.parametrize("bias", [None, "of a frozen row", "of a row"])
def test_the_gradient_of_the_rows_is_computed_where_it_is_needed(
    bias: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: dict[str, Any] = {}
    launch = triton.KernelArguments.launch
    monkeypatch.setattr(
        triton.KernelArguments,
        "launch",
        lambda self, kernel, *outputs, **own: launched.update({kernel: own}) or launch(self, kernel, *outputs, **own),
    )
    rows = None if bias is None else torch.ones(5, 1, requires_grad=bias == "of a row")
    inputs = memory(5, 9, 8, 8)
    read(inputs["q"].requires_grad_(), inputs["k"], inputs["v"], bias=rows).sum().backward()
    assert launched["differentiate_rows"] == {"WITH_D_SHIFT": bias == "of a row"}


def test_strides_do_not_matter() -> None:
    inputs = memory(6, 6, 8, 8)
    turned = {name: tensor.transpose(2, 3).contiguous().transpose(2, 3) for name, tensor in inputs.items()}
    split = {
        name: tensor.expand(2, 3, -1, -1).transpose(1, 2).contiguous().transpose(1, 2)
        for name, tensor in inputs.items()
    }
    expected = read(**inputs)
    assert torch.equal(read(**turned), expected)
    assert torch.equal(read(**split), expected.expand(2, 3, -1, -1))


@pytest.mark.parametrize("rule", ["relu", "relu_exp"])
@pytest.mark.parametrize(("queries", "slots"), [(3, 0), (0, 3)])
def test_nothing_to_read(queries: int, slots: int, rule: str) -> None:
    inputs = memory(queries, slots, 8, 6)
    out, gradients = cases.run(read, inputs, {"rule": rule})
    assert torch.equal(out, torch.zeros(2, 1, queries, 6))
    assert all(torch.equal(gradient, torch.zeros_like(inputs[name])) for name, gradient in gradients.items())


@pytest.mark.parametrize("rule", ["relu", "relu_exp"])
def test_the_same_bits_every_time(small_tiles: None, rule: str) -> None:
    first, second = (cases.run(read, memory(40, 40, 8, 8), {"rule": rule, "causal": True}) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(first[1][name], second[1][name]) for name in ("q", "k", "v"))


@dataclass(frozen=True)
class Damped(rules.ReluPlain):
    """A user's rule: its own row scale on a known activation."""

    name: ClassVar[str] = "damped"

    def row_scale(self, n: Tensor) -> Tensor:
        return n**-0.7 / 3

    def formula(self) -> rules.Formula:
        return rules.Formula("relu", factor=1 / 3, exponent=0.7)


@pytest.mark.parametrize(
    "rule", [Damped(), rules.ReluNorm(), rules.ReluNorm(delta=0.25), rules.ReluExp().core], ids=repr
)
def test_rules_of_a_known_form(rule: rules.Rule) -> None:
    inputs = memory(9, 12, 8, 8)
    options = {"rule": rule, "causal": True, "key_mask": torch.arange(12) < torch.tensor([[12], [0]])}
    assert_same(inputs, options)
    assert_statistics(inputs, options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"rule": "softmax"},
            r"impl='triton' cannot read rule 'softmax' .* not one of its formulas; .*impl='auto'",
        ),
        ({"mask": torch.ones(5, 5, dtype=torch.bool)}, "a dense mask is given"),
        ({"bias": torch.zeros(5, 5)}, r"bias has shape \(5, 5\); it must be .* a RowKeyBias; use impl='auto'"),
        ({"rule": "relu_exp", "mask": torch.ones(5, 5, dtype=torch.bool)}, "a dense mask is given"),
    ],
)
def test_what_it_cannot_read(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read(**memory(5, 5, 8, 8), **options)


def test_tensors_it_cannot_read() -> None:
    with pytest.raises(ArgumentError, match="a head is 300 wide; at most 256 fit"):
        read(**memory(2, 2, 300, 8))
    with pytest.raises(ArgumentError, match=r"torch\.float64"):
        read(**cases.in_float64(memory(2, 2, 8, 8)))


def test_a_machine_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton.unavailable() is None
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "TRITON_INTERPRET=1" in str(triton.unavailable())
    monkeypatch.setattr(triton, "INSTALLED", False)
    assert "pip install 'reluformer[triton]'" in str(triton.unavailable())


@pytest.mark.parametrize(("statistics", "shifted"), [(False, False), (True, False), (True, True)])
def test_the_operator_keeps_the_rules_of_torch_library(
    statistics: bool, shifted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # opcheck allocates meta tensors, which cannot be poisoned
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    q, k, v = (tensor.to(DEVICE).requires_grad_() for tensor in memory(5, 7, 8, 6).values())
    bias, factor = torch.zeros(2, 1, 7, device=DEVICE, requires_grad=True), torch.ones(2, 5, device=DEVICE)
    shift = torch.zeros(2, 1, 5, device=DEVICE, requires_grad=shifted)
    mask = torch.ones(2, 7, dtype=torch.bool, device=DEVICE)
    options = (0.5, 0, 2, statistics, statistics, False)
    operator = torch.ops.reluformer.triton_read.default
    checked = torch.library.opcheck(operator, (q, k, v, mask, bias, factor, shift, *options))
    assert set(checked.values()) == {"SUCCESS"}


@pytest.mark.parametrize("rule", ["relu", "relu_exp"])
def test_compiled_and_exported(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")

    class Reads(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            visibility = Visibility(q.size(2), k.size(2), q.device, True)
            return kernels.run("triton", q, k, v, rules.get(rule), visibility, None, 0.5, False)[0]

    q, k, v = (tensor.to(DEVICE).requires_grad_() for tensor in memory(5, 7, 8, 6).values())
    expected = Reads()(q, k, v)
    compiled = torch.compile(Reads(), fullgraph=True, backend="aot_eager")(q, k, v)
    assert torch.equal(compiled, expected)
    gradients = [torch.autograd.grad(out.sum(), (q, k, v)) for out in (compiled, expected)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    exported = torch.export.export(Reads(), (q.detach(), k.detach(), v.detach()))
    assert torch.equal(exported.module()(q, k, v), expected)


def test_triton_is_not_loaded_before_a_read() -> None:
    code = "import sys, reluformer.kernels.triton; sys.exit('triton' in sys.modules)"
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=variables, check=False).returncode == 0


@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_a_gradient_of_a_gradient(rule: str, stats: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 2, 9, 4, generator=generator, dtype=torch.float64) for _ in range(4)]
    products = []
    for impl, dtype in (("triton", torch.float32), ("reference", torch.float64)):
        *leaves, along = (tensor.to(dtype) for tensor in tensors)
        leaves = [leaf.requires_grad_() for leaf in leaves]
        out, row = read(*leaves, rule=rule, causal=True, impl=impl, return_stats=True)
        loss = out.square().sum() + (row.row_sum.square().sum() if stats else 0)
        slopes = torch.autograd.grad(loss, leaves, create_graph=True)
        products.append(torch.autograd.grad(sum((slope * along).sum() for slope in slopes), leaves))
    for got, wanted in zip(*products, strict=True):
        assert float((got - wanted).abs().max()) <= 1e-4 * max(1.0, float(wanted.abs().max()))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by PyTorch itself
def test_a_transform_is_refused() -> None:
    q = torch.randn(1, 2, 9, 4)
    with pytest.raises(ArgumentError, match=r"it has no rules for the transforms of torch\.func"):
        torch.func.jvp(lambda x: read(x, x, x), (q,), (q,))
