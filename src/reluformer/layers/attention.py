"""Attention: a read of slots made from tokens, their own or those of another sequence.

What language models have beside a rule is in `AttentionOptions`: grouped heads, a window, a forget gate
(Lin et al., 2025), norms of queries and keys, keys and values shifted by a token, and an output gate.

Shapes: B batch, T tokens, H heads, Hk heads of keys, D width, d = D / H.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluformer import memory
from reluformer.errors import ArgumentError, nearest
from reluformer.kernels import GateOn, Window
from reluformer.kernels.products import Linear
from reluformer.layers.norms import output_norm
from reluformer.layers.positions import Rotation, rotate
from reluformer.memory import RowStats
from reluformer.rules import Rule


class TokenSlots(NamedTuple):
    """Keys and values made from tokens, (B, Hk, T, d) each, and what belongs to them."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None = None  # (B, T), which of them are visible
    gate: Tensor | None = None  # (B, H, T), cumulative sums of log forget gates
    offsets: Tensor | None = None  # (S + 1), where packed sequences begin


class SlotCache:
    """The slots of a growing prefix, written into buffers that double when they are full.

    The sums of forget gates lie beside keys and values. Where keys and values are shifted, `last` holds those of the
    newest token as they were before.
    """

    def __init__(self) -> None:
        self.length = 0
        self.last: tuple[Tensor, Tensor] | None = None
        self._buffers: list[Tensor] = []
        self._kind: tuple[object, ...] = ()
        """What `check` compares with new slots; empty where there are none yet."""

    def append(self, new: TokenSlots) -> TokenSlots:
        """Add the slots of the newest tokens, and return all slots so far."""
        parts = [new.keys, new.values] + ([] if new.gate is None else [new.gate])
        made = (new.keys, new.values, 0 if new.gate is None else new.gate.size(1), self.last is not None)
        self.check(*made)
        needed = self.length + new.keys.size(2)
        if not self.length or needed > self._buffers[0].size(2):
            self._grow(parts, capacity=max(16, 2 * needed))
            self._kind = _kind_of(*made)
        for buffer, part in zip(self._buffers, parts, strict=True):
            buffer[:, :, self.length : needed] = part
        self.length = needed
        return self.slots

    def check(self, keys: Tensor, values: Tensor, gates: int, shifted: bool) -> None:
        """Raise an error if new slots cannot follow those that the cache holds.

        Args:
            keys: (B, Hk, T, d); norms and rotations may follow, which keep the shape.
            values: (B, Hk, T, d).
            gates: heads with a forget gate, H or 0.
            shifted: whether keys and values are mixed with those of the token before.
        """
        if not self.length or not self._kind:
            return
        new = _kind_of(keys, values, gates, shifted)
        if new != self._kind:
            names = ("batch", "key heads", "head width", "width of values", "dtype", "forget gates", "shift")
            triples = zip(names, self._kind, new, strict=True)
            found = ", ".join(f"{name} {before} there and {now} here" for name, before, now in triples if before != now)
            raise ArgumentError(f"cache belongs to another model or batch: {found}; start a new cache")

    @property
    def slots(self) -> TokenSlots:
        """All slots so far, without copying them."""
        keys, values, *gate = (buffer[:, :, : self.length] for buffer in self._buffers)
        return TokenSlots(keys, values, gate=gate[0] if gate else None)

    @property
    def forgotten(self) -> Tensor | None:
        """The sum of log forget gates up to the newest token, (B, H, 1); None where there is no token or no gate."""
        return self._buffers[2][:, :, self.length - 1 : self.length] if self.length and len(self._buffers) > 2 else None

    def _grow(self, parts: list[Tensor], capacity: int) -> None:
        old = [buffer[:, :, : self.length] for buffer in self._buffers] if self.length else []
        self._buffers = [part.new_empty(*part.shape[:2], capacity, *part.shape[3:]) for part in parts]
        for buffer, kept in zip(self._buffers, old, strict=False):
            buffer[:, :, : self.length] = kept

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order: how beam search follows its beams."""
        for i, buffer in enumerate(self._buffers):
            kept = buffer.new_empty(rows.numel(), *buffer.shape[1:])
            kept[:, :, : self.length] = buffer[:, :, : self.length].index_select(0, rows)
            self._buffers[i] = kept
        self._kind = (rows.numel(), *self._kind[1:]) if self._kind else ()
        if self.last is not None:
            self.last = (self.last[0].index_select(0, rows), self.last[1].index_select(0, rows))


def _kind_of(keys: Tensor, values: Tensor, gates: int, shifted: bool) -> tuple[object, ...]:
    """Returns what slots of one model and batch have in common; the arguments are those of `SlotCache.check`."""
    batch, heads, _, width = keys.shape
    return batch, heads, width, values.size(3), values.dtype, gates, shifted


class TokenRead(nn.Module):
    """`memory.read` as a module: the one place where attention reads, so hooks can watch it.

    `offset` (H) is what each head adds to all of its scores: where its threshold lies. It is
    a bias common to all slots, which every implementation of `read` takes. `sink` (H) is the
    score of a slot without value.
    """

    def __init__(
        self,
        rule: Rule,
        causal: bool,
        offset: nn.Parameter | None = None,
        sink: nn.Parameter | None = None,
        window: Window | None = None,
        scale: float | None = None,
        gate_on: GateOn = "scores",
    ) -> None:
        super().__init__()
        self.rule = rule
        self.causal = causal
        self.offset = offset
        self.sink = sink
        self.window = window
        self.scale = scale
        self.gate_on: GateOn = gate_on

    @property
    def bias(self) -> Tensor | None:
        """The offset as a bias of scores, (1, H, 1, 1)."""
        return None if self.offset is None else self.offset[None, :, None, None]

    def forward(self, q: Tensor, slots: TokenSlots, stats: bool = False) -> tuple[Tensor, RowStats | None]:
        options: dict[str, Any] = {
            "causal": self.causal,
            "key_mask": slots.mask,
            "bias": self.bias,
            "window": self.window,
            "offsets": slots.offsets,
            "gate": slots.gate,
            "gate_on": self.gate_on if slots.gate is not None else "scores",
            "sink": self.sink,
            "scale": self.scale,
        }
        if stats:
            return memory.read(q, slots.keys, slots.values, self.rule, **options, return_stats=True)
        return memory.read(q, slots.keys, slots.values, self.rule, **options), None


ForgetGate = Literal["zero", "spread", "fixed"]


@dataclass(frozen=True)
class AttentionOptions:
    """What an attention of language models may have beside its rule.

    The forget gate of a head is f = sigmoid(w x + b), and c_i - c_j is added to its scores, c the cumulative sum of
    log f. Its bias starts at zero, which forgets half at every token as in the paper ("zero"), or such that the heads
    remember from 2 to 2,000 tokens ("spread"). Rules with zeros need that: a pair without weight teaches the gate
    nothing. "fixed" has the biases of "spread" and no w, so the gate does not depend on the token. With `forget_on`
    "weights" exp(c_i - c_j) multiplies the weights, and the gate hides no pair from itself.

    With `output_gate` the read is W_o (RMSNorm(read of a head) * sigmoid(W_g x)). With `shift` a key is
    a k'_(t-1) + (1 - a) k'_t, a = sigmoid(w x) for each head of keys, and so is a value.
    """

    key_heads: int | None = None
    """Hk, which divides H; None for H."""
    window: Window | None = None
    forget: ForgetGate | None = None
    forget_on: GateOn = "scores"
    qk_norm: bool = False
    """RMS norms of queries and keys, with a learned gain for each dimension of a head."""
    output_gate: bool = False
    shift: bool = False

    def __post_init__(self) -> None:
        for option, value, kind in (("forget", self.forget, ForgetGate), ("forget_on", self.forget_on, GateOn)):
            if value not in get_args(kind) and (option, value) != ("forget", None):
                raise ArgumentError(f"{option}={value!r} is unknown; {nearest(str(value), get_args(kind))}")


SHORTEST_MEMORY, LONGEST_MEMORY = 2.0, 2000.0
"""Tokens that the heads of a gate with spread biases remember at the start: 1 / (1 - f)."""


class Attention(nn.Module):
    """A read of slots made from tokens: its own (self, causal) or another sequence's (cross).

    Args:
        width: width of the tokens, D.
        heads: number of heads, H; it divides the width.
        rule: how scores become weights.
        causal: whether a token sees no slot after its own position.
        learn_offset: whether each head learns a number that is added to its scores, started at 0. A rule to which
            only differences of scores matter takes none.
        options: grouped heads, a window, gates, norms and shifts.

    Raises:
        ArgumentError: the heads do not divide the width, the heads of keys do not divide the heads, or one of these
            numbers is not positive.

    Example:
        >>> from reluformer import rules
        >>> attention = Attention(8, 2, rules.get("relu"), causal=True)
        >>> out, stats = attention(torch.zeros(2, 5, 8), stats=True)
        >>> out.shape, stats.row_sum.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 2, 5]))
    """

    def __init__(
        self,
        width: int,
        heads: int,
        rule: Rule,
        causal: bool = False,
        learn_offset: bool = False,
        options: AttentionOptions = AttentionOptions(),  # noqa: B008
    ) -> None:
        super().__init__()
        self.heads = heads
        self.key_heads = heads if options.key_heads is None else options.key_heads
        for name, number in (("width", width), ("heads", heads), ("key_heads", self.key_heads)):
            if number < 1:
                raise ArgumentError(f"{name}={number} must be at least 1")
        if width % heads:
            raise ArgumentError(f"heads={heads} does not divide width={width}; change one of them")
        if heads % self.key_heads:
            raise ArgumentError(f"key_heads={self.key_heads} does not divide heads={heads}; use a divisor")
        head_width = width // heads
        self.query = Linear(width, width)
        self.key_value = Linear(width, 2 * self.key_heads * head_width)
        takes_offset = learn_offset and not rule.shift_invariant
        takes_sink = getattr(rule, "learn_sink", False)
        offset, sink = (nn.Parameter(torch.zeros(heads)) if takes else None for takes in (takes_offset, takes_sink))
        self.read = TokenRead(rule, causal, offset, sink, options.window, gate_on=options.forget_on)
        self.norm = output_norm(rule, width)
        self.output = Linear(width, width)
        self.log_gamma = nn.Parameter(torch.zeros(heads)) if getattr(rule, "learn_gamma", False) else None
        self.query_norm = nn.RMSNorm(head_width, eps=1e-6) if options.qk_norm else None
        self.key_norm = nn.RMSNorm(head_width, eps=1e-6) if options.qk_norm else None
        self.shift = Linear(width, 2 * self.key_heads, bias=False) if options.shift else None
        self.gate = Linear(width, width, bias=False) if options.output_gate else None
        self.gate_norm = nn.RMSNorm(head_width, eps=1e-6) if options.output_gate else None
        self.forget: nn.Linear | None = None
        self.forget_bias: nn.Parameter | None = None
        if options.forget is not None:
            self.forget = None if options.forget == "fixed" else Linear(width, heads, bias=False)
            self.forget_bias = nn.Parameter(self._forget_biases(options.forget))
        self.reset_parameters()

    def _forget_biases(self, kind: ForgetGate) -> Tensor:
        """Returns the initial bias of each head, (H,): log(m - 1) remembers m tokens."""
        if kind == "zero":
            return torch.zeros(self.heads)
        shortest, longest = math.log(SHORTEST_MEMORY), math.log(LONGEST_MEMORY)
        memories = torch.exp(torch.linspace(longest, shortest, self.heads, dtype=torch.float64))
        return torch.log(memories - 1).float()

    def reset_parameters(self) -> None:
        """Draw matrices that give independent scores and values of variance one, for tokens of variance one.

        Keys and values are made from the same tokens. Drawn independently, their matrices still overlap. A high score
        then foretells a part of the value, and the variance of a ReLU read is 1 + n / (2 D). So the rows of a head's
        two matrices start orthogonal to each other. This takes two heads: twice d rows of width D.
        """
        for linear in (self.query, self.key_value, self.output):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
            nn.init.zeros_(linear.bias)
        for small in (self.shift, self.gate, self.forget):
            if small is not None:
                nn.init.normal_(small.weight, std=0.02)
        width = self.query.in_features
        if self.heads == 1:
            return
        rows = self.key_value.weight.data.view(2, self.key_heads, width // self.heads, width)
        for head in range(self.key_heads):
            orthogonal = nn.init.orthogonal_(rows.new_empty(2 * rows.size(2), width))
            rows[:, head] = orthogonal.view_as(rows[:, head])

    def slots(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        rotation: Rotation | None = None,
        offsets: Tensor | None = None,
        cache: SlotCache | None = None,
    ) -> TokenSlots:
        """Returns the slots of `tokens` (B, T, D).

        Args:
            tokens: (B, T, D).
            mask: (B, T), True where they are visible; with a `cache` that of all slots, theirs included.
            rotation: turns the keys.
            offsets: (S + 1), where packed sequences begin.
            cache: the slots of the tokens before; a shift and a forget gate continue from there.
        """
        keys, values = (self.split_heads(part) for part in self.key_value(tokens).chunk(2, dim=-1))
        if cache is not None:
            cache.check(keys, values, 0 if self.forget_bias is None else self.heads, self.shift is not None)
        if self.shift is not None:
            keys, values = self._shifted(tokens, keys, values, mask, offsets, cache)
        if self.key_norm is not None:
            keys = self.key_norm(keys)
        keys = keys if rotation is None else rotate(keys, rotation)
        return TokenSlots(keys, values, mask, self._forgotten(tokens, mask, cache), offsets)

    def _shifted(
        self,
        tokens: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        offsets: Tensor | None,
        cache: SlotCache | None,
    ) -> tuple[Tensor, Tensor]:
        """Mix each key and value with those of the token before; the first of a sequence has nothing before it."""
        assert self.shift is not None
        if offsets is not None:
            before_these = 0 if cache is None else cache.length
            memory.check_offsets(offsets, tokens.size(0), tokens.size(1), before_these + tokens.size(1))
        if not tokens.size(1):
            return keys, values
        share = torch.sigmoid(self.shift(tokens)).transpose(1, 2).unsqueeze(-1)  # (B, 2 Hk, T, 1)
        if offsets is not None:
            first = torch.zeros(tokens.size(1) + 1, dtype=torch.bool, device=tokens.device)
            first[offsets.to(tokens.device)] = True
            share = share.masked_fill(first[:-1, None], 0)
        elif cache is None or cache.last is None:
            share = torch.cat([torch.zeros_like(share[:, :, :1]), share[:, :, 1:]], dim=2)
        if mask is not None:  # padding is nothing
            follows = F.pad(mask, (1, 0), value=True)[:, -tokens.size(1) - 1 : -1]
            share = share.masked_fill(~follows[:, None, :, None], 0)
        before = (None, None) if cache is None or cache.last is None else cache.last
        if cache is not None:
            cache.last = (keys[:, :, -1:], values[:, :, -1:])
        mixed = []
        for part, last, weight in zip((keys, values), before, share.chunk(2, dim=1), strict=True):
            earlier = torch.cat([part[:, :, :1] if last is None else last, part[:, :, :-1]], dim=2)
            mixed.append(weight * earlier + (1 - weight) * part)
        return mixed[0], mixed[1]

    def _forgotten(self, tokens: Tensor, mask: Tensor | None, cache: SlotCache | None) -> Tensor | None:
        """Returns the cumulative sums of log forget gates in float32, (B, H, T); None without a gate."""
        if self.forget_bias is None:
            return None
        bias = self.forget_bias.double() if tokens.dtype == torch.float64 else self.forget_bias.float()
        if self.forget is None:
            logits = bias.expand(*tokens.shape[:2], self.heads)
        else:
            logits = self.forget(tokens).to(bias.dtype) + bias
        logs = F.logsigmoid(logits).transpose(1, 2)
        if mask is not None:  # padding forgets nothing
            logs = logs.masked_fill(~mask[:, None, -tokens.size(1) :], 0)
        sums = logs.cumsum(-1)
        before = None if cache is None else cache.forgotten
        return sums if before is None else before + sums

    def forward(
        self,
        x: Tensor,
        slots: TokenSlots | None = None,
        mask: Tensor | None = None,
        cache: SlotCache | None = None,
        rotation: Rotation | None = None,
        offsets: Tensor | None = None,
        stats: bool = False,
    ) -> tuple[Tensor, RowStats | None]:
        """Read `slots` for each of x (B, T, D); without them, the slots of x itself.

        For its own slots, `mask` says which are visible, `offsets` where packed sequences
        begin, and `cache` holds those of the tokens before x; the arguments of `slots`. A batch of given
        slots that is smaller than that of x by a factor is shared by so many consecutive
        rows (the beams of one source), without being repeated.
        """
        batch, length, width = x.shape
        queries = self.query(x)
        if slots is None:
            slots = self.slots(x, mask, rotation, offsets, cache)
            slots = slots if cache is None else cache.append(slots)._replace(mask=mask)
        else:
            shared = batch // slots.keys.size(0) if batch else 1
            queries = queries.reshape(-1, shared * length, width)
        q = self.split_heads(queries)
        if self.query_norm is not None:
            q = self.query_norm(q)
        if rotation is not None:
            q = rotate(q, rotation)
        if self.log_gamma is not None:
            q = q * self.inverse_gamma().to(q.dtype)
        read, row_stats = self.read(q, slots, stats)
        if self.gate is not None and self.gate_norm is not None:
            read = self.gate_norm(read)
        joined = self.norm(read.transpose(1, 2).reshape(batch, length, width))
        if self.gate is not None:
            joined = joined * torch.sigmoid(self.gate(x))
        return self.output(joined), row_stats

    def inverse_gamma(self) -> Tensor:
        """Returns gamma as a factor on the queries: activate(s) / gamma = activate(s / gamma^(1/k))."""
        assert self.log_gamma is not None and self.read.rule.homogeneity is not None
        return torch.exp(-self.log_gamma / self.read.rule.homogeneity)[:, None, None]

    def split_heads(self, x: Tensor) -> Tensor:
        """Returns x (B, T, Hx d) as (B, Hx, T, d): a part of the width for each head."""
        head_width = self.query.out_features // self.heads
        return x.view(*x.shape[:2], x.size(-1) // head_width, head_width).transpose(1, 2)
