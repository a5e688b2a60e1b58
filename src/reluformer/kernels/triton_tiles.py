"""The tiles of an additive read, in Triton. Imported only where a read runs: `kernels/triton.py`.

For one head, with a the activation, c_i the factor and t_i the shift of row i:

    s_ij = scale q_i . k_j + b_j - t_i      a_ij = a(s_ij) where visible, else 0      u_ij = c_i a_ij
    out_i = sum_j u_ij v_j      U_i = sum_j u_ij      L_i = sum_j u_ij log u_ij      Z_i = zeros among the visible

and backwards, with g_i = c_i dout_i:

    ds_ij = (g_i . v_j + c_i (dU_i + dL_i (1 + log u_ij))) a'(s_ij)
    dv_j = sum_i a_ij g_i    dk_j = scale sum_i ds_ij q_i    dq_i = scale sum_j ds_ij k_j
    db_j = sum_i ds_ij       dt_i = -sum_j ds_ij

A program owns a tile of rows (forward, dq, dt) or of slots (dk, dv, db) and walks over the other
side, so nothing is added atomically and the results repeat bit for bit. No score leaves its
tile, and tiles above the causal diagonal are not visited. Sums are kept in float32.

Shapes: BQ rows and BK slots of a tile; D and DV, the widths, padded to BD and BV, powers of two.
"""

import triton
import triton.language as tl

RELU = tl.constexpr(0)
RELU_SQUARED = tl.constexpr(1)
RELU_EXP = tl.constexpr(3)
HIGHEST = tl.constexpr(60.0)


@triton.jit
def product(a, b, WIDEN: tl.constexpr):
    """Returns a b in float32. WIDEN is set because Triton's interpreter cannot multiply bfloat16."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def activate(s, ACTIVATION: tl.constexpr):
    """Comparisons are written so that a NaN stays one."""
    if ACTIVATION == RELU:
        return tl.where(s <= 0, 0.0, s)
    elif ACTIVATION == RELU_SQUARED:
        positive = tl.where(s <= 0, 0.0, s)
        return positive * positive
    elif ACTIVATION == RELU_EXP:
        return tl.where(s <= 0, 0.0, tl.exp(tl.where(s > HIGHEST, HIGHEST, s)) - 1)
    else:
        small = tl.exp(-tl.abs(s))
        return tl.where(s >= 0, 1.0, small) / (1 + small)


@triton.jit
def slope(s, a, ACTIVATION: tl.constexpr):
    """Returns a'(s), given a = a(s)."""
    if ACTIVATION == RELU:
        return tl.where(s > 0, 1.0, 0.0)
    elif ACTIVATION == RELU_SQUARED:
        return tl.where(s > 0, 2 * s, 0.0)
    elif ACTIVATION == RELU_EXP:
        return tl.where((s > 0) & (s <= HIGHEST), a + 1, 0.0)
    else:
        return a * (1 - a)


@triton.jit
def log_or_zero(u):
    return tl.log(tl.where(u > 0, u, 1.0))


@triton.jit
def load_tile(base, step, lines, end, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load lines of a matrix as (len(lines), PADDED), with 0 outside of it."""
    columns = tl.arange(0, PADDED)
    inside = (lines[:, None] < end) & (columns[None, :] < WIDTH)
    return tl.load(base + lines[:, None].to(tl.int64) * step + columns[None, :], mask=inside, other=0.0)


@triton.jit
def store_tile(base, tile, lines, end, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Store a tile into a contiguous matrix of rows of WIDTH."""
    columns = tl.arange(0, PADDED)
    inside = (lines[:, None] < end) & (columns[None, :] < WIDTH)
    target = base + lines[:, None].to(tl.int64) * WIDTH + columns[None, :]
    tl.store(target, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def load_line(base, lines, end):
    return tl.load(base + lines, mask=lines < end, other=0.0).to(tl.float32)


@triton.jit
def visible_pairs(mask, rows, slots, n_rows, n_slots, first, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """Returns (BQ, BK): which slots the rows may see; `first` is the position of row 0."""
    pairs = (rows[:, None] < n_rows) & (slots[None, :] < n_slots)
    if CAUSAL:
        pairs = pairs & (slots[None, :] <= rows[:, None] + first)
    if MASKED:
        pairs = pairs & (tl.load(mask + slots, mask=slots < n_slots, other=0) != 0)[None, :]
    return pairs


@triton.jit
def scores_of(q, k, bias, shift, slots, n_slots, scale, BIASED: tl.constexpr, WIDEN: tl.constexpr):
    s = product(q, tl.trans(k), WIDEN) * scale - shift[:, None]
    if BIASED:
        s += load_line(bias, slots, n_slots)[None, :]
    return s


@triton.jit
def read_rows(
    Q, K, V, MASK, BIAS, SHIFT, FACTOR, OUT, SUM, W_LOG_W, ZEROS,
    q_batch, q_head, q_row, k_batch, k_head, k_slot, v_batch, v_head, v_slot,
    heads, n_rows, n_slots, first, scale,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    ACTIVATION: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    SUMS: tl.constexpr, ENTROPIES: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Read BQ rows of one head in each program."""
    head = tl.program_id(1).to(tl.int64)
    b, h = head // heads, head % heads
    rows = tl.program_id(0) * BQ + tl.arange(0, BQ)
    q = load_tile(Q + b * q_batch + h * q_head, q_row, rows, n_rows, D, BD)
    factor = load_line(FACTOR + b * n_rows, rows, n_rows)
    shift = load_line(SHIFT + head * n_rows, rows, n_rows)
    out = tl.zeros((BQ, BV), tl.float32)
    row_sum = tl.zeros((BQ,), tl.float32)
    w_log_w = tl.zeros((BQ,), tl.float32)
    zeros = tl.zeros((BQ,), tl.float32)
    end = n_slots
    if CAUSAL:
        end = tl.minimum(n_slots, (tl.program_id(0) + 1) * BQ + first)
    for start in range(0, end, BK):
        slots = start + tl.arange(0, BK)
        k = load_tile(K + b * k_batch + h * k_head, k_slot, slots, n_slots, D, BD)
        v = load_tile(V + b * v_batch + h * v_head, v_slot, slots, n_slots, DV, BV)
        s = scores_of(q, k, BIAS + head * n_slots, shift, slots, n_slots, scale, BIASED, WIDEN)
        seen = visible_pairs(MASK + b * n_slots, rows, slots, n_rows, n_slots, first, CAUSAL, MASKED)
        a = tl.where(seen, activate(s, ACTIVATION), 0.0)
        out += product(a.to(v.dtype), v, WIDEN)
        if SUMS:
            u = a * factor[:, None]
            row_sum += tl.sum(u, 1)
            if ENTROPIES:
                w_log_w += tl.sum(u * log_or_zero(u), 1)
                zeros += tl.sum(tl.where(seen & (u == 0), 1.0, 0.0), 1)
    store_tile(OUT + head * n_rows * DV, out * factor[:, None], rows, n_rows, DV, BV)
    if SUMS:
        tl.store(SUM + head * n_rows + rows, row_sum, mask=rows < n_rows)
        if ENTROPIES:
            tl.store(W_LOG_W + head * n_rows + rows, w_log_w, mask=rows < n_rows)
            tl.store(ZEROS + head * n_rows + rows, zeros, mask=rows < n_rows)


@triton.jit
def score_gradient(
    s, a, g, v, factor, d_sum, d_w_log_w,
    ACTIVATION: tl.constexpr, SUMS: tl.constexpr, ENTROPIES: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Returns ds (BQ, BK), not yet 0 at hidden pairs."""
    d_a = product(g, tl.trans(v), WIDEN)
    if SUMS:
        d_a += (factor * d_sum)[:, None]
        if ENTROPIES:
            u = a * factor[:, None]
            d_a += tl.where(u > 0, (factor * d_w_log_w)[:, None] * (1 + log_or_zero(u)), 0.0)
    return d_a * slope(s, a, ACTIVATION)


@triton.jit
def differentiate_rows(
    Q, K, V, MASK, BIAS, SHIFT, FACTOR, D_OUT, D_SUM, D_W_LOG_W, D_Q, D_SHIFT,
    q_batch, q_head, q_row, k_batch, k_head, k_slot, v_batch, v_head, v_slot,
    heads, n_rows, n_slots, first, scale,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    ACTIVATION: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    SUMS: tl.constexpr, ENTROPIES: tl.constexpr, WIDEN: tl.constexpr, WITH_D_SHIFT: tl.constexpr,
):  # fmt: skip
    """Compute dq of BQ rows, and dt if asked, in each program of the backward pass."""
    head = tl.program_id(1).to(tl.int64)
    b, h = head // heads, head % heads
    rows = tl.program_id(0) * BQ + tl.arange(0, BQ)
    q = load_tile(Q + b * q_batch + h * q_head, q_row, rows, n_rows, D, BD)
    factor = load_line(FACTOR + b * n_rows, rows, n_rows)
    shift = load_line(SHIFT + head * n_rows, rows, n_rows)
    g = load_tile(D_OUT + head * n_rows * DV, DV, rows, n_rows, DV, BV).to(tl.float32) * factor[:, None]
    g = g.to(q.dtype)
    d_sum = load_line(D_SUM + head * n_rows, rows, n_rows) if SUMS else shift
    d_w_log_w = load_line(D_W_LOG_W + head * n_rows, rows, n_rows) if ENTROPIES else shift
    d_q = tl.zeros((BQ, BD), tl.float32)
    d_shift = tl.zeros((BQ,), tl.float32)
    end = n_slots
    if CAUSAL:
        end = tl.minimum(n_slots, (tl.program_id(0) + 1) * BQ + first)
    for start in range(0, end, BK):
        slots = start + tl.arange(0, BK)
        k = load_tile(K + b * k_batch + h * k_head, k_slot, slots, n_slots, D, BD)
        v = load_tile(V + b * v_batch + h * v_head, v_slot, slots, n_slots, DV, BV)
        s = scores_of(q, k, BIAS + head * n_slots, shift, slots, n_slots, scale, BIASED, WIDEN)
        a = activate(s, ACTIVATION)
        d_s = score_gradient(s, a, g, v, factor, d_sum, d_w_log_w, ACTIVATION, SUMS, ENTROPIES, WIDEN)
        seen = visible_pairs(MASK + b * n_slots, rows, slots, n_rows, n_slots, first, CAUSAL, MASKED)
        d_s = tl.where(seen, d_s, 0.0)
        d_q += product(d_s.to(k.dtype), k, WIDEN)
        if WITH_D_SHIFT:
            d_shift -= tl.sum(d_s, 1)
    store_tile(D_Q + head * n_rows * D, d_q * scale, rows, n_rows, D, BD)
    if WITH_D_SHIFT:
        tl.store(D_SHIFT + head * n_rows + rows, d_shift, mask=rows < n_rows)


@triton.jit
def differentiate_slots(
    Q, K, V, MASK, BIAS, SHIFT, FACTOR, D_OUT, D_SUM, D_W_LOG_W, D_K, D_V, D_BIAS,
    q_batch, q_head, q_row, k_batch, k_head, k_slot, v_batch, v_head, v_slot,
    heads, n_rows, n_slots, first, scale,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    ACTIVATION: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    SUMS: tl.constexpr, ENTROPIES: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Compute dk, dv and db of BK slots in each program of the backward pass."""
    head = tl.program_id(1).to(tl.int64)
    b, h = head // heads, head % heads
    slots = tl.program_id(0) * BK + tl.arange(0, BK)
    k = load_tile(K + b * k_batch + h * k_head, k_slot, slots, n_slots, D, BD)
    v = load_tile(V + b * v_batch + h * v_head, v_slot, slots, n_slots, DV, BV)
    d_k = tl.zeros((BK, BD), tl.float32)
    d_v = tl.zeros((BK, BV), tl.float32)
    d_bias = tl.zeros((BK,), tl.float32)
    begin = 0
    if CAUSAL:
        begin = tl.maximum(0, tl.program_id(0) * BK - first) // BQ * BQ
    for start in range(begin, n_rows, BQ):
        rows = start + tl.arange(0, BQ)
        q = load_tile(Q + b * q_batch + h * q_head, q_row, rows, n_rows, D, BD)
        factor = load_line(FACTOR + b * n_rows, rows, n_rows)
        shift = load_line(SHIFT + head * n_rows, rows, n_rows)
        g = load_tile(D_OUT + head * n_rows * DV, DV, rows, n_rows, DV, BV).to(tl.float32) * factor[:, None]
        g = g.to(q.dtype)
        d_sum = load_line(D_SUM + head * n_rows, rows, n_rows) if SUMS else shift
        d_w_log_w = load_line(D_W_LOG_W + head * n_rows, rows, n_rows) if ENTROPIES else shift
        s = scores_of(q, k, BIAS + head * n_slots, shift, slots, n_slots, scale, BIASED, WIDEN)
        a = activate(s, ACTIVATION)
        d_s = score_gradient(s, a, g, v, factor, d_sum, d_w_log_w, ACTIVATION, SUMS, ENTROPIES, WIDEN)
        seen = visible_pairs(MASK + b * n_slots, rows, slots, n_rows, n_slots, first, CAUSAL, MASKED)
        d_s = tl.where(seen, d_s, 0.0)
        d_v += product(tl.trans(tl.where(seen, a, 0.0)).to(g.dtype), g, WIDEN)
        d_k += product(tl.trans(d_s).to(q.dtype), q, WIDEN)
        d_bias += tl.sum(d_s, 0)
    store_tile(D_K + head * n_slots * D, d_k * scale, slots, n_slots, D, BD)
    store_tile(D_V + head * n_slots * DV, d_v, slots, n_slots, DV, BV)
    if BIASED:
        tl.store(D_BIAS + head * n_slots + slots, d_bias, mask=slots < n_slots)
