// Backward: a task is a stretch of keys of one head, against all queries that see them.
//
// With g_i the factor of row i, w = g a, and the gradients of the read, of the row sum R and of the entropy H:
//
//   dL/da_ij = g_i dO_i v_j + c_i + e_i log a_ij
//   c_i = dR_i dR/dA - [divided by the row sum] g_i dO_i O_i + dH_i (sum a log a) / A^2,    e_i = -dH_i / A
//
// and from there dS = da act'(s), dV = a^T (g dO), dQ = scale dS K, dK = scale dS^T Q. The scores of a tile are
// computed anew; a tile writes the gradients of its own keys, and adds to those of the queries.
#pragma once

struct BackwardBuffers {
    float *q, *d_out, *keys, *values, *key_panels, *key_bias, *weights, *slopes, *d_k, *d_v, *d_key_bias;
    float *factor, *constant, *log_factor;
    float *saved_d_k, *saved_d_v;
    int64_t q_stride, out_stride, d_q_stride, d_v_stride;

    BackwardBuffers(Scratch& scratch, const Problem& problem) {
        const int64_t width = round_up(problem.width, WIDTH), value_width = round_up(problem.value_width, WIDTH);
        q_stride = width + 16;
        out_stride = value_width + 16;
        d_q_stride = width;
        d_v_stride = value_width;
        q = scratch.take((round_up(problem.queries, QUERIES) + ROWS) * q_stride);
        d_out = scratch.take((round_up(problem.queries, QUERIES) + ROWS) * out_stride);
        keys = scratch.take(KEYS * problem.width);
        values = scratch.take(KEYS * problem.value_width);
        key_panels = scratch.take(KEYS * width);
        key_bias = scratch.take(KEYS);
        weights = scratch.take(QUERIES * STRIDE);
        slopes = scratch.take(QUERIES * STRIDE);
        d_k = scratch.take((KEYS + ROWS) * width);
        d_v = scratch.take((KEYS + ROWS) * value_width);
        d_key_bias = scratch.take(KEYS);
        factor = scratch.take(problem.queries);
        constant = scratch.take(problem.queries);
        log_factor = scratch.take(problem.queries);
        saved_d_k = scratch.take(ROWS * width);
        saved_d_v = scratch.take(ROWS * value_width);
    }
};

// g, c and e of every row of a head.
inline void row_coefficients(const Gradient& gradient, const Rows& rows, const BackwardBuffers& buffers, int64_t b,
                             int64_t h) {
    const Problem& problem = gradient.forward;
    const float* sums = problem.sum.at(b, h);
    const float* mean_logs = problem.mean_log.at(b, h);
    const float* d_row_sum = gradient.d_row_sum.at(b, h);
    const float* d_entropy = gradient.d_entropy.at(b, h);
    const bool divided = problem.delta >= 0;
    for (int64_t i = 0; i < problem.queries; ++i) {
        const float sum = sums == nullptr ? 0.0f : sums[i], scale = rows.scale(b, i);
        const float factor = row_factor(problem, scale, sum);
        float constant = 0.0f, log_factor = 0.0f;
        if (d_row_sum != nullptr) {  // R = g A, and dg/dA = -g^2; g - g^2 A without the square, which may underflow
            const float delta = static_cast<float>(problem.delta);
            constant += d_row_sum[i] * factor * (divided ? delta / (delta + scale * sum) : 1.0f);
        }
        if (divided) {
            const float *d_out = gradient.d_out.at(b, h, i), *out = problem.out.at(b, h, i);
            float product = 0.0f;
            for (int64_t c = 0; c < problem.value_width; ++c) product += d_out[c] * out[c];
            constant -= factor * product;
        }
        if (d_entropy != nullptr && sum > 0) {
            constant += d_entropy[i] * mean_logs[i] / sum;
            log_factor = -d_entropy[i] / sum;
        }
        buffers.factor[i] = factor;
        buffers.constant[i] = constant;
        buffers.log_factor[i] = log_factor;
    }
}

// dS of a tile, over the slopes where they were kept; zeros in the blocks that are not live.
template <class Act, bool Logs>
inline void score_gradients(const BackwardBuffers& buffers, const float* d_out, int64_t value_width,
                            const QueryTile& rows, const KeyTile& tile, const uint32_t* live) {
    for (int32_t panel = 0; panel < tile.panels(); ++panel)
        for (int32_t group = 0; group < rows.groups(); ++group) {
            const int64_t at = group * ROWS * STRIDE + panel * WIDTH;
            if (!(live[panel] >> group & 1)) {
                store_block(buffers.slopes + at, STRIDE, zero_block());
                continue;
            }
            Block block = zero_block();
            multiply(block, d_out + group * ROWS * buffers.out_stride, buffers.out_stride, 1,
                     buffers.values + panel * WIDTH * value_width, WIDTH, value_width);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; ++r) {
                const int32_t row = group * ROWS + r;
                const bool inside = row < rows.count;
                const float constant = inside ? buffers.constant[rows.first + row] : 0.0f;
                const float log_factor = Logs && inside ? buffers.log_factor[rows.first + row] : 0.0f;
#pragma GCC unroll 2
                for (int side = 0; side < 2; ++side) {
                    const int64_t place = at + r * STRIDE + side * LANES;
                    const Vector a = load(buffers.weights + place);
                    Vector d = block.at[r][side] + constant;
                    if (Logs) d += log_factor * logarithm(a);
                    if (Act::slope_kept) {  // a slope of 0 is that of a hidden pair, whatever d is
                        const Vector slope = load(buffers.slopes + place);
                        d = (slope == 0.0f) ? Vector{} : d * slope;
                    } else {
                        d = Act::times_slope(d, a);
                    }
                    store(buffers.slopes + place, d);
                }
            }
        }
}

inline void add_bias_gradients(const Gradient& gradient, const BackwardBuffers& buffers, float* d_row_bias,
                               const QueryTile& rows, const KeyTile& tile) {
    for (int32_t i = 0; i < rows.count; ++i) {
        const float* from = buffers.slopes + i * STRIDE;
        Vector sum{};
        for (int32_t j = 0; j < tile.panels() * WIDTH; j += LANES) {
            const Vector d = load(from + j);
            sum += d;
            store(buffers.d_key_bias + j, load(buffers.d_key_bias + j) + d);
        }
        if (gradient.d_row_bias.data != nullptr) d_row_bias[rows.first + i] += total(sum);
    }
}

inline void write_rows(const Tensor4& to, int64_t b, int64_t h, const int32_t* slots, int32_t count, const float* from,
                       int64_t stride, int64_t width) {
    for (int32_t j = 0; j < count; ++j)
        std::memcpy(to.at(b, h, slots[j]), from + j * stride, sizeof(float) * width);
}

// sparse: a flag for each row that is read otherwise, or null.
inline void begin_backward(const Gradient& gradient, const Rows& rows, const BackwardBuffers& buffers, float* d_q,
                           int64_t b, int64_t h, const uint8_t* sparse) {
    const Problem& problem = gradient.forward;
    const float scale = static_cast<float>(problem.scale);
    row_coefficients(gradient, rows, buffers, b, h);
    for (int64_t row = 0; row < problem.queries; row += QUERIES) {
        const int64_t end = row + QUERIES < problem.queries ? row + QUERIES : problem.queries;
        if (all_sparse(sparse == nullptr ? nullptr : sparse + row, end - row)) continue;
        copy_rows(buffers.q + row * buffers.q_stride, buffers.q_stride, problem.q, b, h, row, end, problem.width,
                  [=](int64_t) { return scale; });
        copy_rows(buffers.d_out + row * buffers.out_stride, buffers.out_stride, gradient.d_out, b, h, row, end,
                  problem.value_width, [&](int64_t i) { return buffers.factor[i]; });
    }
    std::memset(d_q, 0, sizeof(float) * (round_up(problem.queries, ROWS) + ROWS) * buffers.d_q_stride);
}

inline void begin_keys(const BackwardBuffers& buffers) {
    std::memset(buffers.d_k, 0, sizeof(float) * (KEYS + ROWS) * buffers.d_q_stride);
    std::memset(buffers.d_v, 0, sizeof(float) * (KEYS + ROWS) * buffers.d_v_stride);
    std::memset(buffers.d_key_bias, 0, sizeof(float) * KEYS);
}

inline void finish_keys(const Gradient& gradient, const BackwardBuffers& buffers, int64_t b, int64_t h,
                        const int32_t* slots, int32_t count) {
    const Problem& problem = gradient.forward;
    write_rows(gradient.d_k, b, h, slots, count, buffers.d_k, buffers.d_q_stride, problem.width);
    write_rows(gradient.d_v, b, h, slots, count, buffers.d_v, buffers.d_v_stride, problem.value_width);
    if (gradient.d_key_bias.data != nullptr)
        for (int32_t j = 0; j < count; ++j) gradient.d_key_bias.at(b, h)[slots[j]] = buffers.d_key_bias[j];
}

inline void pack_backward(const Problem& problem, const Rows& rows, const BackwardBuffers& buffers, int64_t b, int64_t h,
                          const KeyTile& tile) {
    const float* key_bias = problem.key_bias.at(b, h);
    const int32_t* slots = rows.slots(b) + tile.first;
    pack_transposed(buffers.keys, problem.k, b, h, slots, tile.count, problem.width);
    pack_transposed(buffers.values, problem.v, b, h, slots, tile.count, problem.value_width);
    pack_panels(buffers.key_panels, problem.k, b, h, slots, tile.count, problem.width);
    if (key_bias != nullptr)
        for (int32_t j = 0; j < tile.count; ++j) buffers.key_bias[j] = key_bias[slots[j]];
}

// Up to QUERIES rows against a tile of keys that is packed.
template <class Act, bool Logs>
inline void backward_queries(const Gradient& gradient, const Rows& rows, const BackwardBuffers& buffers, float* d_q,
                             float* d_row_bias, const QueryTile& queries, const KeyTile& tile) {
    const Problem& problem = gradient.forward;
    const int64_t row = queries.first;
    const float *q = buffers.q + row * buffers.q_stride, *d_out = buffers.d_out + row * buffers.out_stride;
    uint32_t live[PANELS];
    if (!activations<Act, true>(q, buffers.q_stride, buffers.keys, problem.width,
                                problem.key_bias.data == nullptr ? nullptr : buffers.key_bias, queries, tile,
                                rows.biased(), buffers.weights, buffers.slopes, live))
        return;
    score_gradients<Act, Logs>(buffers, d_out, problem.value_width, queries, tile, live);
    add_rows_times_panels(d_q + row * buffers.d_q_stride, buffers.d_q_stride, buffers.slopes, buffers.key_panels,
                          problem.width, queries, tile, live);
    add_keys_times_rows(buffers.d_v, buffers.d_v_stride, buffers.weights, d_out, buffers.out_stride,
                        problem.value_width, queries, tile, live);
    add_keys_times_rows(buffers.d_k, buffers.d_q_stride, buffers.slopes, q, buffers.q_stride, problem.width, queries,
                        tile, live);
    if (gradient.d_row_bias.data != nullptr || gradient.d_key_bias.data != nullptr)
        add_bias_gradients(gradient, buffers, d_row_bias, queries, tile);
}

// One row against the part of a tile that it sees, without a trace in what it does not see.
template <class Act, bool Logs>
inline void backward_row(const Gradient& gradient, const Rows& rows, const BackwardBuffers& buffers, float* d_q,
                         float* d_row_bias, int64_t b, int64_t h, int64_t row, const KeyTile& tile) {
    const int32_t seen = rows.visible(b, row) - tile.first;
    if (seen <= 0) return;
    const KeyTile part{tile.first, seen < tile.count ? seen : tile.count};
    float *d_k = buffers.d_k + part.count * buffers.d_q_stride, *d_v = buffers.d_v + part.count * buffers.d_v_stride;
    const size_t k_bytes = sizeof(float) * ROWS * buffers.d_q_stride, v_bytes = sizeof(float) * ROWS * buffers.d_v_stride;
    std::memcpy(buffers.saved_d_k, d_k, k_bytes);
    std::memcpy(buffers.saved_d_v, d_v, v_bytes);
    pack_backward(gradient.forward, rows, buffers, b, h, part);
    backward_queries<Act, Logs>(gradient, rows, buffers, d_q, d_row_bias, query_tile(rows, b, h, row, row + 1, part, nullptr),
                                part);
    std::memcpy(d_k, buffers.saved_d_k, k_bytes);
    std::memcpy(d_v, buffers.saved_d_v, v_bytes);
}

// One tile of keys against all dense rows; sparse: a flag for each row that is read otherwise, or null.
// Rows that see a part of it are read one by one where anything is not finite, as in forward.h.
template <class Act, bool Logs>
inline void backward_tile(const Gradient& gradient, const Rows& rows, const BackwardBuffers& buffers, float* d_q,
                          float* d_row_bias, int64_t b, int64_t h, const KeyTile& tile, const uint8_t* sparse) {
    const Problem& problem = gradient.forward;
    const int32_t* slots = rows.slots(b) + tile.first;
    bool packed = false;
    for (int64_t row = 0; row < problem.queries; row += QUERIES) {
        const int64_t row_end = row + QUERIES < problem.queries ? row + QUERIES : problem.queries;
        if (rows.visible(b, row_end - 1) <= tile.first) continue;
        const uint8_t* flags = sparse == nullptr ? nullptr : sparse + row;
        if (all_sparse(flags, row_end - row)) continue;
        if (rows.visible(b, row) < tile.first + tile.count &&
            !(all_finite(problem.k, b, h, slots, tile.count, problem.width) &&
              all_finite(problem.v, b, h, slots, tile.count, problem.value_width) &&
              all_finite(buffers.q + row * buffers.q_stride, buffers.q_stride, row_end - row, problem.width) &&
              all_finite(buffers.d_out + row * buffers.out_stride, buffers.out_stride, row_end - row, problem.value_width))) {
            for (int64_t i = row; i < row_end; ++i)
                if (flags == nullptr || !flags[i - row])
                    backward_row<Act, Logs>(gradient, rows, buffers, d_q, d_row_bias, b, h, i, tile);
            packed = false;
            continue;
        }
        if (!packed) pack_backward(problem, rows, buffers, b, h, tile);
        packed = true;
        backward_queries<Act, Logs>(gradient, rows, buffers, d_q, d_row_bias,
                                    query_tile(rows, b, h, row, row_end, tile, flags), tile);
    }
}

// d_q: (queries, width rounded up), the share of these keys, not yet scaled.
template <class Act, bool Logs>
inline void backward_task(const Gradient& gradient, const Rows& rows, const BackwardBuffers& buffers, float* d_q,
                          float* d_row_bias, int64_t b, int64_t h, int32_t begin, int32_t end) {
    begin_backward(gradient, rows, buffers, d_q, b, h, nullptr);
    for (int32_t first = begin; first < end; first += KEYS) {
        const KeyTile tile{first, end - first < KEYS ? end - first : KEYS};
        begin_keys(buffers);
        backward_tile<Act, Logs>(gradient, rows, buffers, d_q, d_row_bias, b, h, tile, nullptr);
        finish_keys(gradient, buffers, b, h, rows.slots(b) + first, tile.count);
    }
}

inline int64_t backward_floats(const Problem& problem) {
    Scratch counted;
    BackwardBuffers(counted, problem);
    return counted.used();
}

// Floats of the gradient of a head's queries as the tasks add them up.
inline int64_t query_gradient_floats(const Problem& problem) {
    return (round_up(problem.queries, ROWS) + ROWS) * round_up(problem.width, WIDTH);
}

template <class Act>
inline void backward_with(const Gradient& gradient, const Rows& rows, const BackwardBuffers& buffers, float* d_q,
                          float* d_row_bias, int64_t b, int64_t h, int32_t begin, int32_t end) {
    if (gradient.d_entropy.data == nullptr) {
        backward_task<Act, false>(gradient, rows, buffers, d_q, d_row_bias, b, h, begin, end);
    } else {
        backward_task<Act, true>(gradient, rows, buffers, d_q, d_row_bias, b, h, begin, end);
    }
}

inline void backward(const Gradient& gradient, const Rows& rows, float* memory, float* d_q, float* d_row_bias,
                     int64_t b, int64_t h, int32_t begin, int32_t end) {
    Scratch scratch(memory);
    const BackwardBuffers buffers(scratch, gradient.forward);
    switch (gradient.forward.activation) {
        case RELU: return backward_with<Relu>(gradient, rows, buffers, d_q, d_row_bias, b, h, begin, end);
        case RELU_SQUARED:
            return backward_with<ReluSquared>(gradient, rows, buffers, d_q, d_row_bias, b, h, begin, end);
        case RELU_EXP: return backward_with<ReluExp>(gradient, rows, buffers, d_q, d_row_bias, b, h, begin, end);
        default: return backward_with<Sigmoid>(gradient, rows, buffers, d_q, d_row_bias, b, h, begin, end);
    }
}

// The gradient of a head's queries: the shares of all its tasks, `step` floats apart, added in order and scaled.
inline void finish_query_gradient(const Gradient& gradient, const float* shares, int64_t step, int64_t parts,
                                  int64_t b, int64_t h) {
    const Problem& problem = gradient.forward;
    const int64_t width = round_up(problem.width, WIDTH);
    const float scale = static_cast<float>(problem.scale);
    for (int64_t i = 0; i < problem.queries; ++i) {
        float* to = gradient.d_q.at(b, h, i);
        int64_t c = 0;
        for (; c + LANES <= problem.width; c += LANES) {
            Vector sum = load(shares + i * width + c);
            for (int64_t part = 1; part < parts; ++part) sum += load(shares + part * step + i * width + c);
            store(to + c, sum * scale);
        }
        for (; c < problem.width; ++c) {
            float sum = shares[i * width + c];
            for (int64_t part = 1; part < parts; ++part) sum += shares[part * step + i * width + c];
            to[c] = sum * scale;
        }
    }
}
