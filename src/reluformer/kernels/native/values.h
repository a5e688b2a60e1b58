// Sums of the values that have a weight, and nothing read of the others.
#pragma once

#if defined(HAS_AVX2)
// For each pattern of eight bits, the places of those that are set, one after the other.
struct PlacesOfBits {
    uint8_t at[256][8];
    constexpr PlacesOfBits() : at() {
        for (int bits = 0; bits < 256; ++bits)
            for (int bit = 0, found = 0; bit < 8; ++bit)
                if (bits >> bit & 1) at[bits][found++] = static_cast<uint8_t>(bit);
    }
};
constexpr PlacesOfBits PLACES_OF_BITS;
#endif

// Writes the numbers first <= t < last with x[t] != 0 to `chosen`, which has room for LANES more; how many they are.
INLINE int64_t nonzero_places(const float* x, int64_t first, int64_t last, int32_t* chosen) {
    int64_t count = 0, t = first;
#if defined(HAS_AVX512)
    for (; t + LANES <= last; t += LANES) {
        const __mmask16 bits = _mm512_cmp_ps_mask(load(x + t), _mm512_setzero_ps(), _CMP_NEQ_UQ);
        const __m512i places = reinterpret_cast<__m512i>(lane_numbers() + static_cast<int32_t>(t));
        _mm512_storeu_si512(chosen + count, _mm512_maskz_compress_epi32(bits, places));
        count += __builtin_popcount(bits);
    }
#elif defined(HAS_AVX2)
    using Bytes = uint8_t __attribute__((vector_size(8), aligned(1), may_alias));
    using LooseIntegers = int32_t __attribute__((vector_size(32), aligned(4), may_alias));
    for (; t + LANES <= last; t += LANES) {
        const Integers nonzero = load(x + t) != 0.0f;
        const unsigned bits = static_cast<unsigned>(__builtin_ia32_movmskps256(reinterpret_cast<Vector>(nonzero)));
        const Bytes places = *reinterpret_cast<const Bytes*>(PLACES_OF_BITS.at[bits]);
        *reinterpret_cast<LooseIntegers*>(chosen + count) =
            __builtin_convertvector(places, Integers) + static_cast<int32_t>(t);
        count += __builtin_popcount(bits);
    }
#endif
    for (; t < last; ++t) {
        chosen[count] = static_cast<int32_t>(t);
        count += x[t] != 0.0f;
    }
    return count;
}

// out[c] += sum of weights[t] * values[slot t][c] over the `count` numbers t in `chosen`, for C vectors of columns.
template <int C>
INLINE void add_columns(float* out, const float* weights, const float* values, int64_t stride, const int32_t* slots,
                        const int32_t* chosen, int64_t count) {
    Vector sums[C];
    for (int c = 0; c < C; ++c) sums[c] = load(out + c * LANES);
    for (int64_t i = 0; i < count; ++i) {
        const int32_t t = chosen[i];
        const float* value = values + (slots == nullptr ? t : slots[t]) * stride;
        const float weight = weights[t];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sums[c] += weight * load(value + c * LANES);
    }
    for (int c = 0; c < C; ++c) store(out + c * LANES, sums[c]);
}

// out += sum of weights[t] * values[slot t] over the `count` numbers t in `chosen`.
// values: rows of `stride`; slots: the row of each number, or null where it is the number itself.
INLINE void add_chosen(float* out, const float* values, int64_t stride, int64_t width, const int32_t* slots,
                       const float* weights, const int32_t* chosen, int64_t count) {
    int64_t c = 0;
    for (; c + 8 * LANES <= width; c += 8 * LANES)
        add_columns<8>(out + c, weights, values + c, stride, slots, chosen, count);
    for (; c + 4 * LANES <= width; c += 4 * LANES)
        add_columns<4>(out + c, weights, values + c, stride, slots, chosen, count);
    for (; c + LANES <= width; c += LANES)
        add_columns<1>(out + c, weights, values + c, stride, slots, chosen, count);
    for (; c < width; ++c)
        for (int64_t i = 0; i < count; ++i) {
            const int32_t t = chosen[i];
            out[c] += weights[t] * values[(slots == nullptr ? t : slots[t]) * stride + c];
        }
}
