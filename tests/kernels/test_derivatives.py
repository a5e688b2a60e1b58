"""Derivatives beyond the gradient: an implementation gives what the reference gives in float64, or says it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import reluformer as rf
from reluformer import kernels, rules
from reluformer.errors import ArgumentError
from reluformer.kernels import RowKeyBias, Visibility, derivatives, parts
from reluformer.kernels.moments import row_moments
from reluformer.kernels.native.library import native_formula

# PyTorch itself scripts a few functions where it loads its rules of forward mode.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
Function = Callable[[Tensor], Tensor]
FORMULAS = [name for name in rules.names() if rules.formula_of(rules.get(name)) is not None]


def is_compiled(name: str) -> bool:
    formula = rules.formula_of(rules.get(name))
    return formula is not None and native_formula(formula) is not None


COMPILED = [name for name in FORMULAS if is_compiled(name)]
QUERIES, WIDTH = 66, 8  # as many as `auto` needs to take the compiled kernel for every rule, in a causal read


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss_of(rule: str, impl: str, stats: bool = True) -> Function:
    """A scalar function of the tokens x (B, T, 3 d) that depends on the read, its row sums and its entropies."""
    factors = normal(1, 2, 1, QUERIES, WIDTH)

    def loss(x: Tensor) -> Tensor:
        q, k, v = x.unsqueeze(1).chunk(3, dim=-1)
        if not stats:
            out = rf.read(q, k, v, rule=rule, causal=True, impl=impl)
            return (out * factors.to(x.dtype)).sum()
        bias = RowKeyBias(x[:, None, :, 0], x[:, None, :, 1])
        out, row = rf.read(q, k, v, rule=rule, causal=True, bias=bias, impl=impl, return_stats=True)
        weighed = (out * factors.to(x.dtype)).sum() + row.row_sum.square().sum()
        return weighed + row.entropy.square().mean()

    return loss


def hessian_product(loss: Function, x: Tensor, along: Tensor) -> Tensor:
    """The gradient of a gradient, through `create_graph`."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(x), x, create_graph=True)
    (product,) = torch.autograd.grad((slope * along).sum(), x)
    return product


def third_derivative(loss: Function, x: Tensor, along: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(x), x, create_graph=True)
    (curvature,) = torch.autograd.grad((slope * along).sum(), x, create_graph=True)
    return torch.autograd.grad((curvature * along).sum(), x)[0]


def dual(loss: Function, x: Tensor, along: Tensor) -> Tensor:
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(loss(forward_ad.make_dual(x, along))).tangent
        assert tangent is not None
        return tangent


def batch_of_gradients(loss: Function, x: Tensor, along: Tensor) -> Tensor:
    """The backward pass alone under `vmap`."""
    x = x.detach().requires_grad_()
    factors = torch.tensor([1.0, -2.0], dtype=x.dtype)
    return torch.autograd.grad(loss(x), x, factors, is_grads_batched=True)[0]


TRANSFORMS: dict[str, Callable[[Function, Tensor, Tensor], Tensor]] = {
    "jvp": lambda loss, x, along: torch.func.jvp(loss, (x,), (along,))[1],
    "grad": lambda loss, x, along: torch.func.grad(loss)(x),
    "hvp": lambda loss, x, along: torch.func.jvp(torch.func.grad(loss), (x,), (along,))[1],
    "grad of grad": lambda loss, x, along: torch.func.grad(lambda y: (torch.func.grad(loss)(y) * along).sum())(x),
    "vmap": lambda loss, x, along: torch.vmap(loss)(torch.stack([x, along])),
    "vmap of grad": lambda loss, x, along: torch.vmap(torch.func.grad(loss))(torch.stack([x, along])),
    "jacrev": lambda loss, x, along: torch.func.jacrev(loss)(x),
    "dual": dual,
}
GRAPHS = {
    "hessian product": hessian_product,
    "hvp of torch.autograd": lambda loss, x, along: torch.autograd.functional.hvp(loss, x, along)[1],
    "batch of gradients": batch_of_gradients,
}


def assert_like_reference(derivative: Any, rule: str, impl: str, stats: bool = True) -> None:
    x, along = normal(2, 2, QUERIES, 3 * WIDTH), normal(3, 2, QUERIES, 3 * WIDTH)
    wanted = derivative(loss_of(rule, "reference", stats), x, along)
    got = derivative(loss_of(rule, impl, stats), x.float(), along.float())
    assert float(wanted.abs().max()) > 1e-3
    assert float((got - wanted).abs().max()) <= 2e-4 * float(wanted.abs().max())


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("derivative", GRAPHS)
@pytest.mark.parametrize(("rule", "impl"), [(rule, impl) for rule in COMPILED for impl in ("auto", "cpu")])
def test_gradients_of_gradients(rule: str, impl: str, derivative: str, stats: bool) -> None:
    assert_like_reference(GRAPHS[derivative], rule, impl, stats)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("rule", COMPILED)
def test_a_third_derivative(rule: str) -> None:
    assert_like_reference(third_derivative, rule, "cpu", stats=False)


@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("derivative", TRANSFORMS)
@pytest.mark.parametrize("rule", FORMULAS)
def test_transforms_are_right_by_default(rule: str, derivative: str, stats: bool) -> None:
    assert_like_reference(TRANSFORMS[derivative], rule, "auto", stats)


@pytest.mark.parametrize("derivative", [*TRANSFORMS, *GRAPHS])
@pytest.mark.parametrize("rule", [name for name in rules.names() if name not in FORMULAS])
def test_rules_without_a_formula(rule: str, derivative: str) -> None:
    assert_like_reference({**TRANSFORMS, **GRAPHS}[derivative], rule, "auto", stats=False)


@pytest.mark.parametrize("rule", rules.names())
def test_the_reference_against_differences(rule: str) -> None:
    key_mask = torch.arange(9)[None] % 4 != 2

    def read(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return rf.read(q, k, v, rule=rule, impl="reference", causal=True, key_mask=key_mask, scale=1.0)

    inputs = tuple(normal(seed, 1, 2, 9, 4).requires_grad_() for seed in range(3))
    assert torch.autograd.gradcheck(read, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(read, inputs, fast_mode=True)


@pytest.mark.parametrize("rule", ["softmax", "softmax1", "relu_rest"])
def test_weights_that_all_but_vanish_have_a_second_derivative(rule: str) -> None:
    def entropy(x: Tensor) -> Tensor:
        q, k, v = x.unsqueeze(1).chunk(3, dim=-1)
        gate = -(20 * x[:, None, :, 0].sigmoid()).cumsum(-1)
        return rf.read(q, k, v, rule=rule, causal=True, gate=gate, return_stats=True)[1].entropy.sum()

    x, along = normal(2, 2, QUERIES, 3 * WIDTH), normal(3, 2, QUERIES, 3 * WIDTH)
    for kind in (torch.float64, torch.float32):
        assert bool(hessian_product(entropy, x.to(kind), along.to(kind)).isfinite().all())


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("derivative", GRAPHS)
@pytest.mark.parametrize("rule", ["relu", "relu2", "relu_exp", "relu_chance"])
def test_reads_in_blocks_under_a_gate(rule: str, derivative: str, monkeypatch: pytest.MonkeyPatch) -> None:
    length, pruned = 300, []

    def loss_of_gated(impl: str) -> Function:
        factors = normal(1, 1, 2, length, WIDTH)

        def loss(x: Tensor) -> Tensor:
            q, k, v = x.unsqueeze(1).expand(-1, 2, -1, -1).chunk(3, dim=-1)
            gate = -x[:, None, :, 0].sigmoid().cumsum(-1)
            out = rf.read(q, k, v, rule=rule, causal=True, gate=gate, impl=impl, scale=1.0)
            return (out * factors.to(x.dtype)).sum()

        return loss

    blocks = parts.read_blocks
    monkeypatch.setattr(parts, "read_blocks", lambda *arguments: pruned.append(1) or blocks(*arguments))
    x, along = normal(2, 1, length, 3 * WIDTH), normal(3, 1, length, 3 * WIDTH)
    wanted = GRAPHS[derivative](loss_of_gated("reference"), x, along)
    got = GRAPHS[derivative](loss_of_gated("cpu"), x.float(), along.float())
    assert pruned
    assert float((got - wanted).abs().max()) <= 2e-4 * float(wanted.abs().max())

    y = x.float().requires_grad_()
    loss = loss_of_gated("cpu")(y)
    first, again = (torch.autograd.grad(loss, y, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, again)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("derivative", TRANSFORMS)
@pytest.mark.parametrize(("rule", "impl"), [*((rule, "cpu") for rule in COMPILED), ("softmax", "sdpa")])
def test_a_kernel_refuses_transforms(rule: str, impl: str, derivative: str) -> None:
    x = normal(2, 2, QUERIES, 3 * WIDTH).float()
    with pytest.raises(ArgumentError, match=r"it has no (rules for the transforms|forward-mode).*use impl='auto'"):
        TRANSFORMS[derivative](loss_of(rule, impl, stats=impl == "cpu"), x, x)


@pytest.mark.parametrize("impl", ["auto", "sdpa"])
def test_fused_attention_says_what_to_do_for_a_second_derivative(impl: str) -> None:
    x = normal(2, 2, QUERIES, 3 * WIDTH).float()
    with pytest.raises(ArgumentError, match="has no second derivative; pass impl='reference'"):
        hessian_product(loss_of("softmax", impl, stats=False), x, x)


@pytest.mark.parametrize("operand", ["window", "offsets", "gate", "sink", "bias", "key_mask"])
@pytest.mark.parametrize("rule", ["softmax", "softmax1"])
def test_fused_attention_says_it_for_the_operands_of_language_models(rule: str, operand: str) -> None:
    given = {"window": (20, 0), "offsets": torch.tensor([0, 10, QUERIES]), "key_mask": torch.arange(QUERIES)[None] > 3}

    def loss(x: Tensor) -> Tensor:
        q, k, v = x.unsqueeze(1).chunk(3, dim=-1)
        own = {
            "gate": -x[:, None, :, 0].sigmoid().cumsum(-1),
            "sink": x[0, :1, 0],
            "bias": RowKeyBias(x[:, None, :, 0], x[:, None, :, 1]),
        }
        options: dict[str, Any] = {operand: {**given, **own}[operand]}
        return rf.read(q, k, v, rule=rule, causal=True, **options).square().sum()

    x = normal(2, 1, QUERIES, 3 * WIDTH).float()
    with pytest.raises(ArgumentError, match="has no second derivative; pass impl='reference'"):
        hessian_product(loss, x, x)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # linearize names tensors so
@pytest.mark.filterwarnings("ignore:torch.searchsorted")  # vmap copies its input
def test_packed_sequences_where_a_tracer_stands_in_for_numbers() -> None:
    offsets = torch.tensor([[0, 10, 20, QUERIES], [0, 30, 30, QUERIES]])

    def loss(x: Tensor, offsets: Tensor) -> Tensor:
        q, k, v = x.unsqueeze(1).chunk(3, dim=-1)
        return rf.read(q, k, v, offsets=offsets, causal=True).square().sum()

    x, along = normal(2, 1, QUERIES, 3 * WIDTH).float(), normal(3, 1, QUERIES, 3 * WIDTH).float()
    for place in offsets:
        tangent = torch.func.linearize(lambda x: loss(x, place), x)[1](along)  # noqa: B023
        torch.testing.assert_close(tangent, torch.func.jvp(lambda x: loss(x, place), (x,), (along,))[1])  # noqa: B023
    batched = torch.vmap(lambda offsets: loss(x, offsets))(offsets)
    torch.testing.assert_close(batched, torch.stack([loss(x, place) for place in offsets]))


def test_a_first_derivative_with_a_graph_is_no_error() -> None:
    x = normal(2, 2, QUERIES, 3 * WIDTH).float().requires_grad_()
    (slope,) = torch.autograd.grad(loss_of("softmax", "auto", stats=False)(x), x, create_graph=True)
    (plain,) = torch.autograd.grad(loss_of("softmax", "auto", stats=False)(x), x)
    assert torch.equal(slope, plain)


@pytest.mark.usefixtures("kernel")
def test_only_one_input_needs_a_gradient() -> None:
    q, k, v = (normal(seed, 1, 2, QUERIES, WIDTH).float() for seed in range(3))
    v.requires_grad_()
    second = []
    for impl in ("cpu", "reference"):
        out, stats = rf.read(q, k, v, rule="relu", impl=impl, return_stats=True)
        (slope,) = torch.autograd.grad(out.square().sum() + stats.row_sum.sum(), v, create_graph=True)
        second.append(torch.autograd.grad(slope.square().sum(), v)[0])
    torch.testing.assert_close(*second, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_moments_of_rows(causal: bool, masked: bool) -> None:
    key_mask = torch.arange(QUERIES)[None] % 5 > 0 if masked else None
    if key_mask is not None:
        key_mask[:, 0] = True

    def loss(x: Tensor) -> Tensor:
        visibility = Visibility(QUERIES, QUERIES, x.device, causal, key_mask)
        mean, variance = row_moments(x, x, None, visibility, 0.3, True)
        assert variance is not None
        return mean.square().sum() + (variance + 1).log().sum()

    x, along = normal(0, 1, 2, QUERIES, WIDTH), normal(1, 1, 2, QUERIES, WIDTH)
    for derivative in (*GRAPHS.values(), *TRANSFORMS.values()):
        wanted, got = derivative(loss, x, along), derivative(loss, x.float(), along.float())
        assert float((got - wanted).abs().max()) <= 2e-4 * float(wanted.abs().max())


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("rule", ["relu", "relu_exp"])
def test_whoever_watches_operators_sees_them_and_the_same_numbers(rule: str) -> None:
    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: set[str] = set()

        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            self.seen.add(str(function))
            return function(*arguments, **(options or {}))

    def gradient() -> Tensor:
        x = normal(2, 2, QUERIES, 3 * WIDTH).float().requires_grad_()
        loss_of(rule, "cpu", stats=False)(x).backward()
        assert x.grad is not None
        return x.grad

    with Watch() as watch:
        watched = gradient()
    operators = {"reluformer.cpu_read.default", "reluformer.cpu_read_backward.default"}
    centred = {"reluformer.cpu_level.default", "reluformer.cpu_level_backward.default"}
    assert operators | (centred if rule == "relu_exp" else set()) <= watch.seen
    assert torch.equal(watched, gradient())


@pytest.mark.usefixtures("kernel")
def test_training_stays_on_the_compiled_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: Any) -> Any:
        raise AssertionError("the backward pass was computed with dense scores")

    monkeypatch.setattr(derivatives, "gradients", unexpected)
    x = normal(2, 2, QUERIES, 3 * WIDTH).float().requires_grad_()
    for rule in COMPILED:
        loss_of(rule, "cpu")(x).backward()


@pytest.mark.usefixtures("kernel")
def test_a_transform_inside_a_compiled_function() -> None:
    loss = loss_of("relu", "auto", stats=False)
    x = normal(2, 2, QUERIES, 3 * WIDTH).float()
    wanted = torch.func.jvp(loss, (x,), (x,))[1]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x: Tensor) -> Tensor:
        return torch.func.jvp(loss, (x,), (x,))[1]

    torch.testing.assert_close(compiled(x), wanted)


def test_learned_slots_under_forward_mode() -> None:
    """Few rows with many zeros are gathered by the compiled library, which has no derivative at all."""
    scores, values = normal(0, 1, 1024).float() - 2, normal(1, 512, 1024).float()

    def read(scores: Tensor) -> Tensor:
        rule = rules.get("relu_plain")
        return kernels.read_learned(scores, values, rule, value_rows=lambda: values.t().contiguous())

    tangent = torch.func.jvp(read, (scores,), (scores,))[1]
    torch.testing.assert_close(tangent, read(scores))  # homogeneous of degree 1
