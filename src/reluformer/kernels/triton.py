"""Reads on a GPU: `torch.library` operators around the tiles of `triton_tiles`.

The kernels compute u_ij = c_i a(s_ij - t_i) with an activation a, a factor and a shift of the row. Both are
computed here from n_i and the `rules.Formula`, and a bias of the rows is part of the shift. A rule that divides
by its row sum is the same read with the division after it, so it costs no second pass.

These kernels are opt-in (`impl="triton"`): no GPU was at hand when they were written. They are tested under Triton's
interpreter (TRITON_INTERPRET=1) and by compiling them for sm_80 and sm_90; they have never been run on a GPU or timed.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reluformer.kernels import derivatives
from reluformer.kernels.operands import Bias, Visibility, row_and_key_parts
from reluformer.kernels.reference import RowStats, entropy_of, w_log_w, widened, without_autocast
from reluformer.rules import Formula
from reluformer.rules.formula import ACTIVATIONS as FUNCTIONS
from reluformer.rules.formula import divisor, visible_only

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_WIDTH = 256
INSTALLED = find_spec("triton") is not None
ACTIVATIONS = {"relu": 0, "relu_squared": 1, "sigmoid": 2, "rectified_exp": 3}
"""The constant ACTIVATION of the kernels in `triton_tiles`."""


def unavailable() -> str | None:
    """Returns why the kernels cannot be used on this machine, or None if they can."""
    if not INSTALLED:
        return "triton is not installed: pip install 'reluformer[triton]'"
    if not torch.cuda.is_available() and not _interpreted():
        return "there is no GPU; TRITON_INTERPRET=1 in the environment runs the kernels slowly on the CPU"
    return None


def refusal(
    q: Tensor, k: Tensor, v: Tensor, formula: Formula | None, visibility: Visibility, bias: Bias | None
) -> str | None:
    """Returns why the kernels cannot do this read, or None if they can."""
    if (reason := unavailable() or derivatives.unsupported()) is not None:
        return reason
    if q.device.type != "cuda" and not _interpreted():
        return f"the tensors are on device '{q.device}', not on a GPU"
    if visibility.mask is not None:
        return "a dense mask is given; causal and key_mask are what the kernels know"
    if isinstance(bias, Tensor) and row_and_key_parts(bias, visibility.slots) is None:
        return f"bias has shape {tuple(bias.shape)}; it must be (..., 1, Tk), (..., Tq, 1) or a RowKeyBias"
    if formula is None or formula.activation not in ACTIVATIONS:
        return f"the rule is not one of its formulas; it knows the activations {', '.join(ACTIVATIONS)}"
    if formula.rest:
        return "a rest is read by the CPU kernel and the reference only"
    if formula.log_factor is not None:
        return "scores that are multiplied by log n are read by the reference only"
    if formula.level is not None and formula.level.cap is not None:
        return "the level of its rows has a cap, which needs the best score of a row first"
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        return f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; they must all be float32, bfloat16 or float16"
    if max(q.size(-1), v.size(-1)) > MAX_WIDTH:
        return f"a head is {max(q.size(-1), v.size(-1))} wide; at most {MAX_WIDTH} fit"
    return None


def _rows(formula: Formula, visibility: Visibility, bias: Tensor | None, q: Tensor) -> tuple[Tensor, Tensor]:
    """Returns factor (B, Tq) and shift (B, H, Tq) of each row, from the number of slots that it sees and its bias."""
    n = visibility.counts().clamp_min(1).to(torch.float32)
    factor = formula.row_factor(n)
    shift = torch.zeros_like(n) if formula.level is None else formula.level.of(n)
    if bias is not None:
        shift = shift - bias.to(torch.float32)
    return factor.reshape(-1, n.size(-1)).expand(q.size(0), q.size(2)), shift.expand(q.shape[:3])


def read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    formula: Formula,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    stats: bool,
) -> tuple[Tensor, RowStats | None]:
    """Read (B,H,Tq,d), (B,H,Tk,d), (B,H,Tk,dv) -> (B,H,Tq,dv), with the row statistics if `stats`.

    The level of the formula, if there is one, is not centred.
    """
    split = row_and_key_parts(bias, visibility.slots)
    assert split is not None
    row_bias, key_bias = split
    factor, shift = _rows(formula, visibility, row_bias, q)
    key_bias = None if key_bias is None else key_bias.expand(k.shape[:3])
    first = visibility.first_position if visibility.hides_future else -1
    divided = formula.delta is not None  # afterwards, so the read is not rounded before
    options = (scale, ACTIVATIONS[formula.activation], first, stats or divided, stats, divided)
    out, row_sum, w_log_w, zeros = _read(q, k, v, visibility.key_mask, key_bias, factor, shift, *options)
    if formula.delta is not None:
        total = divisor(row_sum, formula.delta)
        out = (out / total[..., None]).to(q.dtype)
        w_log_w = (w_log_w - row_sum * total.log()) / total if stats else w_log_w
        row_sum = row_sum / total
    if not stats:
        return out, None
    n_visible = visibility.counts().expand(row_sum.shape)
    return out, RowStats(row_sum, entropy_of(row_sum, w_log_w), zeros / n_visible.clamp_min(1), n_visible)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


# ------------------------------------------------------------------ the operators


@torch.library.custom_op("reluformer::triton_read", mutates_args=())
def _read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    bias: Tensor | None,
    factor: Tensor,
    shift: Tensor,
    scale: float,
    activation: int,
    first: int,
    sums: bool,
    entropies: bool,
    exact: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the read, sum w, sum w log w and the number of zeros of each row; empty where not asked for.

    bias: (B, H, Tk); factor: (B, Tq); shift: (B, H, Tq); first: position of the first query if
    causal, else -1; exact: the read in float32, whatever the inputs are.
    """
    outputs = _outputs(q, v, sums, entropies, exact)
    if _nothing(q, k):
        for part in outputs:
            part.zero_()
        return outputs
    arguments = KernelArguments(q, k, v, key_mask, bias, factor, shift, scale, activation, first, sums, entropies)
    arguments.launch("read_rows", "rows", *outputs)
    return outputs


@torch.library.custom_op("reluformer::triton_read_backward", mutates_args=())
def _read_backward(
    d_out: Tensor,
    d_row_sum: Tensor,
    d_w_log_w: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    bias: Tensor | None,
    factor: Tensor,
    shift: Tensor,
    scale: float,
    activation: int,
    first: int,
    sums: bool,
    entropies: bool,
    with_d_shift: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients of q, k, v, bias and shift; the last two are empty without a bias, and if not asked for."""
    d_q, d_k, d_v, d_bias, d_shift = gradients = _gradients(q, k, v, bias, with_d_shift)
    if _nothing(q, k):
        for part in gradients:
            part.zero_()
        return gradients
    arguments = KernelArguments(q, k, v, key_mask, bias, factor, shift, scale, activation, first, sums, entropies)
    given = [part.contiguous() for part in (d_out, d_row_sum, d_w_log_w)]
    arguments.launch("differentiate_slots", "slots", *given, d_k, d_v, d_bias)
    arguments.launch("differentiate_rows", "rows", *given, d_q, d_shift, WITH_D_SHIFT=with_d_shift)
    return gradients


@_read.register_fake
def _(q, k, v, key_mask, bias, factor, shift, scale, activation, first, sums, entropies, exact):  # type: ignore[no-untyped-def]
    return _outputs(q, v, sums, entropies, exact)


@_read_backward.register_fake
def _(d_out, d_row_sum, d_w_log_w, q, k, v, key_mask, bias, *rest):  # type: ignore[no-untyped-def]
    return _gradients(q, k, v, bias, with_d_shift=rest[-1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, key_mask, bias, factor, shift, *options, _exact = inputs
    ctx.save_for_backward(q, k, v, key_mask, bias, factor, shift)
    ctx.options = options
    ctx.mark_non_differentiable(output[3])


def _differentiate(ctx: Any, d_out: Tensor, d_row_sum: Tensor, d_w_log_w: Tensor, _: Any) -> tuple[Any, ...]:
    with_d_shift = ctx.needs_input_grad[6]
    if derivatives.recomputes():
        q, k, v, key_mask, bias, factor, shift = ctx.saved_tensors
        *_, sums, entropies = ctx.options
        d_outputs = (d_out.float(), d_row_sum if sums else None, d_w_log_w if entropies else None)
        dense = partial(_dense, key_mask, factor, ctx.options)
        d_q, d_k, d_v, d_bias, d_shift = derivatives.gradients(dense, (q, k, v, bias, shift), d_outputs)
        return (d_q, d_k, d_v, None, d_bias, None, d_shift, *(None,) * 6)
    given = (d_out, d_row_sum, d_w_log_w, *ctx.saved_tensors)
    d_q, d_k, d_v, d_bias, d_shift = _read_backward(*given, *ctx.options, with_d_shift)
    bias = ctx.saved_tensors[4]
    d_bias = None if bias is None else d_bias.to(bias.dtype)
    return (d_q, d_k, d_v, None, d_bias, None, d_shift if with_d_shift else None, *(None,) * 6)


def _dense(
    key_mask: Tensor | None,
    factor: Tensor,
    options: list[Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    shift: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what `_read` returns, without the zeros, by operations of PyTorch."""
    scale, activation, first, *_ = options
    name = next(name for name, number in ACTIVATIONS.items() if number == activation)
    visible = Visibility(q.size(2), k.size(2), q.device, first >= 0, key_mask).dense()
    with without_autocast(q):
        scores = scale * torch.matmul(widened(q), widened(k).transpose(-1, -2)) - shift.unsqueeze(-1)
        scores = scores if bias is None else scores + bias.unsqueeze(-2)
        weights = visible_only(FUNCTIONS[name](scores) * factor[:, None, :, None], visible)
        return torch.matmul(weights, widened(v)), weights.sum(-1), w_log_w(weights).sum(-1)


_read.register_autograd(_differentiate, setup_context=_keep)


def _outputs(q: Tensor, v: Tensor, sums: bool, entropies: bool, exact: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out = q.new_empty((*q.shape[:3], v.size(-1)), dtype=torch.float32 if exact else q.dtype)
    rows = [q.new_empty(q.shape[:3] if asked else (0,), dtype=torch.float32) for asked in (sums, entropies, entropies)]
    return out, rows[0], rows[1], rows[2]


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, with_d_shift: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_q, d_k, d_v = (part.new_empty(part.shape) for part in (q, k, v))
    d_bias = q.new_empty((0,) if bias is None else bias.shape, dtype=torch.float32)
    return d_q, d_k, d_v, d_bias, q.new_empty(q.shape[:3] if with_d_shift else (0,), dtype=torch.float32)


def _nothing(q: Tensor, k: Tensor) -> bool:
    return q.size(0) * q.size(1) * q.size(2) * k.size(2) == 0


class Tile(NamedTuple):
    """The rows and slots of a tile, the stages of its pipeline and the warps of a program."""

    rows: int
    slots: int
    stages: int
    warps: int


def tile_of(kernel: str, width: int, dtype: torch.dtype) -> Tile:
    """Returns the tile of a kernel of `triton_tiles` for heads of `width`, padded to a power of two.

    The tiles were chosen by what the compiler reports for sm_80 and sm_90 (benchmarks/gpu_compile.py), not by timing:
    hardly a register is spilled, and every kernel fits into the 99 KB of shared memory that most GPUs give a program.
    float32 is multiplied exactly, without tensor cores. The gradients of slots are two sums: their tiles are smaller.
    """
    if dtype == torch.float32:
        side = 64 if width <= 16 else 32 if width <= 128 else 16
        return Tile(side, side, stages=1, warps=8 if width >= 64 else 4)
    if kernel == "differentiate_slots" and width >= 64:
        return Tile(64 if width == 64 else 32, 32, stages=2, warps=4 if width == 128 else 8)
    side = 64 if width <= 128 else 32
    return Tile(side, side, stages=2, warps=8 if width >= 64 else 4)


class KernelArguments:
    """The arguments that the three kernels have in common."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        bias: Tensor | None,
        factor: Tensor,
        shift: Tensor,
        scale: float,
        activation: int,
        first: int,
        sums: bool,
        entropies: bool,
    ) -> None:
        q, k, v = (part if part.stride(-1) == 1 else part.contiguous() for part in (q, k, v))
        mask = q if key_mask is None else key_mask.contiguous().view(torch.uint8)
        key_bias = q if bias is None else bias.contiguous()
        self.device = q.device
        self.heads_in_all = q.size(0) * q.size(1)
        self.lengths = {"rows": q.size(2), "slots": k.size(2)}
        self.tensors = (q, k, v, mask, key_bias, shift.contiguous(), factor.contiguous())
        strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
        self.sizes = (*strides, q.size(1), q.size(2), k.size(2), max(first, 0), scale)
        widths = q.size(-1), v.size(-1)
        padded = [max(16, 1 << (width - 1).bit_length()) for width in widths]
        self.width, self.dtype = max(padded), q.dtype
        self.constants = dict(D=widths[0], DV=widths[1], BD=padded[0], BV=padded[1])
        self.constants |= dict(ACTIVATION=activation, CAUSAL=first >= 0, MASKED=key_mask is not None)
        self.constants |= dict(BIASED=bias is not None, SUMS=sums, ENTROPIES=entropies)
        self.constants |= dict(WIDEN=q.dtype == torch.bfloat16 and _interpreted())

    def launch(self, kernel: str, tiled: str, *outputs: Tensor, **own: bool) -> None:
        """Run `kernel` on the tiles of "rows" or "slots" of every head; own: constants that only it has."""
        from reluformer.kernels import triton_tiles

        tile = tile_of(kernel, self.width, self.dtype)
        grid = (-(-self.lengths[tiled] // (tile.rows if tiled == "rows" else tile.slots)), self.heads_in_all)
        constants = dict(self.constants, BQ=tile.rows, BK=tile.slots, **own)
        # Triton 3.10 changes the default of enable_fp_fusion
        options = dict(num_stages=tile.stages, num_warps=tile.warps, enable_fp_fusion=True)
        guard: AbstractContextManager[Any] = nullcontext()
        if self.device.type == "cuda":
            guard = torch.cuda.device(self.device)
        with guard:
            getattr(triton_tiles, kernel)[grid](*self.tensors, *outputs, *self.sizes, **constants, **options)
