"""Queries, keys and values for benchmarks/attention.py: random, or those of a trained run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import reluformer as rf
from reluformer.layers import TokenRead
from reluformer.translation.embedded import generate

Inputs = tuple[Tensor, Tensor, Tensor]
TILE = 64
PATTERNS = ("full", "causal", "cross")


def queries_of(pattern: str, length: int) -> int:
    """A cross read has a quarter as many queries as slots."""
    return max(1, length // 4) if pattern == "cross" else length


def random_inputs(pattern: str, length: int, heads: int, width: int) -> Inputs:
    """Scores of variance one, half of them positive."""
    shapes = [(1, heads, n, width) for n in (queries_of(pattern, length), length, length)]
    q, k, v = (torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(shapes))
    return q, k, v


def embedded_document() -> list[str]:
    """Sentences of the embedded corpus that no training has seen."""
    return [sentence for found in generate(2, split="test", sentences=(8, 16)) for sentence in found.document.src]


class TrainedInputs:
    """What the attention layers of a run see: full = encoder, causal = decoder, cross = decoder to encoder."""

    def __init__(self, run: Path, document: Sequence[str]) -> None:
        translator = rf.load(run)
        captured: dict[str, list[Inputs]] = {pattern: [] for pattern in PATTERNS}
        handles = [
            module.register_forward_pre_hook(_capture(captured[_pattern_of(name)]))
            for name, module in translator.model.named_modules()
            if isinstance(module, TokenRead)
        ]
        targets = translator.translate_documents([document])
        for seen in captured.values():
            seen.clear()  # what the search read does not count
        translator.score([document], targets)
        for handle in handles:
            handle.remove()
        self._layers = {
            pattern: tuple(torch.cat(part, dim=1) for part in zip(*seen, strict=True))
            for pattern, seen in captured.items()
        }
        self.width = self._layers["full"][0].size(-1)
        self.tokens = {pattern: layers[1].size(2) for pattern, layers in self._layers.items()}

    def __call__(self, pattern: str, length: int, heads: int) -> Inputs:
        """`heads` of all layers, evenly chosen; the document is repeated or cropped to `length`."""
        q, k, v = self._layers[pattern]
        chosen = torch.linspace(0, q.size(1) - 1, heads).round().long()
        return (
            _of_length(q[:, chosen], queries_of(pattern, length)),
            _of_length(k[:, chosen], length),
            _of_length(v[:, chosen], length),
        )


def _pattern_of(module: str) -> str:
    if module.startswith("encoder"):
        return "full"
    return "cross" if ".cross." in module else "causal"


def _capture(seen: list[Inputs]) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        q, slots = args[:2]
        seen.append((q.detach().clone(), slots.keys.detach().clone(), slots.values.detach().clone()))

    return hook


def _of_length(x: Tensor, length: int) -> Tensor:
    times = -(-length // x.size(2))
    return x.repeat(1, 1, times, 1)[:, :, :length].contiguous()


@torch.no_grad()
def sparsity(q: Tensor, k: Tensor, causal: bool) -> dict[str, float]:
    """Shares of the visible scores, and of the 64 x 64 tiles with a visible score, that have none above zero."""
    visible = zeros = tiles = empty = 0
    first = k.size(2) - q.size(2)
    for start in range(0, q.size(2), TILE):
        positive = torch.matmul(q[:, :, start : start + TILE], k.transpose(-1, -2)) > 0
        rows = torch.arange(start, start + positive.size(2))
        seen = torch.ones(positive.shape[-2:], dtype=torch.bool)
        if causal:
            seen = torch.arange(k.size(2)) <= rows[:, None] + first
        positive &= seen
        heads = positive.size(0) * positive.size(1)
        visible += int(seen.sum()) * heads
        zeros += int(seen.sum()) * heads - int(positive.sum())
        by_tile = [part.any(-1).any(-1) for part in positive.split(TILE, dim=-1)]
        in_use = [bool(part.any()) for part in seen.split(TILE, dim=-1)]
        tiles += sum(in_use) * heads
        empty += sum(int((~some).sum()) for some, used in zip(by_tile, in_use, strict=True) if used)
    return {"elements": round(zeros / visible, 4), "tiles": round(empty / tiles, 4)}
