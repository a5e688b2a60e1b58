// Reads of one position by the beams of one source. Slots that all beams share are loaded once for
// all of them; a value is loaded only where a weight is not zero.
#pragma once

constexpr int TOGETHER = 4;  // beams that read together

// scores[b][t] = q[b] . keys[slot t], begin <= t < end, for B beams; a slot is a row of `stride` numbers.
template <int B>
INLINE void scores_one_by_one(float* scores, int64_t score_stride, const float* q, int64_t q_stride, const float* keys,
                              int64_t stride, const int32_t* slots, int64_t begin, int64_t end, int64_t width) {
    for (int64_t t = begin; t < end; ++t) {
        const float* key = keys + (slots == nullptr ? t : slots[t]) * stride;
        Vector sums[B];
        for (int b = 0; b < B; ++b) sums[b] = Vector{};
        int64_t c = 0;
        for (; c + LANES <= width; c += LANES) {
            const Vector part = load(key + c);
#pragma GCC unroll 4
            for (int b = 0; b < B; ++b) sums[b] += load(q + b * q_stride + c) * part;
        }
        for (int b = 0; b < B; ++b) {
            float sum = total(sums[b]);
            for (int64_t rest = c; rest < width; ++rest) sum += q[b * q_stride + rest] * key[rest];
            scores[b * score_stride + t] = sum;
        }
    }
}

#if defined(HALVES) && LANES == 8
// The totals of eight vectors in one: three rounds of adding neighbours, instead of eight sums of eight.
INLINE Vector totals(const Vector* x) {
    Vector two[4], four[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        two[i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
                 __builtin_shufflevector(x[2 * i], x[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
        four[i] = __builtin_shufflevector(two[2 * i], two[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                  __builtin_shufflevector(two[2 * i], two[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(four[0], four[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(four[0], four[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

// The same eight slots at a time: eight sums for one beam are brought together at once.
template <int B>
INLINE void scores_of(float* scores, int64_t score_stride, const float* q, int64_t q_stride, const float* keys,
                      int64_t stride, const int32_t* slots, int64_t begin, int64_t end, int64_t width) {
    int64_t t = begin;
    for (; width % LANES == 0 && t + LANES <= end; t += LANES) {
        const float* rows[LANES];
        for (int i = 0; i < LANES; ++i) rows[i] = keys + (slots == nullptr ? t + i : slots[t + i]) * stride;
        for (int b = 0; b < B; ++b) {
            Vector sums[LANES];
#pragma GCC unroll 8
            for (int i = 0; i < LANES; ++i) sums[i] = Vector{};
            for (int64_t c = 0; c < width; c += LANES) {
                const Vector part = load(q + b * q_stride + c);
#pragma GCC unroll 8
                for (int i = 0; i < LANES; ++i) sums[i] += load(rows[i] + c) * part;
            }
            store(scores + b * score_stride + t, totals(sums));
        }
    }
    scores_one_by_one<B>(scores, score_stride, q, q_stride, keys, stride, slots, t, end, width);
}
#else
template <int B>
INLINE void scores_of(float* scores, int64_t score_stride, const float* q, int64_t q_stride, const float* keys,
                      int64_t stride, const int32_t* slots, int64_t begin, int64_t end, int64_t width) {
    scores_one_by_one<B>(scores, score_stride, q, q_stride, keys, stride, slots, begin, end, width);
}
#endif

constexpr int64_t NEAR = 64;  // slots whose values stay in the nearest cache while one beam after the other reads them

// out[b] += sum over begin <= t < end of weights[b][t] * values[slot t]
template <int B>
INLINE void add_values(float* out, int64_t out_stride, const float* weights, int64_t weight_stride,
                       const float* values, int64_t stride, const int32_t* slots, int64_t begin, int64_t end,
                       int64_t width) {
    int32_t chosen[NEAR + LANES];
    for (int64_t first = begin; first < end; first += NEAR) {
        const int64_t last = first + NEAR < end ? first + NEAR : end;
        for (int b = 0; b < B; ++b) {
            const float* own = weights + b * weight_stride;
            const int64_t count = nonzero_places(own, first, last, chosen);
            add_chosen(out + b * out_stride, values, stride, width, slots, own, chosen, count);
        }
    }
}

// From scores to (score + offset)+ * scale.
INLINE void weigh_relu(float* scores, int64_t count, float offset, float scale) {
    int64_t t = 0;
    for (; t + LANES <= count; t += LANES) store(scores + t, positive_part(load(scores + t) + offset) * scale);
    for (; t < count; ++t) scores[t] = scores[t] + offset < 0.0f ? 0.0f : (scores[t] + offset) * scale;
}

INLINE float mean_of(const float* x, int64_t count) {
    Vector sums{};
    int64_t t = 0;
    for (; t + LANES <= count; t += LANES) sums += load(x + t);
    float sum = total(sums);
    for (; t < count; ++t) sum += x[t];
    return sum / count;
}

INLINE float variance_of(const float* x, int64_t count, float mean) {
    Vector squares{};
    int64_t t = 0;
    for (; t + LANES <= count; t += LANES) {
        const Vector away = load(x + t) - mean;
        squares += away * away;
    }
    float square = total(squares);
    for (; t < count; ++t) square += (x[t] - mean) * (x[t] - mean);
    return square / count;
}

INLINE void multiply(float* x, int64_t count, float factor) {
    int64_t t = 0;
    for (; t + LANES <= count; t += LANES) store(x + t, load(x + t) * factor);
    for (; t < count; ++t) x[t] *= factor;
}

INLINE Vector larger(Vector a, Vector b) { return (a > b) ? a : b; }

INLINE float greatest(const float* x, int64_t count) {
    Vector most = filled(x[0]);
    int64_t t = 0;
    for (; t + LANES <= count; t += LANES) most = larger(load(x + t), most);
    float found = most[0];
    for (int lane = 1; lane < LANES; ++lane) found = most[lane] > found ? most[lane] : found;
    for (; t < count; ++t) found = x[t] > found ? x[t] : found;
    return found;
}

// From scores to the weights of READ_RELU_EXP, those of slots below the level of the row exactly 0.
INLINE void weigh_relu_exp(float* scores, int64_t count, const ReadRule& rule) {
    const double log_n = std::log(static_cast<double>(count)), deviations = rule.spread + rule.chance * std::sqrt(2 * log_n);
    const float mean = mean_of(scores, count), variance = deviations == 0 ? 0 : variance_of(scores, count, mean);
    const float deviation = std::sqrt(variance + static_cast<float>(rule.floor));
    float level = mean + static_cast<float>(rule.threshold + rule.growth * log_n) + static_cast<float>(deviations) * deviation;
    if (rule.cap >= 0) level = std::min(level, greatest(scores, count) - static_cast<float>(rule.cap));
    const float highest = static_cast<float>(rule.highest);
    Vector sums{};
    int64_t t = 0;
    for (; t + LANES <= count; t += LANES) {
        const Vector fired = ReluExp::activate(load(scores + t) - level, highest);
        store(scores + t, fired);
        sums += fired;
    }
    float sum = total(sums);
    for (; t < count; ++t) {
        scores[t] = ReluExp::activate(filled(scores[t] - level), highest)[0];
        sum += scores[t];
    }
    multiply(scores, count, 1.0f / (static_cast<float>(rule.delta) + sum));
}

// x = e^(x - shift); their sum.
INLINE float exponentials(float* x, int64_t count, float shift, bool keep) {
    Vector sums{};
    int64_t t = 0;
    for (; t + LANES <= count; t += LANES) {
        const Vector power = exponential(load(x + t) - shift);
        if (keep) store(x + t, power);
        sums += power;
    }
    float sum = total(sums);
    for (; t < count; ++t) {
        const float power = exponential(filled(x[t] - shift))[0];
        if (keep) x[t] = power;
        sum += power;
    }
    return sum;
}

INLINE void weigh_softmax(float* scores, int64_t count) {
    const float sum = exponentials(scores, count, greatest(scores, count), true);
    multiply(scores, count, 1.0f / sum);
}

// offset and scale are those of READ_RELU: the others ignore what a row has in common, and have a sum of their own.
INLINE void weigh(float* scores, int64_t count, const ReadRule& rule, float offset, float scale) {
    switch (rule.kind) {
        case READ_RELU: return weigh_relu(scores, count, offset, scale);
        case READ_SOFTMAX: return weigh_softmax(scores, count);
        case READ_RELU_EXP: return weigh_relu_exp(scores, count, rule);
    }
}

// The slots that the beams of a source read: the first `shared` ones are the same for all of them.
struct BeamSlots {
    const float *keys, *values;  // (heads, capacity, width)
    int64_t capacity, count, shared;
    const int32_t* slots;  // of the first beam, (count); null: slot t is row t, for all beams
    int64_t slots_stride;
};

template <int B>
INLINE void read_together(float* out, const float* q, int64_t q_stride, int64_t width, int64_t out_stride,
                          const BeamSlots& from, const ReadRule& rule, float offset, float scale, float* scores) {
    const int64_t count = from.count;
    scores_of<B>(scores, count, q, q_stride, from.keys, width, from.slots, 0, from.shared, width);
    for (int b = 0; b < B; ++b)
        scores_of<1>(scores + b * count, count, q + b * q_stride, q_stride, from.keys, width,
                     from.slots + b * from.slots_stride, from.shared, count, width);
    for (int b = 0; b < B; ++b) {
        weigh(scores + b * count, count, rule, offset, scale);
        std::memset(out + b * out_stride, 0, sizeof(float) * width);
    }
    add_values<B>(out, out_stride, scores, count, from.values, width, from.slots, 0, from.shared, width);
    for (int b = 0; b < B; ++b)
        add_values<1>(out + b * out_stride, out_stride, scores + b * count, count, from.values, width,
                      from.slots + b * from.slots_stride, from.shared, count, width);
}

// All heads of `beams` beams. q: rows q_stride apart; out: rows of heads * width; offsets: one a head, or null.
inline void beam_read(float* out, const float* q, int64_t q_stride, int64_t heads, int64_t width, int64_t beams,
                      const BeamSlots& from, const ReadRule& rule, const float* offsets, float scale, float* scores) {
    const int64_t out_stride = heads * width;
    if (from.count == 0) {
        std::memset(out, 0, sizeof(float) * beams * out_stride);
        return;
    }
    for (int64_t first = 0; first < beams; first += TOGETHER) {
        BeamSlots part = from;
        if (part.slots != nullptr) part.slots += first * part.slots_stride;
        for (int64_t head = 0; head < heads; ++head) {
            part.keys = from.keys + head * from.capacity * width;
            part.values = from.values + head * from.capacity * width;
            float* to = out + first * out_stride + head * width;
            const float* queries = q + first * q_stride + head * width;
            const float offset = offsets == nullptr ? 0.0f : offsets[head];
            switch (beams - first) {
                case 1: read_together<1>(to, queries, q_stride, width, out_stride, part, rule, offset, scale, scores); break;
                case 2: read_together<2>(to, queries, q_stride, width, out_stride, part, rule, offset, scale, scores); break;
                case 3: read_together<3>(to, queries, q_stride, width, out_stride, part, rule, offset, scale, scores); break;
                default: read_together<4>(to, queries, q_stride, width, out_stride, part, rule, offset, scale, scores);
            }
        }
    }
}
