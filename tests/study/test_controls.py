"""The controls are softmax and one factor, and ReLU and one norm."""

from __future__ import annotations

import torch

from reluformer import rules
from reluformer.layers import FeedForward, LearnedScale
from reluformer.study.controls import ReluLN, SoftmaxScaled, SoftmaxSqrt


def test_softmax_times_the_root_of_the_visible_slots() -> None:
    scores, visible = torch.randn(2, 5), torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    n = visible.sum(-1, keepdim=True).float()
    softmax = rules.get("softmax")
    expected = softmax.weights(scores, n, visible) * n.sqrt()
    torch.testing.assert_close(SoftmaxSqrt().weights(scores, n, visible), expected)
    torch.testing.assert_close(SoftmaxSqrt().weights(scores, n, None).sum(-1), n.sqrt().squeeze(-1))


def test_a_learned_scale_starts_as_softmax_and_is_learned() -> None:
    torch.manual_seed(0)
    layer = FeedForward(8, 16, SoftmaxScaled())
    x = torch.randn(3, 8)
    plain = layer.values(layer.rule.weights(layer.keys(x), torch.tensor(16.0), None))
    torch.testing.assert_close(layer(x)[0], plain)
    layer(x)[0].square().sum().backward()
    assert isinstance(layer.norm, LearnedScale)
    assert layer.norm.log_scale.grad is not None and layer.norm.log_scale.grad != 0
    with torch.no_grad():
        layer.norm.log_scale.fill_(1.0)
    torch.testing.assert_close(layer(x)[0], plain * torch.e)


def test_relu_with_a_norm_is_the_plain_layer_and_a_norm() -> None:
    torch.manual_seed(0)
    layer = FeedForward(8, 16, ReluLN())
    x = torch.randn(3, 8)
    plain = layer.values(torch.relu(layer.keys(x)))
    torch.testing.assert_close(layer(x)[0], torch.nn.functional.layer_norm(plain, (8,)))
