"""Reads on a CPU through the C++ library, without ever storing the scores.

The kernel reads every rule whose `rules.Formula` has an activation that the library knows (`ACTIVATIONS`). Its memory
grows with the number of tokens in both passes, not with the square of it. `kernels.run` asks
`refusal` (can this read be done?) and for `impl="auto"` also `pays` (is it faster here?), and calls `read`;
cpu_operators.py has what follows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from reluformer.kernels import derivatives, products
from reluformer.kernels.cpu_operators import MODES as MODES
from reluformer.kernels.cpu_operators import levels, operate
from reluformer.kernels.moments import level_bias, row_moments
from reluformer.kernels.native.library import ACTIVATIONS, LOG_N, PATHS, native_formula
from reluformer.kernels.native.library import loaded as loaded
from reluformer.kernels.native.library import unavailable as unavailable
from reluformer.kernels.operands import Bias, RowKeyBias, Visibility, row_and_key_parts
from reluformer.kernels.reference import RowStats
from reluformer.rules import Formula, rest_mass

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# Where the kernel overtakes the reference: `python benchmarks/crossover.py` measures it anew.
SCORES = 2**18
"""Scores (B H Tq Tk) of a read of all slots. With statistics, or where slots are hidden, which the kernel skips, it is
ahead at any size, few queries aside."""
FEW = 8
"""Up to so many queries the kernel reads slot by slot (problem.h). That path is for inference: the backward pass
works on tiles, and the reference is faster there."""
FEW_SCORES = 2**14
CENTRED = 64
"""Rules of centred scores need the moments of their rows first, which pay from so many queries on, and from as many as
a head is wide; twice as many where no slot is hidden."""
LEARNED_ROWS = 256
LEARNED_SCORES = 2**18
"""Training of learned slots goes through the kernel from so many rows and scores on: `python
benchmarks/learned_slots.py` measures it anew."""
WIDE_ROWS = 1024
WIDE_ZEROS = 0.75
PROBED = 32
"""Where `products` has dense products at full width, it takes more rows, and this share of zeros in so many of them."""
GATHERED_ROWS = 4
GATHERED_ZEROS = 0.75
GATHERED_VALUES = 2**18
"""`gather_values` is for at most so many rows with at least this share of zeros and this many numbers in the values."""


def description(how: str = ", rows with few weights sparsely") -> str:
    """Returns one line for `reluformer doctor`."""
    if reason := unavailable():
        return f"not available: {reason}"
    found = loaded()
    threads = f"{torch.get_num_threads()} of torch's threads" if found.threaded else "one thread: no GOMP_parallel"
    return f"available: {PATHS[found.path]} instructions, {threads}{how}"


def refusal(
    q: Tensor,
    formula: Formula | None,
    visibility: Visibility,
    bias: Bias | None,
    mode: str = "cpu",
    stats: bool = False,
) -> str | None:
    """Returns why this read cannot go through the kernel, or None if it can."""
    if reason := unavailable() or derivatives.unsupported():
        return reason
    if q.device.type != "cpu":
        return f"the tensors are on {q.device}"
    if q.dtype not in DTYPES:
        return f"it computes in float32, not {q.dtype}"
    if visibility.mask is not None:
        return "it takes causal and key_mask, but no dense mask"
    if row_and_key_parts(bias, visibility.slots) is None:
        return "it takes a key bias (..., 1, Tk), a row bias (..., Tq, 1) or a RowKeyBias, but no dense bias"
    if formula is not None and formula.rest:
        if stats:
            return "the entropy of a row with a rest needs all of its weights"
        formula = formula.terms()
    if formula is None or native_formula(formula) is None:
        return f"the rule is not one of its formulas; it knows the activations {', '.join(ACTIVATIONS)}"
    if formula.activation == "sigmoid" and formula.level is not None and formula.level.cap is not None:
        return "a cap is for activations with exact zeros, not for a sigmoid"
    if mode == "cpu_sparse" and formula.activation == "sigmoid":
        return "no weight of a sigmoid is zero"
    return None


def pays(q: Tensor, k: Tensor, v: Tensor, formula: Formula, visibility: Visibility, stats: bool) -> bool:
    """Returns whether the kernel is expected to beat the reference; see the constants."""
    if q.device.type != "cpu" or unavailable():
        return False
    hidden = not visibility.everything
    if formula.centred:
        return visibility.queries >= max(CENTRED, q.size(-1)) * (1 if hidden else 2)
    scores = q.size(0) * q.size(1) * visibility.queries * visibility.slots
    if visibility.queries <= FEW:
        trains = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        return not stats and not trains and (hidden or scores >= FEW_SCORES)
    return stats or hidden or scores >= SCORES


def read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    formula: Formula,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    stats: bool,
    mode: str = "cpu",
) -> tuple[Tensor, RowStats | None]:
    """Read (B,H,Tq,d), (B,H,Tk,d), (B,H,Tk,dv) -> (B,H,Tq,dv), with the row statistics if `stats`.

    `mode` is one of `MODES`.
    """
    if formula.rest:
        return _read_with_rest(q, k, v, formula, visibility, bias, scale, mode), None
    level = formula.level
    own_level = None
    if level is not None and level != LOG_N:
        split = row_and_key_parts(bias, visibility.slots)
        assert split is not None
        if level.centred and split[1] is None and levels(q, k):
            own_level, bias = level, None  # what all scores of a row have in common is part of their mean
        else:
            bias = level_bias(q, k, level, visibility, bias, scale)
        formula = formula.without_level()
    known, split = native_formula(formula), row_and_key_parts(bias, visibility.slots)
    assert known is not None and split is not None
    batch, heads, queries, _ = q.shape
    row_bias, key_bias = split
    if known.cap and row_bias is None and own_level is None:
        row_bias = q.new_zeros(())  # its gradient is what the library moves to the best slots
    row_bias = None if row_bias is None else _float(row_bias).expand(batch, heads, queries)
    key_bias = None if key_bias is None else _float(key_bias).expand(batch, heads, visibility.slots)
    operands = (_float(q), _float(k), _float(v), visibility.key_mask, row_bias, key_bias)
    trains = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in operands)
    options = (MODES[mode], trains, visibility.hides_future, scale, *known)
    output = operate(operands, options, own_level, stats)
    out = _back(output[0], v)
    if not stats:
        return out, None
    row_sum, entropy, zero_fraction = output[1:4]
    n_visible = visibility.counts().expand(row_sum.shape)
    return out, RowStats(row_sum, entropy, zero_fraction, n_visible)


def _read_with_rest(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    formula: Formula,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    mode: str,
) -> Tensor:
    """Read the slots above the level of their row, and for the rest the mean value of all visible slots."""
    split, level = row_and_key_parts(bias, visibility.slots), formula.level
    assert split is not None and level is not None
    keys = split[1]  # what all scores of a row have in common is part of their mean
    mean, variance = row_moments(q, k, keys, visibility, scale, with_variance=True)
    assert variance is not None
    n = visibility.counts().clamp_min(1).to(mean.dtype)
    away = level.of(n, torch.zeros_like(mean), variance)
    rest = rest_mass(away, torch.sqrt(variance + level.floor), n).unsqueeze(-1)
    rows = -(mean + away)
    moved: Bias = rows.unsqueeze(-1) if keys is None else RowKeyBias(rows, keys)
    above, found = read(q, k, _float(v), formula.terms(), visibility, moved, scale, True, mode)
    assert found is not None
    return _back((above + rest * _mean_values(_float(v), visibility, n)) / (rest + found.row_sum.unsqueeze(-1)), v)


def _mean_values(v: Tensor, visibility: Visibility, n: Tensor) -> Tensor:
    """Returns the mean of the visible values of each row, (B, H, Tq, dv) or (B, H, 1, dv)."""
    v = v if visibility.key_mask is None else v.masked_fill(~visibility.key_mask[:, None, :, None], 0)
    past = visibility.hides_future
    sums = v.cumsum(2)[:, :, visibility.first_position :] if past else v.sum(2, keepdim=True)
    return sums / n.unsqueeze(-1)


def learning_pays(x: Tensor, keys: Tensor, formula: Formula, bias: Tensor | None = None) -> bool:
    """Returns whether training a read of learned slots from tokens x (..., width) is expected to beat dense products.

    The kernel computes no product of a weight that is zero, nor any of the gradients that belong to it. Where dense
    products have the full width of the processor, a few rows say first whether most weights are zero.
    """
    rows, slots = x.numel() // max(x.size(-1), 1), keys.size(0)
    if rows < LEARNED_ROWS or rows * slots < LEARNED_SCORES or formula.activation not in ("relu", "relu_squared"):
        return False
    if x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return False
    if formula.level is not None or formula.delta is not None or unavailable() is not None:
        return False
    if derivatives.unsupported() is not None or not derivatives.eager(x):
        return False
    if not products.wide(x, keys):
        return True
    return rows >= WIDE_ROWS and _zeros_of_few(x, keys, bias) >= WIDE_ZEROS


def _zeros_of_few(x: Tensor, keys: Tensor, bias: Tensor | None) -> float:
    """Returns the share of scores that are not positive, in a few rows spread over x."""
    few = x.detach().reshape(-1, x.size(-1))
    few = few[:: max(1, few.size(0) // PROBED)][:PROBED]
    scores = F.linear(few, keys.detach(), None if bias is None else bias.detach())
    return 1 - int(torch.count_nonzero(scores > 0)) / max(1, scores.numel())


def gathering_pays(weights: Tensor, width: int) -> bool:
    """Returns whether `gather_values` is expected to beat a dense product with values (slots, width)."""
    if unavailable() or weights.device.type != "cpu" or weights.dtype != torch.float32 or weights.requires_grad:
        return False
    slots = weights.size(-1)
    if weights.numel() > GATHERED_ROWS * slots or slots * width < GATHERED_VALUES:
        return False
    return int(torch.count_nonzero(weights)) <= (1 - GATHERED_ZEROS) * weights.numel()


def gather_values(weights: Tensor, values: Tensor) -> Tensor:
    """Multiply weights (..., slots) with values (slots, width), touching only the values of slots that fired.

    This is the second product of a read of learned slots, without gradient. Both tensors are float32.
    """
    rows = weights.reshape(-1, weights.size(-1)).contiguous()
    out = torch.empty(rows.size(0), values.size(1))
    loaded().weigh_values(loaded().path, out, rows, values)
    return out.view(*weights.shape[:-1], values.size(1))


def _float(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float32 else x.float()


def _back(out: Tensor, v: Tensor) -> Tensor:
    return out if out.dtype == v.dtype else out.to(v.dtype)
