// Forward: a task is a stretch of queries of one head, against all keys that they see.
#pragma once

struct ForwardBuffers {
    float *out, *q, *keys, *values, *key_bias, *weights, *sums, *logs, *nonzeros;
    float* best;  // the largest activations of a row; null without a cap
    int64_t out_stride, q_stride;

    ForwardBuffers(Scratch& scratch, const Problem& problem, int64_t rows) {
        rows = round_up(rows, QUERIES) + ROWS;
        out_stride = round_up(problem.value_width, WIDTH);
        q_stride = round_up(problem.width, WIDTH) + 16;
        out = scratch.take(rows * out_stride);
        q = scratch.take(rows * q_stride);
        keys = scratch.take(KEYS * problem.width);
        values = scratch.take(KEYS * out_stride);
        key_bias = scratch.take(KEYS);
        weights = scratch.take(QUERIES * STRIDE);
        sums = scratch.take(rows * LANES);
        logs = scratch.take(rows * LANES);
        nonzeros = scratch.take(rows * LANES);
        best = problem.capped() ? scratch.take(rows * LANES) : nullptr;
    }
};

// Keeps the larger of what was and what a tile has, LANES numbers a row.
INLINE void raise(float* best, Vector a) {
    const Vector before = load(best);
    store(best, (a > before) ? a : before);
}

// Adds a tile's share of sum a, sum a log a and the number of weights that are not zero, LANES partial sums a row.
template <bool Logs>
inline void add_sums(const ForwardBuffers& buffers, const QueryTile& rows, const KeyTile& tile, const uint32_t* live,
                     int64_t first) {
    for (int32_t i = 0; i < rows.count; ++i) {
        const int64_t at = (first + i) * LANES;
        Vector sum = load(buffers.sums + at), logs = load(buffers.logs + at);
        Vector best{};
        Integers nonzeros{};
        for (int32_t panel = 0; panel < tile.panels(); ++panel) {
            if (!(live[panel] >> (i / ROWS) & 1)) continue;
            const float* from = buffers.weights + i * STRIDE + panel * WIDTH;
            for (int side = 0; side < 2; ++side) {
                const Vector a = load(from + side * LANES);
                sum += a;
                best = (a > best) ? a : best;
                if (Logs) {
                    logs += a * logarithm(a);
                    nonzeros -= (a != 0.0f);
                }
            }
        }
        store(buffers.sums + at, sum);
        if (buffers.best != nullptr) raise(buffers.best + at, best);
        if (Logs) {
            store(buffers.logs + at, logs);
            store(buffers.nonzeros + at, load(buffers.nonzeros + at) + __builtin_convertvector(nonzeros, Vector));
        }
    }
}

// The factor of a row's weights: its row scale, divided by delta + the row sum where the rule says so.
INLINE float row_factor(const Problem& problem, float scale, float sum) {
    return problem.delta < 0 ? scale : scale / (static_cast<float>(problem.delta) + scale * sum);
}

inline void finish_rows(const Problem& problem, const Rows& rows, const ForwardBuffers& buffers, int64_t b, int64_t h,
                        int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
        const int64_t at = (i - begin) * LANES;
        const float sum = total(load(buffers.sums + at)), logs = total(load(buffers.logs + at));
        const float factor = row_factor(problem, rows.scale(b, i), sum);
        const float* from = buffers.out + (i - begin) * buffers.out_stride;
        float* to = problem.out.at(b, h, i);
        int64_t c = 0;
        for (; c + LANES <= problem.value_width; c += LANES) store(to + c, load(from + c) * factor);
        for (; c < problem.value_width; ++c) to[c] = from[c] * factor;
        const float mean_log = sum > 0 ? logs / sum : 0.0f;
        if (problem.sum.data != nullptr) problem.sum.at(b, h)[i] = sum;
        if (problem.mean_log.data != nullptr) problem.mean_log.at(b, h)[i] = mean_log;
        if (problem.row_sum.data == nullptr) continue;
        const int32_t n = rows.visible(b, i);
        problem.row_sum.at(b, h)[i] = sum * factor;
        problem.entropy.at(b, h)[i] = sum > 0 ? std::log(sum) - mean_log : 0.0f;
        problem.zero_fraction.at(b, h)[i] = n > 0 ? (n - total(load(buffers.nonzeros + at))) / n : 0.0f;
    }
}

inline void pack_forward(const Problem& problem, const Rows& rows, const ForwardBuffers& buffers, int64_t b, int64_t h,
                         const KeyTile& tile) {
    const float* key_bias = problem.key_bias.at(b, h);
    const int32_t* slots = rows.slots(b) + tile.first;
    pack_transposed(buffers.keys, problem.k, b, h, slots, tile.count, problem.width);
    pack_panels(buffers.values, problem.v, b, h, slots, tile.count, problem.value_width);
    if (key_bias != nullptr)
        for (int32_t j = 0; j < tile.count; ++j) buffers.key_bias[j] = key_bias[slots[j]];
}

// Up to QUERIES rows, from row `at` of the task on, against a tile of keys that is packed.
template <class Act>
inline void forward_queries(const Problem& problem, const Rows& rows, const ForwardBuffers& buffers, int64_t at,
                            const QueryTile& queries, const KeyTile& tile) {
    const bool statistics = problem.row_sum.data != nullptr;
    const bool sums = statistics || problem.sum.data != nullptr || problem.delta >= 0 || problem.capped();
    uint32_t live[PANELS];
    if (!activations<Act, false>(buffers.q + at * buffers.q_stride, buffers.q_stride, buffers.keys, problem.width,
                                 problem.key_bias.data == nullptr ? nullptr : buffers.key_bias, queries, tile,
                                 rows.biased(), buffers.weights, nullptr, live))
        return;
    if (statistics) {
        add_sums<true>(buffers, queries, tile, live, at);
    } else if (sums) {
        add_sums<false>(buffers, queries, tile, live, at);
    }
    add_rows_times_panels(buffers.out + at * buffers.out_stride, buffers.out_stride, buffers.weights, buffers.values,
                          problem.value_width, queries, tile, live);
}

// The dense rows of a task against one tile of keys. sparse: a flag for each row that is read otherwise, or null.
//
// A block also multiplies what a row does not see, by zero, which is not nothing where a value is not finite. Then the
// rows that see a part of the tile are read one by one, each with no more of it than it sees; the sums are the same.
template <class Act>
inline void forward_tile(const Problem& problem, const Rows& rows, const ForwardBuffers& buffers, int64_t b, int64_t h,
                         int64_t begin, int64_t end, const KeyTile& tile, const uint8_t* sparse) {
    bool packed = false;
    for (int64_t row = begin; row < end; row += QUERIES) {
        const int64_t row_end = row + QUERIES < end ? row + QUERIES : end;
        if (rows.visible(b, row_end - 1) <= tile.first) continue;
        const uint8_t* flags = sparse == nullptr ? nullptr : sparse + (row - begin);
        if (all_sparse(flags, row_end - row)) continue;
        if (rows.visible(b, row) < tile.first + tile.count &&
            !all_finite(problem.v, b, h, rows.slots(b) + tile.first, tile.count, problem.value_width)) {
            for (int64_t i = row; i < row_end; ++i) {
                const int32_t seen = rows.visible(b, i) - tile.first;
                if (seen <= 0 || (flags != nullptr && flags[i - row])) continue;
                const KeyTile part{tile.first, seen < tile.count ? seen : tile.count};
                pack_forward(problem, rows, buffers, b, h, part);
                forward_queries<Act>(problem, rows, buffers, i - begin, query_tile(rows, b, h, i, i + 1, part, nullptr),
                                     part);
            }
            packed = false;
            continue;
        }
        if (!packed) pack_forward(problem, rows, buffers, b, h, tile);
        packed = true;
        forward_queries<Act>(problem, rows, buffers, row - begin, query_tile(rows, b, h, row, row_end, tile, flags), tile);
    }
}

inline void begin_rows(const Problem& problem, const ForwardBuffers& buffers, int64_t b, int64_t h, int64_t begin,
                       int64_t end) {
    std::memset(buffers.out, 0, sizeof(float) * (end - begin) * buffers.out_stride);
    std::memset(buffers.sums, 0, sizeof(float) * (end - begin) * LANES);
    std::memset(buffers.logs, 0, sizeof(float) * (end - begin) * LANES);
    std::memset(buffers.nonzeros, 0, sizeof(float) * (end - begin) * LANES);
    if (buffers.best != nullptr) std::memset(buffers.best, 0, sizeof(float) * (end - begin) * LANES);
    const float scale = static_cast<float>(problem.scale);
    copy_rows(buffers.q, buffers.q_stride, problem.q, b, h, begin, end, problem.width, [=](int64_t) { return scale; });
}

template <class Act>
inline void forward_task(const Problem& problem, const Rows& rows, const ForwardBuffers& buffers, int64_t b, int64_t h,
                         int64_t begin, int64_t end) {
    begin_rows(problem, buffers, b, h, begin, end);
    const int32_t all = rows.visible(b, end - 1);
    for (int32_t first = 0; first < all; first += KEYS) {
        const KeyTile tile{first, all - first < KEYS ? all - first : KEYS};
        forward_tile<Act>(problem, rows, buffers, b, h, begin, end, tile, nullptr);
    }
    finish_rows(problem, rows, buffers, b, h, begin, end);
}

inline int64_t forward_floats(const Problem& problem, int64_t queries) {
    Scratch counted;
    ForwardBuffers(counted, problem, queries);
    return counted.used();
}

inline void forward(const Problem& problem, const Rows& rows, float* memory, int64_t b, int64_t h, int64_t begin,
                    int64_t end) {
    Scratch scratch(memory);
    const ForwardBuffers buffers(scratch, problem, end - begin);
    switch (problem.activation) {
        case RELU: return forward_task<Relu>(problem, rows, buffers, b, h, begin, end);
        case RELU_SQUARED: return forward_task<ReluSquared>(problem, rows, buffers, b, h, begin, end);
        case RELU_EXP: return forward_task<ReluExp>(problem, rows, buffers, b, h, begin, end);
        default: return forward_task<Sigmoid>(problem, rows, buffers, b, h, begin, end);
    }
}
