// The same with AVX-512 VNNI.

using Weights = __m512i;
using Inputs = __m512i;

INLINE Weights weights_at(const int8_t* from) { return _mm512_loadu_si512(from); }

INLINE Inputs inputs_at(const uint8_t* from) {
    int32_t four;
    std::memcpy(&four, from, 4);
    return _mm512_set1_epi32(four);
}

INLINE Integers dot(Integers sum, Inputs a, Weights w) {
    return reinterpret_cast<Integers>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), a, w));
}

INLINE void weights_of_slots(Weights* w, const int8_t* a, const int8_t* b, const int8_t* c, const int8_t* d) {
    const __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b), z = _mm512_loadu_si512(c);
    const __m512i t = _mm512_loadu_si512(d);
    const __m512i low_xy = _mm512_unpacklo_epi8(x, y), high_xy = _mm512_unpackhi_epi8(x, y);
    const __m512i low_zt = _mm512_unpacklo_epi8(z, t), high_zt = _mm512_unpackhi_epi8(z, t);
    w[0] = _mm512_unpacklo_epi16(low_xy, low_zt);
    w[1] = _mm512_unpackhi_epi16(low_xy, low_zt);
    w[2] = _mm512_unpacklo_epi16(high_xy, high_zt);
    w[3] = _mm512_unpackhi_epi16(high_xy, high_zt);
}
