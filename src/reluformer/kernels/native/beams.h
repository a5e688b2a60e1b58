// Reads of a few rows that share their slots. Keys lie in blocks of LANES slots, (head width, LANES) each, so that a
// score has a lane of its own. All slots get a score; a beam then picks those of its ancestors. A value is loaded
// only where a weight is not zero.
#pragma once

constexpr int TOGETHER = LANES == 16 ? 6 : 4;  // rows that read together

// scores[b][s] = q[b] . key of slot s, for all s below `count`, rounded up to whole blocks.
template <int B>
INLINE void scores_of_blocks(float* scores, int64_t stride, const float* q, int64_t q_stride, const float* keys,
                             int64_t count, int64_t width) {
    const int64_t block = width * LANES;
    int64_t s = 0;
    for (; s + LANES < count; s += 2 * LANES, keys += 2 * block) {
        Vector sums[B][2];
#pragma GCC unroll 8
        for (int b = 0; b < B; ++b) sums[b][0] = sums[b][1] = Vector{};
        for (int64_t c = 0; c < width; ++c) {
            const Vector left = load(keys + c * LANES), right = load(keys + block + c * LANES);
#pragma GCC unroll 8
            for (int b = 0; b < B; ++b) {
                const float x = q[b * q_stride + c];
                sums[b][0] += x * left;
                sums[b][1] += x * right;
            }
        }
#pragma GCC unroll 8
        for (int b = 0; b < B; ++b) {
            store(scores + b * stride + s, sums[b][0]);
            store(scores + b * stride + s + LANES, sums[b][1]);
        }
    }
    if (s < count) {
        Vector sums[B];
#pragma GCC unroll 8
        for (int b = 0; b < B; ++b) sums[b] = Vector{};
        for (int64_t c = 0; c < width; ++c) {
            const Vector left = load(keys + c * LANES);
#pragma GCC unroll 8
            for (int b = 0; b < B; ++b) sums[b] += q[b * q_stride + c] * left;
        }
#pragma GCC unroll 8
        for (int b = 0; b < B; ++b) store(scores + b * stride + s, sums[b]);
    }
}

// Writes `x` behind the scores of a row, up to a whole vector.
INLINE void fill_up(float* scores, int64_t count, float x) {
    for (int64_t t = count; t % LANES != 0; ++t) scores[t] = x;
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

INLINE Vector larger(Vector a, Vector b) { return (a > b) ? a : b; }

INLINE float greatest_lane(Vector most) {
    float found = most[0];
    for (int lane = 1; lane < LANES; ++lane) found = most[lane] > found ? most[lane] : found;
    return found;
}

// Calls visit(chain, vector) for the vectors of `x` up to `count`, where chains go round from 0 to 3: sums of one chain
// wait for each other, those of four do not.
template <class Visit>
INLINE void in_four_chains(const float* x, int64_t count, const Visit& visit) {
    int64_t t = 0;
    for (; t + 4 * LANES <= count; t += 4 * LANES)
#pragma GCC unroll 4
        for (int chain = 0; chain < 4; ++chain) visit(chain, load(x + t + chain * LANES));
    for (; t < count; t += LANES) visit(0, load(x + t));
}

// Of whole vectors.
INLINE float greatest(const float* x, int64_t count) {
    Vector most[4];
    most[0] = most[1] = most[2] = most[3] = load(x);
    in_four_chains(x, count, [&](int chain, Vector part) { most[chain] = larger(part, most[chain]); });
    return greatest_lane(larger(larger(most[0], most[1]), larger(most[2], most[3])));
}

INLINE void multiply(float* x, int64_t count, float factor) {
    for (int64_t t = 0; t < count; t += LANES) store(x + t, load(x + t) * factor);
}

// out = factor * sum of weights[i] * the value of slot chosen[i], for C vectors of columns.
template <int C>
INLINE void add_above(float* out, const float* values, int64_t width, const int32_t* slots, const float* weights,
                      const int32_t* chosen, int64_t count, float factor) {
    Vector even[C], odd[C];
    for (int c = 0; c < C; ++c) even[c] = odd[c] = Vector{};
    const auto value = [&](int64_t i) __attribute__((always_inline)) {
        return values + (slots == nullptr ? chosen[i] : slots[chosen[i]]) * width;
    };
    int64_t i = 0;
    for (; i + 2 <= count; i += 2) {
        const float *left = value(i), *right = value(i + 1);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
            even[c] += weights[i] * load(left + c * LANES);
            odd[c] += weights[i + 1] * load(right + c * LANES);
        }
    }
    if (i < count)
        for (int c = 0; c < C; ++c) even[c] += weights[i] * load(value(i) + c * LANES);
    for (int c = 0; c < C; ++c) store(out + c * LANES, (even[c] + odd[c]) * factor);
}

// The level of a row of READ_RELU_EXP; scores have room for a whole vector.
INLINE float level_of(float* scores, int64_t count, const ReadRule& rule) {
    const double log_n = std::log(static_cast<double>(count)), deviations = rule.spread + rule.chance * std::sqrt(2 * log_n);
    fill_up(scores, count, 0.0f);
    Vector sums[4] = {}, squares[4] = {}, most[4];
    in_four_chains(scores, count, [&](int chain, Vector score) { sums[chain] += score; });
    const float mean = total((sums[0] + sums[1]) + (sums[2] + sums[3])) / count;
    fill_up(scores, count, mean);
    most[0] = most[1] = most[2] = most[3] = load(scores);
    in_four_chains(scores, count, [&](int chain, Vector score) {
        squares[chain] += (score - mean) * (score - mean);
        most[chain] = larger(score, most[chain]);
    });
    const float variance = deviations == 0 ? 0 : total((squares[0] + squares[1]) + (squares[2] + squares[3])) / count;
    const float deviation = std::sqrt(variance + static_cast<float>(rule.floor));
    float level = mean + static_cast<float>(rule.threshold + rule.growth * log_n) + static_cast<float>(deviations) * deviation;
    const float best = greatest_lane(larger(larger(most[0], most[1]), larger(most[2], most[3])));
    if (rule.cap >= 0) level = std::min(level, best - static_cast<float>(rule.cap));
    return level;
}

// The places below `count` whose scores are above `level`, or no numbers, to `chosen`, and what they have more than
// the level over the scores, from their first on; both have room for LANES more. How many they are.
INLINE int64_t choose_above(float* scores, int64_t count, float level, int32_t* chosen) {
    int64_t found = 0, t = 0;
#if defined(HAS_AVX512)
    for (; t + LANES <= count; t += LANES) {
        const Vector more = load(scores + t) - level;
        const __mmask16 bits = _mm512_cmp_ps_mask(more, _mm512_setzero_ps(), _CMP_NLE_UQ);
        const __m512i places = reinterpret_cast<__m512i>(lane_numbers() + static_cast<int32_t>(t));
        _mm512_storeu_si512(chosen + found, _mm512_maskz_compress_epi32(bits, places));
        store(scores + found, _mm512_maskz_compress_ps(bits, more));
        found += __builtin_popcount(bits);
    }
#endif
    for (; t < count; ++t) {
        const float more = scores[t] - level;
        chosen[found] = static_cast<int32_t>(t);
        scores[found] = more;
        found += !(more <= 0.0f);
    }
    return found;
}

// The read of a row of a rule with zeros. Only the slots above its level are looked at twice: their weights stand at the
// beginning of `scores`, before they are divided or scaled, and their places in `chosen`. How many they are. The offset
// is that of READ_RELU, whose level it is with the other sign.
INLINE int64_t read_above(float* out, float* scores, int64_t count, const float* values, int64_t width,
                          const int32_t* slots, const ReadRule& rule, float offset, int32_t* chosen) {
    const bool centred = rule.kind == READ_RELU_EXP;
    const int64_t found = choose_above(scores, count, centred ? level_of(scores, count, rule) : -offset, chosen);
    float factor;
    if (centred) {
        fill_up(scores, found, -1.0f);
        const float highest = static_cast<float>(rule.highest);
        Vector sums{};
        for (int64_t i = 0; i < found; i += LANES) {
            const Vector fired = ReluExp::activate(load(scores + i), highest);
            store(scores + i, fired);
            sums += fired;
        }
        factor = 1.0f / (static_cast<float>(rule.delta) + total(sums));
    } else {
        const double scale = rule.exponent == 0 ? 1.0 : std::pow(static_cast<double>(count), -rule.exponent);
        factor = static_cast<float>(rule.factor * scale);
    }
    int64_t c = 0;
    for (; c + 2 * LANES <= width; c += 2 * LANES) add_above<2>(out + c, values + c, width, slots, scores, chosen, found, factor);
    for (; c + LANES <= width; c += LANES) add_above<1>(out + c, values + c, width, slots, scores, chosen, found, factor);
    for (; c < width; ++c) {
        float sum = 0;
        for (int64_t i = 0; i < found; ++i)
            if (scores[i] != 0.0f) sum += scores[i] * values[(slots == nullptr ? chosen[i] : slots[chosen[i]]) * width + c];
        out[c] = sum * factor;
    }
    return found;
}

INLINE void weigh_softmax(float* scores, int64_t count) {
    fill_up(scores, count, scores[0]);
    const float most = greatest(scores, count);
    fill_up(scores, count, most - 100.0f);
    Vector sums{};
    for (int64_t t = 0; t < count; t += LANES) {
        const Vector power = exponential_of_negative(load(scores + t) - most);
        store(scores + t, power);
        sums += power;
    }
    multiply(scores, count, 1.0f / total(sums));
}

// out[b] += sum over t < count of weights[b][t] * values[t], for C vectors of columns: no weight is expected to be zero.
template <int B, int C>
INLINE void add_all_columns(float* out, int64_t out_stride, const float* weights, int64_t weight_stride,
                            const float* values, int64_t width, int64_t count) {
    Vector sums[B][C];
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b)
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sums[b][c] = load(out + b * out_stride + c * LANES);
    for (int64_t t = 0; t < count; ++t, values += width) {
        Vector value[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) value[c] = load(values + c * LANES);
#pragma GCC unroll 8
        for (int b = 0; b < B; ++b)
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) sums[b][c] += weights[b * weight_stride + t] * value[c];
    }
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b)
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) store(out + b * out_stride + c * LANES, sums[b][c]);
}

// out += sum over begin <= t < end of weights[t] * the value of position t, for C vectors of columns.
template <int C>
INLINE void add_positions(float* out, const float* weights, const float* values, int64_t width, const int32_t* slots,
                          int64_t begin, int64_t end) {
    Vector sums[C];
    for (int c = 0; c < C; ++c) sums[c] = load(out + c * LANES);
    for (int64_t t = begin; t < end; ++t) {
        const float* value = values + (slots == nullptr ? t : slots[t]) * width;
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sums[c] += weights[t] * load(value + c * LANES);
    }
    for (int c = 0; c < C; ++c) store(out + c * LANES, sums[c]);
}

// The slots that rows read: those of one head.
struct HeadSlots {
    const float *keys, *values;
    int64_t used;                        // slots there are
    const int32_t* ancestors;            // of the first row, or null: the slot of position t is t
    int64_t ancestor_stride, straight;  // of the first `straight` positions it is t for all rows
};

// B rows of one head; row b sees counts[b] positions. scores: (B, score_stride). Leaves the weights there; of a rule
// with zeros only those of the found[b] places in `chosen` (B, score_stride), before they are divided or scaled.
template <int B>
INLINE void read_rows(float* out, int64_t out_stride, const float* q, int64_t q_stride, int64_t width,
                      const HeadSlots& from, const int64_t* counts, const ReadRule& rule, float offset, float* scores,
                      int64_t score_stride, int32_t* chosen, int64_t* found) {
    int64_t together = from.ancestors == nullptr ? counts[0] : from.straight, seen = from.used;
    if (from.ancestors == nullptr) {
        seen = 0;
        for (int b = 0; b < B; ++b) seen = counts[b] > seen ? counts[b] : seen;
        for (int b = 1; b < B; ++b) together = counts[b] < together ? counts[b] : together;
    }
    scores_of_blocks<B>(scores, score_stride, q, q_stride, from.keys, seen, width);
    for (int b = 0; b < B; ++b) {
        float* row = scores + b * score_stride;
        if (from.ancestors != nullptr) {  // a slot never lies before its position
            const int32_t* slots = from.ancestors + b * from.ancestor_stride;
            for (int64_t t = from.straight; t < counts[b]; ++t) row[t] = row[slots[t]];
        }
        if (rule.kind == READ_SOFTMAX) {
            weigh_softmax(row, counts[b]);
            std::memset(out + b * out_stride, 0, sizeof(float) * width);
        } else {
            const int32_t* slots = from.ancestors == nullptr ? nullptr : from.ancestors + b * from.ancestor_stride;
            found[b] = read_above(out + b * out_stride, row, counts[b], from.values, width, slots, rule, offset,
                                  chosen + b * score_stride);
        }
    }
    if (rule.kind != READ_SOFTMAX) return;
    constexpr int64_t four = 4 * LANES, two = 2 * LANES;
    int64_t c = 0;
    for (; B * 4 <= 24 && LANES == 16 && c + four <= width; c += four)
        add_all_columns<B, 4>(out + c, out_stride, scores, score_stride, from.values + c, width, together);
    for (; c + two <= width; c += two)
        add_all_columns<B, 2>(out + c, out_stride, scores, score_stride, from.values + c, width, together);
    for (; c + LANES <= width; c += LANES)
        add_all_columns<B, 1>(out + c, out_stride, scores, score_stride, from.values + c, width, together);
    for (; c < width; ++c)
        for (int b = 0; b < B; ++b)
            for (int64_t t = 0; t < together; ++t)
                out[b * out_stride + c] += scores[b * score_stride + t] * from.values[t * width + c];
    for (int b = 0; b < B; ++b) {  // positions that are not the same slot for all rows
        const int32_t* slots = from.ancestors == nullptr ? nullptr : from.ancestors + b * from.ancestor_stride;
        const float* own = scores + b * score_stride;
        float* to = out + b * out_stride;
        for (c = 0; c + two <= width; c += two) add_positions<2>(to + c, own, from.values + c, width, slots, together, counts[b]);
        for (; c + LANES <= width; c += LANES)
            add_positions<1>(to + c, own, from.values + c, width, slots, together, counts[b]);
        for (; c < width; ++c)
            for (int64_t t = together; t < counts[b]; ++t)
                to[c] += own[t] * from.values[(slots == nullptr ? t : slots[t]) * width + c];
    }
}

// The shares of each span in `count` weights, those of the places `chosen` or of the first ones, added to `shares`; a
// row without weight adds nothing.
INLINE void add_shares(float* shares, int64_t span_count, const float* weights, int64_t count, const int32_t* chosen,
                       const int32_t* spans, float* sums) {
    float sum = 0;
    for (int64_t u = 0; u < span_count; ++u) sums[u] = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int32_t span = spans[chosen == nullptr ? i : chosen[i]];
        sum += weights[i];
        if (weights[i] != 0.0f && span >= 0) sums[span] += weights[i];
    }
    if (!(sum > 0) || !std::isfinite(sum)) return;
    for (int64_t u = 0; u < span_count; ++u) shares[u] += sums[u] / sum;
}
