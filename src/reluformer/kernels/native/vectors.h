// Vectors of LANES floats through the compiler's own vector types: one source for every width.
// Included once by each path_*.cpp, inside the namespace of that path.
#pragma once

using Vector = float __attribute__((vector_size(4 * LANES)));
using Integers = int32_t __attribute__((vector_size(4 * LANES)));
using Loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE inline __attribute__((always_inline))

INLINE Vector load(const float* from) { return *reinterpret_cast<const Loose*>(from); }
INLINE void store(float* to, Vector x) { *reinterpret_cast<Loose*>(to) = x; }
INLINE Vector filled(float x) { return x - Vector{}; }

// The sum of all lanes, always in the same order: halves are added until one is left.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HALVES 1
#endif
#endif

// Halves onto each other, so that few additions wait for each other.
INLINE float total(Vector x) {
#if defined(HALVES)
#if LANES == 16
    const auto eight = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                       __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
#elif LANES == 8
    const Vector eight = x;
#endif
#if LANES >= 8
    const auto four =
        __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
#else
    const Vector four = x;
#endif
    const auto two = four + __builtin_shufflevector(four, four, 2, 3, 2, 3);
    return two[0] + two[1];
#else
    float sum = 0;
    for (int lane = 0; lane < LANES; ++lane) sum += x[lane];
    return sum;
#endif
}

INLINE Integers lane_numbers() {
    Integers numbers{};
    for (int lane = 0; lane < LANES; ++lane) numbers[lane] = lane;
    return numbers;
}

// Any bit set in any lane.
INLINE bool any(Integers x) {
    using Wide = int64_t __attribute__((vector_size(4 * LANES)));
    Wide wide = reinterpret_cast<Wide>(x);
    int64_t bits = 0;
    for (int i = 0; i < LANES / 2; ++i) bits |= wide[i];
    return bits != 0;
}

// The larger of 0 and x; a NaN stays one, so that trouble is seen.
INLINE Vector positive_part(Vector x) { return (x < 0.0f) ? Vector{} : x; }

// log x for normal x > 0, relative error below 1e-6; finite for smaller ones and for 0.
// x = 2^e (1 + t) with 1 + t in [sqrt 1/2, sqrt 2): log x = e log 2 + t p(t), p fitted to relative error.
INLINE Vector logarithm(Vector x) {
    const int32_t root_half = 0x3f3504f3;  // the bits of sqrt 1/2
    const Integers bits = reinterpret_cast<Integers>(x);
    const Integers exponent = (bits - root_half) >> 23;
    const Vector t = reinterpret_cast<Vector>(bits - (exponent << 23)) - 1.0f;
    const Vector e = __builtin_convertvector(exponent, Vector);
    // In pairs, so that the multiplications need not wait for each other.
    const Vector t2 = t * t, t4 = t2 * t2;
    const Vector p01 = t * -0.50000364f + 0.99999994f, p23 = t * -0.24969909f + 0.33335060f;
    const Vector p45 = t * -0.17250831f + 0.19900165f, p67 = t * -0.10106895f + 0.16222586f;
    const Vector p = (p67 * t2 + p45) * t4 + (p23 * t2 + p01);
    return e * 0.69314718f + t * p;
}

// e^x for x in [-87, 88], relative error below 1e-6; e^0 is exactly 1.
INLINE Vector exponential_within(Vector x) {
    constexpr bool fused = LANES > 4;  // a product and a sum are rounded once, so that one part of log 2 will do
    const Vector shifted = x * 1.44269504f + 12582912.0f;  // rounds to an integer, which then lies in the lowest bits
    const Vector n = shifted - 12582912.0f;
    const Vector r = fused ? x - n * 0.693147182f : x - n * 0.693145752f - n * 1.42860677e-6f;
    Vector p = filled(0.00831250101f);
    p = p * r + 0.0418903306f;
    p = p * r + 0.166671157f;
    p = p * r + 0.499992311f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return reinterpret_cast<Vector>(reinterpret_cast<Integers>(p) + (reinterpret_cast<Integers>(shifted) << 23));  // 2^n p
}

// The same for any x below 88, which is cut to that range.
INLINE Vector exponential_of_negative(Vector x) { return exponential_within((x < -87.0f) ? filled(-87.0f) : x); }

// The same for any x.
INLINE Vector exponential(Vector x) { return exponential_of_negative((x > 88.0f) ? filled(88.0f) : x); }
