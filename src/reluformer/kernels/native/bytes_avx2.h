// The same with AVX2, where products of bytes go through 16 bits, or with its VNNI (BYTES_DOT).

#if defined(BYTES_DOT)
using Weights = __m256i;
using Inputs = __m256i;

INLINE Weights made(__m256i w) { return w; }

INLINE Integers dot(Integers sum, Inputs a, Weights w) {
    return reinterpret_cast<Integers>(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sum), a, w));
}
#else
struct Weights {
    __m256i even, odd;  // bytes 0 and 2, 1 and 3 of each output, as 16-bit integers
};

struct Inputs {
    __m256i even, odd;
};

INLINE Weights made(__m256i w) { return {_mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), _mm256_srai_epi16(w, 8)}; }

INLINE Integers dot(Integers sum, const Inputs& a, const Weights& w) {
    const __m256i products = _mm256_add_epi32(_mm256_madd_epi16(w.even, a.even), _mm256_madd_epi16(w.odd, a.odd));
    return sum + reinterpret_cast<Integers>(products);
}
#endif

INLINE Weights weights_at(const int8_t* from) {
    return made(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

INLINE Inputs inputs_at(const uint8_t* from) {
    int32_t four;
    std::memcpy(&four, from, 4);
    const __m256i x = _mm256_set1_epi32(four);
#if defined(BYTES_DOT)
    return x;
#else
    return {_mm256_and_si256(x, _mm256_set1_epi16(255)), _mm256_srli_epi16(x, 8)};
#endif
}

INLINE void weights_of_slots(Weights* w, const int8_t* a, const int8_t* b, const int8_t* c, const int8_t* d) {
    const auto slot = [](const int8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); };
    const __m256i x = slot(a), y = slot(b), z = slot(c), t = slot(d);
    const __m256i low_xy = _mm256_unpacklo_epi8(x, y), high_xy = _mm256_unpackhi_epi8(x, y);
    const __m256i low_zt = _mm256_unpacklo_epi8(z, t), high_zt = _mm256_unpackhi_epi8(z, t);
    w[0] = made(_mm256_unpacklo_epi16(low_xy, low_zt));
    w[1] = made(_mm256_unpackhi_epi16(low_xy, low_zt));
    w[2] = made(_mm256_unpacklo_epi16(high_xy, high_zt));
    w[3] = made(_mm256_unpackhi_epi16(high_xy, high_zt));
}
