"""The two memories of a Transformer, their place in the residual stream, and positions.

`FeedForward` reads learned slots, and `Attention` reads slots made from tokens; both take
any rule. The parameters that a rule asks for live here: its output norm, a learned gamma,
and the offset that a head may learn to add to its scores. Positions are sinusoids added to
embeddings, or rotations of queries and keys. They are computed for the positions at hand,
so a model has no maximum length.

Shapes: B batch, T tokens, H heads, D width, d = D / H.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluformer import kernels, memory
from reluformer.memory import RowStats
from reluformer.rules import OutputNorm, Pointwise, Rule

SublayerOutput = tuple[Tensor, RowStats | None]


class GatedRMSNorm(nn.Module):
    """g * x / RMS(x) * sigmoid(w * x), the norm of rectified linear attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.gate = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * F.rms_norm(x, x.shape[-1:], eps=1e-6) * torch.sigmoid(self.gate * x)


class LearnedScale(nn.Module):
    """exp(g) * x with one learned number g, started at 0: the least that can be done about a small read."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.log_scale.exp()


_OUTPUT_NORMS: dict[OutputNorm | None, Callable[[int], nn.Module]] = {
    None: lambda width: nn.Identity(),
    "layer_norm": nn.LayerNorm,
    "gated_rms_norm": GatedRMSNorm,
    "learned_scale": LearnedScale,
}


class FeedForward(nn.Module):
    """A read of learned slots: rule(x K^T + b) V + c.

    `memory.read` with scale 1 and the key bias is the specification. Training goes through it where the compiled kernel
    is faster, as it touches only slots that fired; everything else is two dense products.

    Args:
        width: width of the tokens, D.
        slots: number of learned slots.
        rule: how scores become weights.
        bias: whether keys and values have a bias; by default those of pointwise rules have.
        value_std: standard deviation of the initial values; see `default_value_std`.

    Example:
        >>> from reluformer import rules
        >>> out, stats = FeedForward(8, 32, rules.get("relu"))(torch.zeros(2, 5, 8))
        >>> out.shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self, width: int, slots: int, rule: Rule, bias: bool | None = None, value_std: float | None = None
    ) -> None:
        super().__init__()
        self.rule = rule
        self.slots = slots
        pointwise = isinstance(rule, Pointwise)
        bias = pointwise if bias is None else bias
        self.keys = nn.Linear(width, slots, bias=bias)
        self.values = nn.Linear(slots, width, bias=bias)
        self.norm = _OUTPUT_NORMS[rule.output_norm](width)
        self.value_std = self.default_value_std(rule, slots) if value_std is None else value_std
        self._rows: tuple[tuple[int, int], Tensor] | None = None
        self.reset_parameters()

    @staticmethod
    def default_value_std(rule: Rule, slots: int) -> float:
        """Return the deviation that gives pointwise rules a read of variance one, and others the plain FFN's values."""
        return 1 / math.sqrt(rule.read_variance(slots)) if isinstance(rule, Pointwise) else math.sqrt(2 / slots)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.keys.weight, std=self.keys.in_features**-0.5)
        nn.init.normal_(self.values.weight, std=self.value_std)
        for linear in (self.keys, self.values):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def weights(self, x: Tensor) -> Tensor:
        """Return the weight of each slot for x (..., T, D), as (..., T, slots); for telemetry and tests."""
        n = torch.full((), float(self.slots), dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
        return self.rule.weights(self.keys(x), n, None)

    def forward(self, x: Tensor) -> SublayerOutput:
        """Read the slots for each of x (..., T, D); there are no row statistics."""
        if self._learns_sparsely(x):
            return self.norm(self._sparse_read(x)), None
        matrix = self.values.weight
        needs_gradient = self.training or (torch.is_grad_enabled() and matrix.requires_grad)
        rows = None if needs_gradient or matrix.is_inference() else self._value_rows
        read = memory.read_learned(self.keys(x), matrix, self.rule, bias=self.values.bias, value_rows=rows)
        return self.norm(read), None

    def _learns_sparsely(self, x: Tensor) -> bool:
        """Return whether the kernel reads x: in training, and if nobody has replaced or watches the two matrices."""
        if not (self.training and torch.is_grad_enabled() and self.keys.weight.requires_grad):
            return False
        for matrix in (self.keys, self.values):
            if type(matrix) is not nn.Linear or matrix._forward_hooks or matrix._forward_pre_hooks:
                return False
        if not self.keys.weight.dtype == self.values.weight.dtype == x.dtype:
            return False
        return kernels.learning_pays(x, self.slots, self.rule)

    def _sparse_read(self, x: Tensor) -> Tensor:
        """Read x (..., D) as one long sequence of a single head."""
        q, k, v = (tensor[None, None] for tensor in (x.flatten(0, -2), self.keys.weight, self.values.weight.t()))
        read = memory.read(q, k, v, self.rule, bias=self.keys.bias, scale=1.0, impl="cpu").view(x.shape)
        return read if self.values.bias is None else read + self.values.bias

    def _value_rows(self) -> Tensor:
        """Return the values as rows: a transposed copy of the matrix, kept until the matrix changes.

        A write through `.data` goes unseen; `eval()` after it makes the copy anew.
        """
        matrix = self.values.weight.detach()
        state = (matrix.data_ptr(), matrix._version)
        if self._rows is None or self._rows[0] != state:
            self._rows = (state, matrix.t().contiguous())
        return self._rows[1]

    def train(self, mode: bool = True) -> FeedForward:
        self._rows = None
        return super().train(mode)


class TokenSlots(NamedTuple):
    """Keys and values made from tokens, (B, H, T, d) each, and which of them are visible."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None = None  # (B, T)


class SlotCache:
    """The slots of a growing prefix, written into buffers that double when they are full."""

    def __init__(self) -> None:
        self.length = 0
        self._buffers: list[Tensor] = []

    def append(self, new: TokenSlots) -> TokenSlots:
        """Add the slots of the newest tokens, and return all slots so far."""
        needed = self.length + new.keys.size(2)
        if not self._buffers or needed > self._buffers[0].size(2):
            self._grow(new, capacity=max(16, 2 * needed))
        for buffer, part in zip(self._buffers, (new.keys, new.values), strict=True):
            buffer[:, :, self.length : needed] = part
        self.length = needed
        return self.slots

    @property
    def slots(self) -> TokenSlots:
        """All slots so far."""
        keys, values = (buffer[:, :, : self.length] for buffer in self._buffers)
        return TokenSlots(keys, values)

    def _grow(self, new: TokenSlots, capacity: int) -> None:
        old = [buffer[:, :, : self.length] for buffer in self._buffers]
        self._buffers = [part.new_empty(*part.shape[:2], capacity, part.size(3)) for part in (new.keys, new.values)]
        for buffer, kept in zip(self._buffers, old, strict=False):
            buffer[:, :, : self.length] = kept

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order: how beam search follows its beams."""
        for i, buffer in enumerate(self._buffers):
            kept = buffer.new_empty(rows.numel(), *buffer.shape[1:])
            kept[:, :, : self.length] = buffer[:, :, : self.length].index_select(0, rows)
            self._buffers[i] = kept


class TokenRead(nn.Module):
    """`memory.read` as a module: the one place where attention reads, so hooks can watch it.

    `offset` (H) is what each head adds to all of its scores: where its threshold lies. It is
    a bias common to all slots, which every implementation of `read` takes.
    """

    def __init__(self, rule: Rule, causal: bool, offset: nn.Parameter | None = None) -> None:
        super().__init__()
        self.rule = rule
        self.causal = causal
        self.offset = offset

    @property
    def bias(self) -> Tensor | None:
        """The offset as a bias of scores, (1, H, 1, 1)."""
        return None if self.offset is None else self.offset[None, :, None, None]

    def forward(self, q: Tensor, slots: TokenSlots, stats: bool = False) -> SublayerOutput:
        keys, values, key_mask = slots
        if stats:
            return memory.read(
                q, keys, values, self.rule, causal=self.causal, key_mask=key_mask, bias=self.bias, return_stats=True
            )
        return memory.read(q, keys, values, self.rule, causal=self.causal, key_mask=key_mask, bias=self.bias), None


class Attention(nn.Module):
    """A read of slots made from tokens: its own (self, causal) or another sequence's (cross).

    Args:
        width: width of the tokens, D.
        heads: number of heads, H; it divides the width.
        rule: how scores become weights.
        causal: whether a token sees no slot after its own position.
        learn_offset: whether each head learns a number that is added to its scores, started at 0. A rule to which
            only differences of scores matter takes none.

    Example:
        >>> from reluformer import rules
        >>> attention = Attention(8, 2, rules.get("relu"), causal=True)
        >>> out, stats = attention(torch.zeros(2, 5, 8), stats=True)
        >>> out.shape, stats.row_sum.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 2, 5]))
    """

    def __init__(self, width: int, heads: int, rule: Rule, causal: bool = False, learn_offset: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        takes_offset = learn_offset and not rule.shift_invariant
        self.read = TokenRead(rule, causal, nn.Parameter(torch.zeros(heads)) if takes_offset else None)
        self.norm = _OUTPUT_NORMS[rule.output_norm](width)
        self.output = nn.Linear(width, width)
        self.log_gamma = nn.Parameter(torch.zeros(heads)) if getattr(rule, "learn_gamma", False) else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scores and values of variance one, and independent, for tokens of variance one.

        Keys and values are made from the same tokens. Drawn independently, their matrices
        still overlap, so that a high score foretells a part of the value and the variance
        of a ReLU read is 1 + n / (2 D). So the rows of a head's two matrices start
        orthogonal to each other (which takes two heads: twice d rows of width D).
        """
        for linear in (self.query, self.key_value, self.output):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
            nn.init.zeros_(linear.bias)
        width = self.query.in_features
        if self.heads == 1:
            return
        rows = self.key_value.weight.data.view(2, self.heads, width // self.heads, width)
        for head in range(self.heads):
            orthogonal = nn.init.orthogonal_(rows.new_empty(2 * rows.size(2), width))
            rows[:, head] = orthogonal.view_as(rows[:, head])

    def slots(self, tokens: Tensor, mask: Tensor | None = None, rotation: Rotation | None = None) -> TokenSlots:
        """Return the slots of `tokens` (B, T, D); `mask` (B, T) is True where they are visible."""
        keys, values = (self.split_heads(part) for part in self.key_value(tokens).chunk(2, dim=-1))
        return TokenSlots(keys if rotation is None else rotate(keys, rotation), values, mask)

    def forward(
        self,
        x: Tensor,
        slots: TokenSlots | None = None,
        mask: Tensor | None = None,
        cache: SlotCache | None = None,
        rotation: Rotation | None = None,
        stats: bool = False,
    ) -> SublayerOutput:
        """Read `slots` for each of x (B, T, D); without them, the slots of x itself.

        For its own slots, `mask` (B, T) says which are visible, and `cache` holds those of
        the tokens before x. A batch of given slots that is smaller than that of x by a
        factor is shared by so many consecutive rows (the beams of one source), without
        being repeated.
        """
        if slots is None:
            slots = self.slots(x, mask, rotation)
            slots = slots if cache is None else cache.append(slots)
        batch, length, width = x.shape
        shared = batch // slots.keys.size(0) if batch else 1
        q = self.split_heads(self.query(x).reshape(-1, shared * length, width))
        if rotation is not None:
            q = rotate(q, rotation)
        if self.log_gamma is not None:
            q = q * self.inverse_gamma().to(q.dtype)
        read, row_stats = self.read(q, slots, stats)
        joined = read.transpose(1, 2).reshape(batch, length, width)
        return self.output(self.norm(joined)), row_stats

    def inverse_gamma(self) -> Tensor:
        """gamma as a factor on the queries: activate(s) / gamma = activate(s / gamma^(1/k))."""
        assert self.log_gamma is not None and self.read.rule.homogeneity is not None
        return torch.exp(-self.log_gamma / self.read.rule.homogeneity)[:, None, None]

    def split_heads(self, x: Tensor) -> Tensor:
        """Return x (B, T, D) as (B, H, T, d): a part of the width for each head."""
        return x.view(*x.shape[:2], self.heads, x.size(-1) // self.heads).transpose(1, 2)


class Sublayer(nn.Module):
    """A memory in the residual stream: x + f(norm(x)), or norm(x + f(x))."""

    def __init__(self, width: int, layer: FeedForward | Attention, pre_norm: bool, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layer = layer
        self.dropout = nn.Dropout(dropout)
        self.pre_norm = pre_norm

    def forward(self, x: Tensor, **options: Any) -> SublayerOutput:
        """x: (B, T, D); `options` go to the layer."""
        out, stats = self.layer(self.norm(x) if self.pre_norm else x, **options)
        x = x + self.dropout(out)
        return (x if self.pre_norm else self.norm(x)), stats


# ------------------------------------------------------------------ positions


class Rotation(NamedTuple):
    """Cosine and sine of each position's angles, (T, d/2) each."""

    cos: Tensor
    sin: Tensor


def _angles(first: int, length: int, width: int, device: torch.device) -> Tensor:
    """position / 10000^(2i / width), (length, ceil(width / 2))."""
    position = torch.arange(first, first + length, device=device, dtype=torch.float32)
    exponent = torch.arange(0, width, 2, device=device, dtype=torch.float32) / width
    return position[:, None] * torch.exp(-math.log(10_000.0) * exponent)


def sinusoids(first: int, length: int, width: int, device: torch.device) -> Tensor:
    """Return (length, width): sines in the even columns, cosines in the odd ones."""
    angles = _angles(first, length, width, device)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]


def rotation(first: int, length: int, width: int, device: torch.device) -> Rotation:
    """Return the rotation of `length` positions from `first` on, for heads of even `width`."""
    angles = _angles(first, length, width, device)
    return Rotation(angles.cos(), angles.sin())


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Rotate each pair of the first and second half of the last dimension; x: (B, H, T, d)."""
    cos, sin = by.cos.to(x.dtype), by.sin.to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
