"""Dense products: oneDNN where it is wider than MKL, PyTorch's own way everywhere else, and the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reluformer.kernels import products

needs_wide = pytest.mark.skipif(not products.available(), reason="MKL serves this processor well")


def operands(*rows: int, width: int = 96, out: int = 160) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(*rows, width), torch.randn(out, width), torch.randn(out)


def close(found: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(found.double(), exact, atol=2e-4, rtol=2e-5)  # sums of up to 2,048 products in float32


@pytest.mark.parametrize("rows", [(300,), (3, 200), (2, 2, 100), (1,), (0,)], ids=str)
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "plain"])
def test_linear_has_the_numbers_and_gradients_of_float64(rows: tuple[int, ...], biased: bool) -> None:
    x, weight, bias = operands(*rows)
    given = [x, weight] + [bias] * biased
    leaves = [t.requires_grad_() for t in given]
    exact = [t.detach().double().requires_grad_() for t in given]
    out, expected = products.linear(*leaves), F.linear(*exact)
    close(out, expected)
    probe = torch.randn(out.shape)
    for found, right in zip(
        torch.autograd.grad(out, leaves, probe), torch.autograd.grad(expected, exact, probe.double()), strict=True
    ):
        close(found, right)


@pytest.mark.parametrize("inner", [64, 2000])
@pytest.mark.parametrize("a_turned", [True, False])
@pytest.mark.parametrize("b_turned", [True, False])
def test_times_takes_matrices_and_their_transposed_views(inner: int, a_turned: bool, b_turned: bool) -> None:
    torch.manual_seed(0)
    a = torch.randn(inner, 300).t() if a_turned else torch.randn(300, inner)
    b = torch.randn(120, inner).t() if b_turned else torch.randn(inner, 120)
    close(products.times(a, b), a.double() @ b.double())
    total = torch.ones(300, 120)
    products.add_times(total, a, b)
    close(total, 1 + a.double() @ b.double())


def test_times_leaves_no_graph_behind() -> None:
    a = torch.randn(300, 100, requires_grad=True)
    with torch.no_grad():
        assert not products.times(a, torch.randn(100, 200)).requires_grad


@needs_wide
@pytest.mark.filterwarnings("ignore:TF32")  # the switch of oneDNN sets all of its options
def test_a_large_product_is_one_of_onednn_and_a_small_one_is_not() -> None:
    x, weight, bias = operands(400)
    assert torch.equal(
        products.linear(x, weight, bias), torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    )
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(products.linear(x, weight, bias), F.linear(x, weight, bias))
    assert torch.equal(products.linear(x[:3], weight, bias), F.linear(x[:3], weight, bias))


def test_second_derivatives_are_right() -> None:
    x, weight, _ = operands(200)
    weight = weight.requires_grad_()

    def curvature(linear, x: Tensor, weight: Tensor) -> Tensor:
        [slope] = torch.autograd.grad(linear(x, weight).square().sum(), weight, create_graph=True)
        return torch.autograd.grad(slope.square().sum() * 1e-6, weight)[0]

    exact = curvature(F.linear, x.double(), weight.detach().double().requires_grad_())
    found = curvature(products.linear, x, weight).double()
    assert ((found - exact).norm() / exact.norm()).item() < 1e-5


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_transforms_of_functions_are_right() -> None:
    x, weight, bias = operands(200)
    tangent = torch.randn_like(x)
    _, moved = torch.func.jvp(lambda x: products.linear(x, weight, bias), (x,), (tangent,))
    close(moved, tangent.double() @ weight.double().t())
    stacked = torch.vmap(lambda x: products.linear(x, weight, bias))(x.view(2, 100, -1))
    close(stacked, F.linear(x.double(), weight.double(), bias.double()).view(2, 100, -1))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        close(
            torch.autograd.forward_ad.unpack_dual(products.linear(dual, weight)).tangent,
            tangent.double() @ weight.double().t(),
        )


def test_gradients_may_be_asked_for_in_a_batch() -> None:
    x, weight, _ = operands(200)
    out = products.linear(x.requires_grad_(), weight)
    probes = torch.randn(3, *out.shape)
    [found] = torch.autograd.grad(out, x, probes, is_grads_batched=True)
    close(found, probes.double() @ weight.double())


def test_autocast_decides_the_precision() -> None:
    x, weight, bias = operands(400)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert products.linear(x, weight, bias).dtype == torch.bfloat16


def test_a_module_keeps_the_state_of_a_linear_layer() -> None:
    torch.manual_seed(0)
    ours = products.Linear(4, 3)
    torch.manual_seed(0)
    theirs = torch.nn.Linear(4, 3)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 4)
    assert torch.equal(ours(x), theirs(x))


def test_nothing_that_is_not_finite_is_lost() -> None:
    x, weight, bias = operands(400)
    x[7, 3] = float("nan")
    out = products.linear(x, weight, bias)
    assert out[7].isnan().all() and out[:7].isfinite().all() and out[8:].isfinite().all()
