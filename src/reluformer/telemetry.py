"""What the memories of a model do while it trains, per layer and head.

At every k-th step hooks look at a few rows of each read, without gradient, and are taken
off again: the steps between pay nothing, and the read itself goes through the same fast
path whether it is watched or not.

    telemetry = Telemetry(model, every=100)
    with telemetry.watch(step, {"encoder": source_mask, "decoder": target_mask}):
        output = model(source, target, source_mask)
    telemetry.latest                      # {"encoder.0.attention": ReadTelemetry(...), ...}
    loss.backward()
    telemetry.look_at_gradients()         # adds them to `latest`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from reluformer import memory
from reluformer.errors import ArgumentError
from reluformer.kernels import RowKeyBias, Visibility
from reluformer.kernels.reference import RowStats, row_stats
from reluformer.layers import Attention, FeedForward, Sublayer, TokenRead, TokenSlots

ONE_IN = 500
"""The heaviest slots of a row are one in so many, 0.2 %; where a row has fewer slots, their mass says little."""


@dataclass(frozen=True)
class ReadTelemetry:
    """One memory at one step. Lists have an entry for each head (a single one for an FFN)."""

    rule: str
    slots: float
    """Visible slots, mean over rows."""
    read_variance: list[float]
    output_variance: float
    """Of the sublayer's output, which is added to the residual stream."""
    residual_variance: float
    zero_fraction: list[float]
    entropy: list[float]
    """Over live rows."""
    row_sum: list[float]
    dead: list[float]
    margin_active: list[float]
    """Share of the live rows whose entropy exceeds 0.7 log n."""
    anisotropy: list[float]
    """Mean cosine between two different values."""
    top_mass: list[float] | None
    """Share of the row's sum on the top 0.2 % of the slots; None below 500 slots."""
    dead_by_position: dict[str, float]
    """Returns the share of dead rows at positions 0, 1, 2-3, 4-7, ..."""
    query_gradient: list[float] | None = None
    """Norm of the gradient of the weights that make the queries; None for an FFN, whose queries are not made, and where
    gradients were not looked at, as with the other two."""
    key_gradient: list[float] | None = None
    value_gradient: list[float] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class _Seen:
    """What the hooks collect of one sublayer."""

    residual_variance: float = 0.0
    output_variance: float = 0.0
    fields: dict[str, Any] = field(default_factory=dict)


class Telemetry:
    """Watches every memory of `model` at every `every`-th step, on about `rows` rows each."""

    def __init__(self, model: nn.Module, every: int = 100, rows: int = 64, seed: int = 0) -> None:
        if every < 1 or rows < 1:
            raise ArgumentError(f"every and rows must be at least 1, got every={every}, rows={rows}")
        self.every = every
        self.rows = rows
        self.seed = seed
        self.latest: dict[str, ReadTelemetry] = {}
        self.step: int | None = None
        self._sublayers = {name: module for name, module in model.named_modules() if isinstance(module, Sublayer)}

    @contextmanager
    def watch(self, step: int, row_masks: Mapping[str, Tensor | None] | None = None) -> Iterator[None]:
        """Watches the forward pass inside the block, if `step` is due.

        Args:
            step: The number of the update.
            row_masks: Masks (B, T) of the real queries by part of the model, e.g. "encoder"; None = no padding.
        """
        if step % self.every:
            yield
            return
        generator = torch.Generator().manual_seed(self.seed + step)
        seen = {name: _Seen() for name in self._sublayers}
        handles = []
        for name, sublayer in self._sublayers.items():
            rows_mask = next((mask for part, mask in (row_masks or {}).items() if f"{part}." in name), None)
            handles += self._hooks(sublayer, seen[name], rows_mask, generator)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self.step = step
        self.latest = {
            name: ReadTelemetry(
                residual_variance=found.residual_variance, output_variance=found.output_variance, **found.fields
            )
            for name, found in seen.items()
            if found.fields
        }

    def look_at_gradients(self) -> None:
        """Add the norms of the gradients to `latest`, after the backward pass; of sharded ones nothing is known."""
        for name, read in self.latest.items():
            query, key, value = _gradient_norms(self._sublayers[name].layer)
            self.latest[name] = replace(read, query_gradient=query, key_gradient=key, value_gradient=value)

    def _hooks(
        self, sublayer: Sublayer, seen: _Seen, rows_mask: Tensor | None, generator: torch.Generator
    ) -> list[torch.utils.hooks.RemovableHandle]:
        def residual(module: nn.Module, args: tuple[Any, ...]) -> None:
            seen.residual_variance = _variance(_some(args[0], rows_mask))

        def output(module: nn.Module, args: tuple[Any, ...], result: tuple[Tensor, Any]) -> None:
            seen.output_variance = _variance(_some(result[0], rows_mask))

        def token_read(module: nn.Module, args: tuple[Any, ...], result: tuple[Tensor, Any]) -> None:
            assert isinstance(module, TokenRead)
            seen.fields = self._token_read(module, args[0], args[1], result[0], rows_mask, generator)

        def learned_read(module: nn.Module, args: tuple[Any, ...], result: tuple[Tensor, Any]) -> None:
            assert isinstance(module, FeedForward)
            seen.fields = self._learned_read(module, args[0], result[0], rows_mask, generator)

        layer = sublayer.layer
        handles = [
            sublayer.register_forward_pre_hook(_without_grad(residual)),
            layer.register_forward_hook(_without_grad(output)),
        ]
        if isinstance(layer, Attention):
            handles.append(layer.read.register_forward_hook(_without_grad(token_read)))
        else:
            handles.append(layer.register_forward_hook(_without_grad(learned_read)))
        return handles

    def _token_read(
        self,
        module: TokenRead,
        q: Tensor,
        slots: TokenSlots,
        read: Tensor,
        rows_mask: Tensor | None,
        generator: torch.Generator,
    ) -> dict[str, Any]:
        """Returns the weights of sampled rows against the slots of their own batch items."""
        batch, heads, queries, _ = q.shape
        keys, values, key_mask = slots.keys, slots.values, slots.mask
        items = torch.randperm(batch, generator=generator)[: max(1, self.rows // 16)].to(q.device)
        uniform = torch.randperm(queries, generator=generator)[:16]
        positions = torch.cat([uniform, _log_spaced(queries)]).to(q.device)
        real = torch.ones(len(items), len(positions), dtype=torch.bool, device=q.device)
        if rows_mask is not None:
            real = rows_mask[items][:, positions]
        mask = gate = None
        if module.causal or module.window is not None or slots.offsets is not None:
            seen = Visibility(
                queries, keys.size(2), q.device, module.causal, window=module.window, offsets=slots.offsets
            )
            begin, end = (edge[positions, None] for edge in seen.ranges())
            slot = torch.arange(keys.size(2), device=q.device)
            mask = (slot >= begin) & (slot < end)
        if slots.gate is not None:
            sums = slots.gate[items].float()
            gate = RowKeyBias(sums[:, :, positions + keys.size(2) - queries], -sums)
        weights, stats = memory.weights(
            q[items][:, :, positions].float(),
            keys[items].float(),
            module.rule,
            key_mask=None if key_mask is None else key_mask[items],
            mask=mask,
            bias=module.bias,
            gate=gate,
            sink=module.sink,
            scale=module.scale,
        )
        sampled = real.clone()
        sampled[:, len(uniform) :] = False  # the log-spaced ones only tell where rows die
        fields = read_summary(weights, stats, sampled, module.rule.name)
        fields["read_variance"] = [_variance(_some(read[:, head], rows_mask)) for head in range(heads)]
        fields["dead_by_position"] = _dead_by_position(stats.dead, real, positions)
        fields["anisotropy"] = anisotropy(values[items].float(), None if key_mask is None else key_mask[items])
        return fields

    def _learned_read(
        self, module: FeedForward, x: Tensor, out: Tensor, rows_mask: Tensor | None, generator: torch.Generator
    ) -> dict[str, Any]:
        rows = _some(x, rows_mask)
        rows = rows[torch.randperm(len(rows), generator=generator)[: self.rows].to(x.device)]
        weights = module.weights(rows).float()[None, None]  # (1, 1, rows, slots)
        n_visible = torch.full((1,), module.slots, device=x.device)
        stats = row_stats(weights, None, n_visible)
        sampled = torch.ones(1, weights.size(2), dtype=torch.bool, device=x.device)
        fields = read_summary(weights, stats, sampled, module.rule.name)
        fields["read_variance"] = [_variance(_some(out, rows_mask))]
        fields["dead_by_position"] = {}
        fields["anisotropy"] = anisotropy(module.values.weight.t()[None, None].float(), None)
        return fields


def _without_grad(hook: Callable[..., None]) -> Callable[..., None]:
    def quiet(*args: Any) -> None:
        with torch.no_grad():
            hook(*args)

    return quiet


def _gradient_norms(layer: Attention | FeedForward) -> tuple[list[float] | None, ...]:
    """Returns the norms of the gradients into queries, keys and values, head by head."""
    if isinstance(layer, FeedForward):
        return None, _norms(layer.keys.weight, 1), _norms(layer.values.weight, 1)
    both = _norms(layer.key_value.weight, 2 * layer.key_heads)
    key, value = (None, None) if both is None else (both[: layer.key_heads], both[layer.key_heads :])
    return _norms(layer.query.weight, layer.heads), key, value


def _norms(weight: Tensor, parts: int) -> list[float] | None:
    gradient = weight.grad
    if type(gradient) is not Tensor:  # none, or spread over processes
        return None
    return [float(norm) for norm in gradient.float().reshape(parts, -1).norm(dim=1)]


def _some(x: Tensor, mask: Tensor | None) -> Tensor:
    """Returns at most 4 items of (B, T, D), their real rows only: (rows, D)."""
    x = x[:4].detach()
    return x.reshape(-1, x.size(-1)) if mask is None else x[mask[:4]]


def _variance(x: Tensor) -> float:
    return float(x.float().var(correction=0)) if x.numel() else math.nan


def _log_spaced(length: int) -> Tensor:
    """Returns the positions 0, 1, 2, 4, 8, ... below `length`."""
    return torch.tensor([p for p in (0, *(2**i for i in range(31))) if p < length], dtype=torch.long)


def _per_head(x: Tensor, rows: Tensor) -> list[float]:
    """Returns the mean over the chosen rows of x (B, H, T) for each head; nan where none is chosen."""
    rows = rows.expand(x.shape)
    count = rows.sum((0, 2))
    total = torch.where(rows, x.float(), 0.0).sum((0, 2))
    return [float(t) / int(c) if c else math.nan for t, c in zip(total, count, strict=True)]


def read_summary(weights: Tensor, stats: RowStats, real: Tensor, rule: str) -> dict[str, Any]:
    """Returns means over the real rows (B, T) of weights (B, H, T, Tk), head by head."""
    rows = real[:, None, :]
    live = rows & ~stats.dead
    margin = stats.entropy > 0.7 * stats.n_visible.clamp_min(1).log()
    slots = _per_head(stats.n_visible, rows)[0]
    top_mass = None
    if weights.size(-1) >= ONE_IN:
        top = weights.topk(math.ceil(weights.size(-1) / ONE_IN), dim=-1).values.cumsum(-1)
        last = (stats.n_visible.long().clamp_min(1) - 1) // ONE_IN  # of ceil(n / ONE_IN)
        share = top.gather(-1, last[..., None]).squeeze(-1) / stats.row_sum.clamp_min(1e-12)
        top_mass = _per_head(share, live & (stats.n_visible >= ONE_IN))
    return {
        "rule": rule,
        "slots": slots,
        "zero_fraction": _per_head(stats.zero_fraction, rows),
        "entropy": _per_head(stats.entropy, live),
        "row_sum": _per_head(stats.row_sum, live),
        "dead": _per_head(stats.dead, rows),
        "margin_active": _per_head(margin, live),
        "top_mass": top_mass,
    }


def _dead_by_position(dead: Tensor, real: Tensor, positions: Tensor) -> dict[str, float]:
    """Returns the share of dead rows by position, in buckets that double."""
    shares = {}
    low, high = 0, 1
    while low <= int(positions.max() if len(positions) else -1):
        inside = real & ((positions >= low) & (positions < high))
        if inside.any():
            share = dead.float().mean(1)[inside].mean()
            shares[str(low) if high == low + 1 else f"{low}-{high - 1}"] = float(share)
        low, high = high, 2 * high
    return shares


def anisotropy(values: Tensor, mask: Tensor | None) -> list[float]:
    """Returns the mean cosine of two different values of one item, (B, H, n, d) -> one number a head."""
    unit = nn.functional.normalize(values, dim=-1)
    n = torch.full((values.size(0), 1), values.size(2), device=values.device)
    if mask is not None:
        unit = unit * mask[:, None, :, None]
        n = mask.sum(-1, keepdim=True)
    pairs = (n * (n - 1)).clamp_min(1)
    cosine = (unit.sum(2).square().sum(-1) - n) / pairs  # (B, H)
    return [float(c) for c in cosine.mean(0)]
