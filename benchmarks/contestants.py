"""Ways to compute one attention, for benchmarks/attention.py: ours, PyTorch's, and what one would write oneself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from entmax import entmax15, sparsemax
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import reluformer as rf
from measure import peak_memory
from reluformer.errors import ReluformerError

Read = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LeftOut:
    """Why a contestant does not take part."""

    reason: str


def four_lines(rule: str, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What one would write without this library."""
    scores = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
    n = torch.full((), k.size(2), dtype=q.dtype)
    hidden = None
    if causal:
        hidden = torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu(1)
        n = torch.arange(1, k.size(2) + 1, dtype=q.dtype)[:, None]
    simplex = {"softmax": torch.softmax, "softmax_ln": torch.softmax, "sparsemax": sparsemax, "entmax15": entmax15}
    if rule in simplex:
        low = float("-inf") if rule.startswith("softmax") else -1e4
        scores = scores if hidden is None else scores.masked_fill(hidden, low)
        return simplex[rule](scores, dim=-1) @ v
    pointwise: dict[str, Callable[[Tensor], Tensor]] = {
        "relu_plain": torch.relu,
        "rela": torch.relu,
        "relu": lambda s: torch.relu(s) / (n / 2).sqrt(),
        "relu_seqlen": lambda s: torch.relu(s) / n,
        "relu2": lambda s: torch.relu(s) ** 2 / (1.5 * n).sqrt(),
        "sigmoid": lambda s: torch.sigmoid(s - n.log()),
    }
    weights = pointwise[rule](scores)
    return (weights if hidden is None else weights.masked_fill(hidden, 0)) @ v


FOUR_LINES = ("softmax", "softmax_ln", "relu", "relu_plain", "relu_seqlen", "relu2", "rela", "sigmoid")
FOUR_LINES += ("sparsemax", "entmax15")


def contestant(name: str, rule: str, causal: bool, backward: bool) -> Read | LeftOut:
    """`sdpa`, `flex`, `eager`, `compiled` or `read:IMPL`; the first two compute softmax, whatever the rule."""
    if name == "sdpa":
        return partial(scaled_dot_product_attention, is_causal=causal)
    if name == "flex":
        return _flex(causal, backward)
    if name in ("eager", "compiled"):
        if rule not in FOUR_LINES:
            return LeftOut(f"nobody wrote rule '{rule}' down in four lines")
        eager = partial(four_lines, rule, causal)
        return eager if name == "eager" else torch.compile(eager, dynamic=False)
    return _ours(name.removeprefix("read:"), rule, causal)


@lru_cache
def holds_scores(name: str, rule: str, causal: bool) -> bool:
    """Whether memory grows with queries times slots: seen at a small size."""
    if name in ("eager", "compiled"):
        return True
    read, side = contestant(name, rule, causal, backward=False), 512
    if isinstance(read, LeftOut) or name == "flex":
        return False
    tensors = torch.zeros(3, 1, 1, side, 8)
    return peak_memory(lambda: read(*tensors)) >= side * side * tensors.element_size()


def _ours(impl: str, rule: str, causal: bool) -> Read | LeftOut:
    """`read` with `impl`, if it can do it here."""
    read = partial(rf.read, rule=rule, causal=causal, impl=impl)
    try:
        read(*torch.zeros(3, 1, 1, 2, 8))
    except ReluformerError as refusal:
        return LeftOut(str(refusal))
    return read


def _flex(causal: bool, backward: bool) -> Read | LeftOut:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if backward:
        return LeftOut("FlexAttention has no backward pass on a CPU")
    compiled = torch.compile(flex_attention, dynamic=False)
    if not causal:
        return compiled

    def read(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        key = (q.size(2), k.size(2))
        if key not in masks:  # made once: it belongs to the pattern, not to the read
            masks[key] = create_block_mask(lambda b, h, i, j: i >= j, None, None, *key, device="cpu")
        return compiled(q, k, v, block_mask=masks[key])

    masks: dict[tuple[int, int], object] = {}
    return read
