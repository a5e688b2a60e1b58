// Backward with sparse rows: a task is a stretch of keys of one head against all queries that see them, as in
// backward.h, and the rows that are not read sparsely go through the tiles there.
//
// The pairs of a tile come from the list, or are found again. With them in the order of rows
//
//   dP_ij = g_i . v_j,    dS_ij = (dP_ij + c_i + e_i log a_ij) act'(s_ij),    dQ_i += sum_j dS_ij k_j
//
// and in the order of slots dV_j += sum_i a_ij g_i and dK_j += sum_i dS_ij q_i, so that all sums stay in registers.
#pragma once

struct SparseBackwardBuffers {
    BackwardBuffers dense;
    PairBuffers pairs;
    Lines values;
    float *q, *d_out;  // the sparse rows, PAIR_ROWS lines after the other
    int64_t q_floats, out_floats;
    float *products, *d_scores;
    Entries by_slot;
    float *weights_by_slot, *d_scores_by_slot;
    uint8_t* sparse;  // a flag a row

    SparseBackwardBuffers(Scratch& scratch, const Problem& problem)
        : dense(scratch, problem), pairs(scratch, problem, problem.queries) {
        const int64_t tiles = (problem.queries + PAIR_ROWS - 1) / PAIR_ROWS;
        values = PairBuffers::take_lines(scratch, problem.value_width, PAIR_SLOTS);
        q_floats = Lines::close_floats(problem.width, PAIR_ROWS);
        out_floats = Lines::close_floats(problem.value_width, PAIR_ROWS);
        q = scratch.take(tiles * q_floats);
        d_out = scratch.take(tiles * out_floats);
        products = scratch.take(PAIRS + 64);
        d_scores = scratch.take(PAIRS + 64);
        by_slot.start = PairBuffers::take<int32_t>(scratch, PAIR_SLOTS + 1);
        by_slot.place = PairBuffers::take<uint8_t>(scratch, PAIRS + 64);
        weights_by_slot = scratch.take(PAIRS + 64);
        d_scores_by_slot = scratch.take(PAIRS + 64);
        sparse = PairBuffers::take<uint8_t>(scratch, problem.queries);
    }

    // The rows of the tile that begins at this one: q times the scale, and the gradient times the row's factor.
    Lines q_of(int64_t row, int64_t width) const { return Lines::close(q + row / PAIR_ROWS * q_floats, width, PAIR_ROWS); }
    Lines d_out_of(int64_t row, int64_t width) const {
        return Lines::close(d_out + row / PAIR_ROWS * out_floats, width, PAIR_ROWS);
    }
};

inline void load_sparse_rows(const Gradient& gradient, const SparseBackwardBuffers& buffers, int64_t b, int64_t h) {
    const Problem& problem = gradient.forward;
    const float scale = static_cast<float>(problem.scale);
    for (int64_t i = 0; i < problem.queries; ++i) {
        if (!buffers.sparse[i]) continue;
        buffers.q_of(i, problem.width).set(i % PAIR_ROWS, problem.q.at(b, h, i), problem.width, scale);
        buffers.d_out_of(i, problem.value_width)
            .set(i % PAIR_ROWS, gradient.d_out.at(b, h, i), problem.value_width, buffers.dense.factor[i]);
    }
}

// A record of the list as the pairs of a tile. replace: a flag for each row whose pairs are found again, or null.
template <class Act>
inline void load_pairs(const PairBuffers& pairs, const uint8_t* record, const PairRows& rows, const bool* replace,
                       const Lines& q, int64_t width, bool has_key_bias) {
    int32_t count = 0, recorded = 0;
    for (int32_t i = 0; i < rows.count; ++i) recorded += record[i];
    const uint8_t *kept = record + PAIR_ROWS, *places = kept + sizeof(float) * recorded;
    if (replace == nullptr) {
        for (int32_t i = 0; i < rows.count; ++i) {
            pairs.entries.start[i] = count;
            count += record[i];
        }
        std::memcpy(pairs.kept, kept, sizeof(float) * count);
        std::memcpy(pairs.entries.place, places, count);
    } else {
        for (int32_t i = 0; i < rows.count; kept += sizeof(float) * record[i], places += record[i], ++i) {
            pairs.entries.start[i] = count;
            if (replace[i]) {
                count = find_pairs_of_row<Act>(pairs, rows, i, count, q, width, has_key_bias);
            } else {
                std::memcpy(pairs.kept + count, kept, sizeof(float) * record[i]);
                std::memcpy(pairs.entries.place + count, places, record[i]);
                count += record[i];
            }
        }
    }
    pairs.entries.start[rows.count] = count;
    std::memset(pairs.entries.place + count, 0, 64);
    if (Act::keeps_weight) return;
    for (int32_t e = 0; e < count; e += LANES) store(pairs.weights + e, Act::weight(load(pairs.kept + e)));
}

// dS of all pairs of a tile, and their sums over rows where d_row_bias wants them.
template <class Act, bool Logs>
inline void pair_gradients(const SparseBackwardBuffers& buffers, const PairRows& rows, float* d_row_bias) {
    const PairBuffers& pairs = buffers.pairs;
    for (int32_t i = 0; i < rows.count; ++i) {
        const float constant = buffers.dense.constant[rows.first + i];
        const float log_factor = Logs ? buffers.dense.log_factor[rows.first + i] : 0.0f;
        const int32_t begin = pairs.entries.start[i], end = pairs.entries.start[i + 1];
        Vector sum{};
        for (int32_t e = begin; e < end; e += LANES) {
            Vector d = load(buffers.products + e) + constant;
            if (Logs) d += log_factor * logarithm((lane_numbers() < end - e) ? load(pairs.weights + e) : Vector{});
            d = Act::times_kept_slope(d, load(pairs.kept + e));
            store(buffers.d_scores + e, d);
            if (d_row_bias != nullptr) sum += (lane_numbers() < end - e) ? d : Vector{};
        }
        if (d_row_bias != nullptr) d_row_bias[rows.first + i] += total(sum);
    }
}

// One tile of keys against a tile of rows whose pairs are known.
template <class Act, bool Logs>
inline void add_pair_gradients(const Gradient& gradient, const SparseBackwardBuffers& buffers, const PairRows& rows,
                               const KeyTile& tile, float* d_q, float* d_row_bias) {
    const Problem& problem = gradient.forward;
    const BackwardBuffers& dense = buffers.dense;
    const PairBuffers& pairs = buffers.pairs;
    const Entries &by_row = pairs.entries, &by_slot = buffers.by_slot;
    const Lines q = buffers.q_of(rows.first, problem.width), d_out = buffers.d_out_of(rows.first, problem.value_width);
    products_of_entries(buffers.products, d_out, buffers.values, problem.value_width, by_row, rows.count);
    pair_gradients<Act, Logs>(buffers, rows, gradient.d_row_bias.data == nullptr ? nullptr : d_row_bias);
    add_entries(Lines::plain(d_q, dense.d_q_stride).from(rows.first), buffers.d_scores, pairs.keys, problem.width, by_row,
                rows.count);
    transpose_entries(by_slot, buffers.weights_by_slot, buffers.d_scores_by_slot, by_row, pairs.weights,
                      buffers.d_scores, rows.count, tile.count);
    add_entries(Lines::plain(dense.d_v, dense.d_v_stride), buffers.weights_by_slot, d_out, problem.value_width, by_slot,
                tile.count);
    add_entries(Lines::plain(dense.d_k, dense.d_q_stride), buffers.d_scores_by_slot, q, problem.width, by_slot,
                tile.count);
    if (gradient.d_key_bias.data == nullptr) return;
    for (int32_t j = 0; j < tile.count; ++j)
        for (int32_t e = by_slot.start[j]; e < by_slot.start[j + 1]; ++e)
            dense.d_key_bias[j] += buffers.d_scores_by_slot[e];
}

// The sparse rows of a head. Rows and slots are quantized for the first tile whose pairs are not in the list.
struct SparseRows {
    const Gradient& gradient;
    const Rows& rows;
    const SparseRun& run;
    const SparseBackwardBuffers& buffers;
    CandidateScale scale;
    int64_t b, h;
    bool rows_quantized = false;

    SparseRows(const Gradient& gradient_, const Rows& rows_, const SparseRun& run_,
               const SparseBackwardBuffers& buffers_, int64_t b_, int64_t h_)
        : gradient(gradient_), rows(rows_), run(run_), buffers(buffers_),
          scale(candidate_scale(gradient_.forward, rows_, b_, h_)), b(b_), h(h_) {}

    template <class Act, bool Logs>
    void add(const KeyTile& tile, float* d_q, float* d_row_bias) {
        const Problem& problem = gradient.forward;
        const PairBuffers& pairs = buffers.pairs;
        const int32_t* slots = rows.slots(b) + tile.first;
        bool loaded = false, quantized = false;
        for (int64_t row = 0; row < problem.queries; row += PAIR_ROWS) {
            const uint8_t* sparse = buffers.sparse + row;
            const int64_t row_end = row + PAIR_ROWS < problem.queries ? row + PAIR_ROWS : problem.queries;
            if (!any_sparse(sparse, row_end - row) || rows.visible(b, row_end - 1) <= tile.first) continue;
            if (!loaded) {
                load_keys(pairs, problem, b, h, slots, tile.count);
                load_slots(buffers.values, problem.v, b, h, slots, tile.count, problem.value_width);
                loaded = true;
            }
            const PairRows tile_rows = pair_rows(rows, b, h, row, row_end, tile, sparse);
            if (const uint8_t* record = run.list.find(b, h, row, tile.first)) {
                bool capped[PAIR_ROWS], any_capped = false;
                for (int32_t i = 0; problem.capped() && i < tile_rows.count; ++i)
                    any_capped |= capped[i] = tile_rows.seen[i] > 0 && rows.capped(b, h, row + i);
                load_pairs<Act>(pairs, record, tile_rows, any_capped ? capped : nullptr, buffers.q_of(row, problem.width),
                                problem.width, problem.key_bias.data != nullptr);
            } else {
                if (!rows_quantized)
                    quantize_rows(pairs, problem, rows, scale, b, h, 0, problem.queries, buffers.sparse);
                if (!quantized)
                    quantize_slots(pairs.slot_quanta, pairs.one_quanta, problem.k, problem.key_bias.at(b, h), b, h, slots,
                                   tile.count, scale);
                rows_quantized = quantized = true;
                find_pairs<Act>(pairs, tile_rows, tile, buffers.q_of(row, problem.width),
                                pairs.row_quanta + row * scale.quanta, scale, problem.key_bias.data != nullptr);
            }
            add_pair_gradients<Act, Logs>(gradient, buffers, tile_rows, tile, d_q, d_row_bias);
        }
    }
};

template <class Act, bool Logs>
inline void sparse_backward_task(const Gradient& gradient, const Rows& rows, const SparseRun& run,
                                 const SparseBackwardBuffers& buffers, float* d_q, float* d_row_bias, int64_t b,
                                 int64_t h, int32_t begin, int32_t end) {
    const Problem& problem = gradient.forward;
    const bool any = choose_rows(buffers.sparse, problem, rows, run, b, h, 0, problem.queries);
    begin_backward(gradient, rows, buffers.dense, d_q, b, h, buffers.sparse);
    if (any) load_sparse_rows(gradient, buffers, b, h);
    SparseRows sparse_rows(gradient, rows, run, buffers, b, h);
    for (int32_t first = begin; first < end; first += KEYS) {
        const KeyTile tile{first, end - first < KEYS ? end - first : KEYS};
        begin_keys(buffers.dense);
        backward_tile<Act, Logs>(gradient, rows, buffers.dense, d_q, d_row_bias, b, h, tile, buffers.sparse);
        if (any) sparse_rows.add<Act, Logs>(tile, d_q, d_row_bias);
        finish_keys(gradient, buffers.dense, b, h, rows.slots(b) + first, tile.count);
    }
}

inline int64_t sparse_backward_floats(const Problem& problem) {
    Scratch counted;
    SparseBackwardBuffers(counted, problem);
    return counted.used();
}

template <class Act>
inline void sparse_backward_with(const Gradient& gradient, const Rows& rows, const SparseRun& run,
                                 const SparseBackwardBuffers& buffers, float* d_q, float* d_row_bias, int64_t b,
                                 int64_t h, int32_t begin, int32_t end) {
    if (gradient.d_entropy.data == nullptr) {
        sparse_backward_task<Act, false>(gradient, rows, run, buffers, d_q, d_row_bias, b, h, begin, end);
    } else {
        sparse_backward_task<Act, true>(gradient, rows, run, buffers, d_q, d_row_bias, b, h, begin, end);
    }
}

// activation: any but SIGMOID
inline void sparse_backward(const Gradient& gradient, const Rows& rows, const SparseRun& run, float* memory, float* d_q,
                            float* d_row_bias, int64_t b, int64_t h, int32_t begin, int32_t end) {
    Scratch scratch(memory);
    const SparseBackwardBuffers buffers(scratch, gradient.forward);
    switch (gradient.forward.activation) {
        case RELU_SQUARED:
            return sparse_backward_with<ReluSquared>(gradient, rows, run, buffers, d_q, d_row_bias, b, h, begin, end);
        case RELU_EXP:
            return sparse_backward_with<ReluExp>(gradient, rows, run, buffers, d_q, d_row_bias, b, h, begin, end);
        default: return sparse_backward_with<Relu>(gradient, rows, run, buffers, d_q, d_row_bias, b, h, begin, end);
    }
}
