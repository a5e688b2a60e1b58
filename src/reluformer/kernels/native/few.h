// A few queries against many slots, as when decoding: keys are read once, where they are, and a value
// only where its weight is not zero.
#pragma once

constexpr int SLOTS_AT_ONCE = 256;

struct FewBuffers {
    float *q, *scores, *out;
    int64_t q_stride, out_stride;

    FewBuffers(Scratch& scratch, const Problem& problem) {
        q_stride = round_up(problem.width, LANES);
        out_stride = round_up(problem.value_width, LANES);
        q = scratch.take(problem.queries * q_stride);
        scores = scratch.take(problem.queries * SLOTS_AT_ONCE);
        out = scratch.take(problem.queries * out_stride);
    }
};

// out = sum over slots of weight * value: a feed-forward memory's second product, for the slots that fired.
inline void weigh_values(float* out, const float* weights, int64_t slots, const float* values, int64_t stride,
                         int64_t width) {
    std::memset(out, 0, sizeof(float) * width);
    for (int64_t first = 0; first < slots; first += SLOTS_AT_ONCE) {
        const int32_t count = static_cast<int32_t>(slots - first < SLOTS_AT_ONCE ? slots - first : SLOTS_AT_ONCE);
        int32_t chosen[SLOTS_AT_ONCE + LANES];
        const int64_t found = nonzero_places(weights + first, 0, count, chosen);
        add_chosen(out, values + first * stride, stride, width, nullptr, weights + first, chosen, found);
    }
}

template <class Act>
inline void few_task(const Problem& problem, const Rows& rows, const FewBuffers& buffers, int64_t b, int64_t h) {
    const float scale = static_cast<float>(problem.scale);
    const float* key_bias = problem.key_bias.at(b, h);
    float sums[FEW];
    for (int64_t i = 0; i < problem.queries; ++i) {
        const float* from = problem.q.at(b, h, i);
        for (int64_t c = 0; c < problem.width; ++c) buffers.q[i * buffers.q_stride + c] = from[c] * scale;
        sums[i] = 0;
    }
    std::memset(buffers.out, 0, sizeof(float) * problem.queries * buffers.out_stride);
    const int32_t all = rows.visible(b, problem.queries - 1);
    for (int32_t first = 0; first < all; first += SLOTS_AT_ONCE) {
        const int32_t count = all - first < SLOTS_AT_ONCE ? all - first : SLOTS_AT_ONCE;
        const int32_t* slots = rows.slots(b) + first;
        for (int32_t j = 0; j < count; ++j) {
            const float* key = problem.k.at(b, h, slots[j]);
            for (int64_t i = 0; i < problem.queries; ++i)
                buffers.scores[i * SLOTS_AT_ONCE + j] = dot(buffers.q + i * buffers.q_stride, key, problem.width);
        }
        for (int64_t i = 0; i < problem.queries; ++i) {
            float* scores = buffers.scores + i * SLOTS_AT_ONCE;
            const float row_bias = rows.bias(b, h, i);
            const int32_t seen = rows.visible(b, i) - first, last = seen < count ? seen : count;
            if (rows.biased())
                for (int32_t j = 0; j < last; ++j) scores[j] += row_bias + (key_bias ? key_bias[slots[j]] : 0.0f);
            for (int32_t j = 0; j < last; j += LANES) store(scores + j, Act::activate(load(scores + j)));
            for (int32_t j = 0; j < last; ++j) sums[i] += scores[j];
            int32_t chosen[SLOTS_AT_ONCE + LANES];
            const int64_t found = nonzero_places(scores, 0, last, chosen);
            add_chosen(buffers.out + i * buffers.out_stride, problem.v.at(b, h, 0), problem.v.row,
                       problem.value_width, slots, scores, chosen, found);
        }
    }
    for (int64_t i = 0; i < problem.queries; ++i) {
        const float factor = row_factor(problem, rows.scale(b, i), sums[i]);
        for (int64_t c = 0; c < problem.value_width; ++c)
            problem.out.at(b, h, i)[c] = buffers.out[i * buffers.out_stride + c] * factor;
        if (problem.sum.data != nullptr) problem.sum.at(b, h)[i] = sums[i];
        if (problem.mean_log.data != nullptr) problem.mean_log.at(b, h)[i] = 0.0f;
    }
}

inline int64_t few_floats(const Problem& problem) {
    Scratch counted;
    FewBuffers(counted, problem);
    return counted.used();
}

inline void few(const Problem& problem, const Rows& rows, float* memory, int64_t b, int64_t h) {
    Scratch scratch(memory);
    const FewBuffers buffers(scratch, problem);
    switch (problem.activation) {
        case RELU: return few_task<Relu>(problem, rows, buffers, b, h);
        case RELU_SQUARED: return few_task<ReluSquared>(problem, rows, buffers, b, h);
        case RELU_EXP: return few_task<ReluExp>(problem, rows, buffers, b, h);
        default: return few_task<Sigmoid>(problem, rows, buffers, b, h);
    }
}
