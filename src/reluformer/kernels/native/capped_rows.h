// Rows whose level is capped: where the best of a row, s_ij + bias_i, stays below `cap`, the bias becomes cap - max_j s_ij,
// so that the best slot is worth activate(cap) and no row dies.
//
// Tiles know the largest activation of each row. Few rows stay below that of the cap, and they are read once more at the
// end of their task, alone: all scores, their maximum, and everything that follows. `Problem` keeps their new bias and
// their best slot for the backward pass. There they are rows like all others, except that a list of pairs holds what they
// read before. What their bias would get as gradient goes to the score of the best slot instead (library.cpp).
#pragma once

INLINE float largest(const float* best) {
    float most = best[0];
    for (int lane = 1; lane < LANES; ++lane) most = best[lane] > most ? best[lane] : most;
    return most;
}

struct CappedBuffers {
    float* scores;
    int32_t* chosen;

    CappedBuffers(Scratch& scratch, const Problem& problem) : scores(nullptr), chosen(nullptr) {
        if (!problem.capped()) return;
        scores = scratch.take(problem.slots + LANES);
        chosen = reinterpret_cast<int32_t*>(scratch.take(problem.slots + LANES));
    }
};

// One row of a task from its scores on.
template <class Act>
inline void read_capped_row(const Problem& problem, const Rows& rows, const ForwardBuffers& buffers,
                            const CappedBuffers& capped, int64_t b, int64_t h, int64_t begin, int64_t i) {
    const int32_t seen = rows.visible(b, i), *slots = rows.slots(b);
    const float *q = buffers.q + (i - begin) * buffers.q_stride, *key_bias = problem.key_bias.at(b, h);
    float* scores = capped.scores;
    int32_t best = 0;
    for (int32_t j = 0; j < seen; ++j) {
        scores[j] = dot(q, problem.k.at(b, h, slots[j]), problem.width) + (key_bias == nullptr ? 0.0f : key_bias[slots[j]]);
        if (scores[j] > scores[best]) best = j;
    }
    const float bias = static_cast<float>(problem.cap) - scores[best];
    const int64_t place = problem.row(b, h, i);
    problem.best[place] = slots[best] + 1;
    problem.capped_bias[place] = bias;
    Vector sum{}, logs{};
    for (int32_t j = 0; j < seen; j += LANES) {
        const Integers inside = lane_numbers() < seen - j;
        const Vector a = inside ? Act::activate(load(scores + j) + bias) : Vector{};
        store(scores + j, a);
        sum += a;
        logs += (a == 0.0f) ? Vector{} : a * logarithm(a);
    }
    const int64_t found = nonzero_places(scores, 0, seen, capped.chosen);
    const int64_t at = (i - begin) * LANES;
    store(buffers.sums + at, sum);
    store(buffers.logs + at, logs);
    store(buffers.nonzeros + at, Vector{});
    buffers.nonzeros[at] = static_cast<float>(found);
    float* out = buffers.out + (i - begin) * buffers.out_stride;
    std::memset(out, 0, sizeof(float) * buffers.out_stride);
    add_chosen(out, problem.v.at(b, h, 0), problem.v.row, problem.value_width, slots, scores, capped.chosen, found);
}

// The rows of a task that stayed below the cap, before they are finished.
template <class Act>
inline void read_capped_rows(const Problem& problem, const Rows& rows, const ForwardBuffers& buffers,
                             const CappedBuffers& capped, int64_t b, int64_t h, int64_t begin, int64_t end) {
    const float least = Act::activate(filled(static_cast<float>(problem.cap)))[0];
    for (int64_t i = begin; i < end; ++i)
        if (rows.visible(b, i) > 0 && largest(buffers.best + (i - begin) * LANES) < least)
            read_capped_row<Act>(problem, rows, buffers, capped, b, h, begin, i);
}
