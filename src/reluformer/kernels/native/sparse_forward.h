// Forward with sparse rows: a task is a stretch of queries of one head, as in forward.h, and the rows that are not read
// sparsely go through the tiles there.
#pragma once

struct SparseForwardBuffers {
    ForwardBuffers dense;
    PairBuffers pairs;
    CappedBuffers capped;
    Lines values;
    uint8_t* sparse;  // a flag a row

    SparseForwardBuffers(Scratch& scratch, const Problem& problem, int64_t rows)
        : dense(scratch, problem, rows), pairs(scratch, problem, rows), capped(scratch, problem) {
        values = PairBuffers::take_lines(scratch, problem.value_width, PAIR_SLOTS);
        sparse = PairBuffers::take<uint8_t>(scratch, rows);
    }
};

// Adds a tile's share of sum a, sum a log a and the number of pairs, LANES partial sums a row.
template <bool Logs>
inline void add_pair_sums(const ForwardBuffers& buffers, const PairBuffers& pairs, int32_t count, int64_t first) {
    for (int32_t i = 0; i < count; ++i) {
        const int64_t at = (first + i) * LANES;
        const int32_t begin = pairs.entries.start[i], end = pairs.entries.start[i + 1];
        Vector sum = load(buffers.sums + at), logs = load(buffers.logs + at), best{};
        for (int32_t e = begin; e < end; e += LANES) {
            const Vector a = (lane_numbers() < end - e) ? load(pairs.weights + e) : Vector{};
            sum += a;
            best = (a > best) ? a : best;
            if (Logs) logs += a * logarithm(a);
        }
        store(buffers.sums + at, sum);
        if (buffers.best != nullptr) raise(buffers.best + at, best);
        if (!Logs) continue;
        store(buffers.logs + at, logs);
        buffers.nonzeros[at] += static_cast<float>(end - begin);
    }
}

inline void keep_pairs(const SparseRun& run, const PairBuffers& pairs, int32_t rows, int64_t b, int64_t h, int64_t row,
                       int64_t slot) {
    const int32_t* start = pairs.entries.start;
    uint8_t* to = run.list.reserve(b, h, row, slot, start[rows]);
    if (to == nullptr) return;
    for (int32_t i = 0; i < PAIR_ROWS; ++i) to[i] = i < rows ? static_cast<uint8_t>(start[i + 1] - start[i]) : 0;
    std::memcpy(to + PAIR_ROWS, pairs.kept, sizeof(float) * start[rows]);
    std::memcpy(to + PAIR_ROWS + sizeof(float) * start[rows], pairs.entries.place, start[rows]);
}

// The sparse rows of a task against one tile of keys.
template <class Act>
inline void sparse_forward_tile(const Problem& problem, const Rows& rows, const SparseRun& run,
                                const SparseForwardBuffers& buffers, const CandidateScale& scale, int64_t b, int64_t h,
                                int64_t begin, int64_t end, const KeyTile& tile) {
    const bool statistics = problem.row_sum.data != nullptr;
    const bool sums = statistics || problem.sum.data != nullptr || problem.delta >= 0 || problem.capped();
    const int32_t* slots = rows.slots(b) + tile.first;
    const PairBuffers& pairs = buffers.pairs;
    bool loaded = false;
    for (int64_t row = begin; row < end; row += PAIR_ROWS) {
        const int64_t row_end = row + PAIR_ROWS < end ? row + PAIR_ROWS : end, at = row - begin;
        const uint8_t* sparse = buffers.sparse + at;
        if (!any_sparse(sparse, row_end - row) || rows.visible(b, row_end - 1) <= tile.first) continue;
        if (!loaded) {
            load_keys(pairs, problem, b, h, slots, tile.count);
            quantize_slots(pairs.slot_quanta, pairs.one_quanta, problem.k, problem.key_bias.at(b, h), b, h, slots,
                           tile.count, scale);
            load_slots(buffers.values, problem.v, b, h, slots, tile.count, problem.value_width);
            loaded = true;
        }
        const PairRows tile_rows = pair_rows(rows, b, h, row, row_end, tile, sparse);
        find_pairs<Act>(pairs, tile_rows, tile, Lines::plain(buffers.dense.q, buffers.dense.q_stride).from(at),
                        pairs.row_quanta + at * scale.quanta, scale, problem.key_bias.data != nullptr);
        const int32_t found = pairs.entries.start[tile_rows.count];
        run.add(&SparseReport::nonzero_pairs, found);
        run.add(&SparseReport::needed, PairList::record_bytes(found));
        keep_pairs(run, pairs, tile_rows.count, b, h, row, tile.first);
        if (statistics) {
            add_pair_sums<true>(buffers.dense, pairs, tile_rows.count, at);
        } else if (sums) {
            add_pair_sums<false>(buffers.dense, pairs, tile_rows.count, at);
        }
        add_entries(Lines::plain(buffers.dense.out, buffers.dense.out_stride).from(at), pairs.weights, buffers.values,
                    problem.value_width, pairs.entries, tile_rows.count);
    }
}

template <class Act>
inline void sparse_forward_task(const Problem& problem, const Rows& rows, const SparseRun& run,
                                const SparseForwardBuffers& buffers, int64_t b, int64_t h, int64_t begin, int64_t end) {
    begin_rows(problem, buffers.dense, b, h, begin, end);
    const bool any = choose_rows(buffers.sparse, problem, rows, run, b, h, begin, end);
    const CandidateScale scale = candidate_scale(problem, rows, b, h);
    if (any) quantize_rows(buffers.pairs, problem, rows, scale, b, h, begin, end, buffers.sparse);
    int64_t pairs[2] = {0, 0};
    for (int64_t i = begin; i < end; ++i) pairs[buffers.sparse[i - begin]] += rows.visible(b, i);
    run.add(&SparseReport::dense_pairs, pairs[0]);
    run.add(&SparseReport::sparse_pairs, pairs[1]);
    const int32_t all = rows.visible(b, end - 1);
    for (int32_t first = 0; first < all; first += KEYS) {
        const KeyTile tile{first, all - first < KEYS ? all - first : KEYS};
        forward_tile<Act>(problem, rows, buffers.dense, b, h, begin, end, tile, buffers.sparse);
        if (any) sparse_forward_tile<Act>(problem, rows, run, buffers, scale, b, h, begin, end, tile);
    }
    if (problem.capped()) read_capped_rows<Act>(problem, rows, buffers.dense, buffers.capped, b, h, begin, end);
    finish_rows(problem, rows, buffers.dense, b, h, begin, end);
}

inline int64_t sparse_forward_floats(const Problem& problem, int64_t queries) {
    Scratch counted;
    SparseForwardBuffers(counted, problem, queries);
    return counted.used();
}

// activation: any but SIGMOID
inline void sparse_forward(const Problem& problem, const Rows& rows, const SparseRun& run, float* memory, int64_t b,
                           int64_t h, int64_t begin, int64_t end) {
    Scratch scratch(memory);
    const SparseForwardBuffers buffers(scratch, problem, end - begin);
    switch (problem.activation) {
        case RELU_SQUARED: return sparse_forward_task<ReluSquared>(problem, rows, run, buffers, b, h, begin, end);
        case RELU_EXP: return sparse_forward_task<ReluExp>(problem, rows, run, buffers, b, h, begin, end);
        default: return sparse_forward_task<Relu>(problem, rows, run, buffers, b, h, begin, end);
    }
}
