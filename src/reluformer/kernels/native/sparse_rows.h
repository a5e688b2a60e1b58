// Which rows are read sparsely, and the nonzero pairs of a tile of them.
//
// A rule with exact zeros gives most pairs of a query and a slot no weight. A sparse read finds the others, and all that
// follows touches them alone: one product in the forward pass and all four in the backward pass. For each tile of
// PAIR_ROWS queries and PAIR_SLOTS visible slots:
//
//   1. candidates.h   A product of small integers marks the pairs whose score may be positive. It is twice as fast as
//                     the product of floats, its error is bounded, and few pairs are marked in vain.
//   2. here           The marked pairs become a list by row. Their scores are computed in float32, biases are added, the
//                     activation is applied, and pairs without a weight are dropped. So the result is exact.
//   3. forward        Row sums and statistics come from the list, and each row adds up the values of its slots.
//                     pair_list.h keeps the list for the backward pass, or a part of it, within a limit of the caller.
//   4. backward       The list is loaded, or found again, which gives the same bits. Each row multiplies its gradient
//                     with the values of its slots and adds up their keys; then the list is sorted by slot, and each
//                     slot adds up the queries and gradients of its rows. No sum is scattered.
//
// Tasks and their order are those of the dense read, so one thread and many give the same bits.
//
// Rows of one sequence are chosen QUERIES at a time, by the first of them and the first ones of the three lots before:
// these are rows of the sequence whenever any of the lot is, so the choice does not depend on how far a sequence was
// padded, nor on any other sequence.
#pragma once

static_assert(PAIR_ROWS == 2 * QUERIES && PAIR_SLOTS == KEYS, "sparse tiles are made of dense ones");

constexpr int32_t SAMPLED = 32;  // slots of a first row that are looked at
constexpr int32_t WINDOW = 4;    // first rows that decide together
// Slots that a first row must see: with fewer there is little to gain, and half a tile of each kind costs both.
constexpr int32_t LEAST_VISIBLE = 128;
// Reading sparsely pays where at most this share of them has a weight; the backward pass gains more than the forward pass.
constexpr float NONZERO_READING = 0.25f, NONZERO_TRAINING = 0.33f;

// How many of SAMPLED slots have a weight in a row; -1 where it sees too few slots to tell.
inline int32_t sampled_nonzero(const Problem& problem, const Rows& rows, int64_t b, int64_t h, int64_t row) {
    const int64_t visible = rows.visible(b, row);
    if (visible < LEAST_VISIBLE) return -1;
    const float* key_bias = problem.key_bias.at(b, h);
    const float row_bias = rows.given_bias(b, h, row), scale = static_cast<float>(problem.scale);
    int32_t nonzero = 0;
    for (int32_t sample = 0; sample < SAMPLED; ++sample) {
        const int32_t slot = rows.slots(b)[sample * visible / SAMPLED];
        const float bias = row_bias + (key_bias == nullptr ? 0.0f : key_bias[slot]);
        nonzero += scale * dot(problem.q.at(b, h, row), problem.k.at(b, h, slot), problem.width) + bias > 0.0f;
    }
    return nonzero;
}

INLINE bool any_sparse(const uint8_t* sparse, int64_t count) {
    return std::memchr(sparse, 1, static_cast<size_t>(count)) != nullptr;
}

// Sets the flags of rows begin .. end of a head; whether any is set.
inline bool choose_rows(uint8_t* sparse, const Problem& problem, const Rows& rows, const SparseRun& run, int64_t b,
                        int64_t h, int64_t begin, int64_t end) {
    if (run.mode != AUTOMATIC || problem.activation == SIGMOID) {
        std::memset(sparse, run.mode == SPARSE && problem.activation != SIGMOID, static_cast<size_t>(end - begin));
        return any_sparse(sparse, end - begin);
    }
    const float limit = run.list.kept() ? NONZERO_TRAINING : NONZERO_READING;
    int32_t found[WINDOW];
    int64_t looked = -1;  // the last first row whose entry in `found` is known, and with it those before it
    for (int64_t i = begin; i < end;) {
        const int64_t place = i % run.sequence, start = i - place, first = i - place % QUERIES;
        const int64_t oldest = first - (WINDOW - 1) * QUERIES < start ? start : first - (WINDOW - 1) * QUERIES;
        int32_t nonzero = 0, samples = 0;
        for (int64_t row = oldest; row <= first; row += QUERIES) {
            int32_t& count = found[(row - start) / QUERIES % WINDOW];
            if (looked < row) count = sampled_nonzero(problem, rows, b, h, row);
            if (count >= 0) nonzero += count, samples += SAMPLED;
        }
        looked = first;
        const bool enough = rows.visible(b, first) >= LEAST_VISIBLE;
        const bool choice = enough && static_cast<float>(nonzero) <= samples * limit;
        const int64_t sequence_end = start + run.sequence, block_end = first + QUERIES;
        for (; i < end && i < sequence_end && i < block_end; ++i) sparse[i - begin] = choice;
    }
    return any_sparse(sparse, end - begin);
}

// About how long the rows of a tensor are: the mean of a few.
inline float mean_length(const Tensor4& tensor, int64_t b, int64_t h, int64_t count, int64_t width) {
    float sum = 0.0f;
    const int64_t samples = count < 16 ? count : 16;
    for (int64_t i = 0; i < samples; ++i) {
        const float* row = tensor.at(b, h, i * count / samples);
        sum += std::sqrt(dot(row, row, width));
    }
    return samples == 0 ? 0.0f : sum / samples;
}

inline CandidateScale candidate_scale(const Problem& problem, const Rows& rows, int64_t b, int64_t h) {
    if (!rows.biased()) return CandidateScale(problem.width, false, 1.0f, 1.0f);
    const float scale = std::fabs(static_cast<float>(problem.scale));
    return CandidateScale(problem.width, true, mean_length(problem.k, b, h, problem.slots, problem.width),
                          scale * mean_length(problem.q, b, h, problem.queries, problem.width));
}

// The rows of a tile of pairs, and what each of them sees of its slots: nothing where it is read densely.
struct PairRows {
    int32_t first, count;
    int32_t seen[PAIR_ROWS];
    float bias[PAIR_ROWS];
    int32_t most[PAIR_ROWS / ROWS];  // of `seen` in each group of rows

    int32_t groups() const { return (count + ROWS - 1) / ROWS; }
};

// sparse: a flag a row from `first` on.
inline PairRows pair_rows(const Rows& rows, int64_t b, int64_t h, int64_t first, int64_t end, const KeyTile& keys,
                          const uint8_t* sparse) {
    PairRows tile;
    tile.first = static_cast<int32_t>(first);
    tile.count = static_cast<int32_t>(end - first < PAIR_ROWS ? end - first : PAIR_ROWS);
    std::memset(tile.most, 0, sizeof tile.most);
    for (int32_t i = 0; i < PAIR_ROWS; ++i) {
        const bool reads = i < tile.count && sparse[i];
        const int32_t seen = reads ? rows.visible(b, first + i) - keys.first : 0;
        tile.seen[i] = seen < 0 ? 0 : (seen > keys.count ? keys.count : seen);
        tile.bias[i] = reads ? rows.bias(b, h, first + i) : 0.0f;
        if (tile.seen[i] > tile.most[i / ROWS]) tile.most[i / ROWS] = tile.seen[i];
    }
    return tile;
}

// What finding the pairs of tiles needs: the keys of a tile, and memory for a list.
struct PairBuffers {
    Lines keys;
    float* key_bias;
    Quantum *row_quanta, *slot_quanta, *one_quanta;
    uint64_t* bits;
    uint8_t* candidates;
    float* scores;
    // The list: what is kept of each pair, and its weight where that is something else.
    Entries entries;
    float *kept, *weights;

    PairBuffers(Scratch& scratch, const Problem& problem, int64_t rows) {
        const int64_t quanta = CandidateScale(problem.width, true, 1.0f, 1.0f).quanta;
        keys = take_lines(scratch, problem.width, PAIR_SLOTS);
        key_bias = scratch.take(PAIR_SLOTS);
        row_quanta = take<Quantum>(scratch, round_up(rows, PAIR_ROWS) * quanta);
        slot_quanta = take<Quantum>(scratch, PAIR_SLOTS * quanta);
        one_quanta = take<Quantum>(scratch, quanta);
        bits = take<uint64_t>(scratch, PAIR_ROWS * BIT_WORDS);
        candidates = take<uint8_t>(scratch, PAIRS + 64);
        scores = scratch.take(PAIRS + 64);
        entries.start = take<int32_t>(scratch, PAIR_ROWS + 1);
        entries.place = take<uint8_t>(scratch, PAIRS + 64);
        kept = scratch.take(PAIRS + 64);
        weights = problem.activation == RELU_SQUARED ? scratch.take(PAIRS + 64) : kept;
    }

    template <class T>
    static T* take(Scratch& scratch, int64_t count) {
        return reinterpret_cast<T*>(scratch.take((count * static_cast<int64_t>(sizeof(T)) + 3) / 4));
    }
    static Lines take_lines(Scratch& scratch, int64_t width, int64_t count) {
        return Lines::close(scratch.take(Lines::close_floats(width, count)), width, count);
    }
};

// The slots of a tile as lines.
inline void load_slots(const Lines& to, const Tensor4& from, int64_t b, int64_t h, const int32_t* slots, int32_t count,
                       int64_t width) {
    for (int32_t j = 0; j < count; ++j) to.set(j, from.at(b, h, slots[j]), width);
}

// Keys of a tile and their biases.
inline void load_keys(const PairBuffers& buffers, const Problem& problem, int64_t b, int64_t h, const int32_t* slots,
                      int32_t count) {
    const float* key_bias = problem.key_bias.at(b, h);
    load_slots(buffers.keys, problem.k, b, h, slots, count, problem.width);
    if (key_bias != nullptr)
        for (int32_t j = 0; j < count; ++j) buffers.key_bias[j] = key_bias[slots[j]];
}

// The rows begin .. end that `sparse` marks, as candidates want them.
inline void quantize_rows(const PairBuffers& buffers, const Problem& problem, const Rows& rows,
                          const CandidateScale& scale, int64_t b, int64_t h, int64_t begin, int64_t end,
                          const uint8_t* sparse) {
    const float times = static_cast<float>(problem.scale);
    const int64_t padded = round_up(end - begin, ROWS);
    for (int64_t i = 0; i < padded; ++i) {
        Quantum* to = buffers.row_quanta + i * scale.quanta;
        if (begin + i < end && sparse[i]) {
            const float bias = rows.bias(b, h, begin + i) / scale.row_bias;
            quantize(to, problem.q.at(b, h, begin + i), times, bias, scale.key_bias, scale);
        } else {
            std::memset(to, 0, sizeof(Quantum) * scale.quanta);
        }
    }
}

// Appends those of `here` <= LANES pairs whose weight is not zero to the list, which holds `count`; how many it holds then.
// Room for LANES more is written to.
template <class Act>
INLINE int32_t append_nonzero(const PairBuffers& buffers, int32_t count, const uint8_t* places, Vector score,
                              int32_t here) {
    const Vector a = Act::activate(score), kept = Act::kept(score, a);
#if defined(HAS_AVX512)
    const __mmask16 nonzero = static_cast<__mmask16>(
        _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NEQ_UQ) & (here < 16 ? (1u << here) - 1 : 0xffffu));
    using Bytes = uint8_t __attribute__((vector_size(16), aligned(1), may_alias));
    const Integers wide = __builtin_convertvector(*reinterpret_cast<const Bytes*>(places), Integers);
    const Integers chosen =
        reinterpret_cast<Integers>(_mm512_maskz_compress_epi32(nonzero, reinterpret_cast<__m512i>(wide)));
    *reinterpret_cast<Bytes*>(buffers.entries.place + count) = __builtin_convertvector(chosen, Bytes);
    _mm512_storeu_ps(buffers.kept + count, _mm512_maskz_compress_ps(nonzero, kept));
    if (!Act::keeps_weight) _mm512_storeu_ps(buffers.weights + count, _mm512_maskz_compress_ps(nonzero, a));
    return count + __builtin_popcount(nonzero);
#elif defined(HAS_AVX2)
    const unsigned nonzero = static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_NEQ_UQ))) &
                             ((1u << here) - 1);
    const __m128i order = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(PLACES_OF_BITS.at[nonzero]));
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(places));
    const __m256i lanes = _mm256_cvtepu8_epi32(order);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(buffers.entries.place + count), _mm_shuffle_epi8(bytes, order));
    _mm256_storeu_ps(buffers.kept + count, _mm256_permutevar8x32_ps(kept, lanes));
    if (!Act::keeps_weight) _mm256_storeu_ps(buffers.weights + count, _mm256_permutevar8x32_ps(a, lanes));
    return count + __builtin_popcount(nonzero);
#else
    for (int32_t lane = 0; lane < here; ++lane) {
        buffers.entries.place[count] = places[lane];
        buffers.kept[count] = kept[lane];
        if (!Act::keeps_weight) buffers.weights[count] = a[lane];
        count += a[lane] != 0.0f;
    }
    return count;
#endif
}

// Appends the nonzero pairs of one row, whose candidates from `begin` to `end` have scores; how many there are then.
template <class Act>
INLINE int32_t append_row(const PairBuffers& buffers, int32_t count, int32_t begin, int32_t end, float row_bias,
                          bool has_key_bias) {
    for (int32_t e = begin; e < end; e += LANES) {
        Vector score = load(buffers.scores + e);
        if (has_key_bias) {
            Vector bias{};
            for (int lane = 0; lane < LANES; ++lane) bias[lane] = buffers.key_bias[buffers.candidates[e + lane]];
            score += bias + row_bias;
        } else {
            score += row_bias;
        }
        count = append_nonzero<Act>(buffers, count, buffers.candidates + e, score, end - e < LANES ? end - e : LANES);
    }
    return count;
}

// The same of row i of a tile, with all slots that it sees as candidates.
template <class Act>
inline int32_t find_pairs_of_row(const PairBuffers& buffers, const PairRows& rows, int32_t i, int32_t count,
                                 const Lines& q, int64_t width, bool has_key_bias) {
    int32_t start[2] = {0, rows.seen[i]};
    for (int32_t j = 0; j < PAIR_SLOTS + 64; ++j) buffers.candidates[j] = static_cast<uint8_t>(j < rows.seen[i] ? j : 0);
    products_of_entries(buffers.scores, q.from(i), buffers.keys, width, Entries{start, buffers.candidates}, 1);
    return append_row<Act>(buffers, count, 0, rows.seen[i], rows.bias[i], has_key_bias);
}

// The nonzero pairs of a tile, by row. q: the rows of the tile times the scale; quanta: the same rows.
template <class Act>
inline void find_pairs(const PairBuffers& buffers, const PairRows& rows, const KeyTile& tile, const Lines& q,
                       const Quantum* quanta, const CandidateScale& scale, bool has_key_bias) {
    find_candidates(buffers.bits, quanta, buffers.slot_quanta, scale.quanta, scale.slack(), rows.most, rows.groups(),
                    tile.panels());
    const Entries candidates{buffers.entries.start, buffers.candidates};
    list_candidates(candidates.start, candidates.place, buffers.bits, rows.seen, rows.count);
    products_of_entries(buffers.scores, q, buffers.keys, scale.width, candidates, rows.count);
    int32_t count = 0;
    for (int32_t i = 0, begin = 0; i < rows.count; ++i) {
        const int32_t end = candidates.start[i + 1];
        buffers.entries.start[i] = count;
        count = append_row<Act>(buffers, count, begin, end, rows.bias[i], has_key_bias);
        begin = end;
    }
    buffers.entries.start[rows.count] = count;
    std::memset(buffers.entries.place + count, 0, 64);
}
