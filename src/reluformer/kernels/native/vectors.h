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
INLINE float total(Vector x) {
    float lanes[LANES];
    store(lanes, x);
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
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

// log x for x > 0, relative error below 1e-6; log of the smallest normal number for anything below it.
// x = 2^e (1 + t) with 1 + t in [sqrt 1/2, sqrt 2): log x = e log 2 + t p(t), p fitted to relative error.
INLINE Vector logarithm(Vector x) {
    const float smallest = 1.17549435e-38f;
    x = (x < smallest) ? filled(smallest) : x;
    Integers bits = reinterpret_cast<Integers>(x);
    const int32_t root_half = 0x3f3504f3;  // the bits of sqrt 1/2
    Integers exponent = (bits - root_half) >> 23;
    Vector t = reinterpret_cast<Vector>(bits - (exponent << 23)) - 1.0f;
    Vector e = __builtin_convertvector(exponent, Vector);
    Vector p = filled(-0.10106895f);
    p = p * t + 0.16222586f;
    p = p * t - 0.17250831f;
    p = p * t + 0.19900165f;
    p = p * t - 0.24969909f;
    p = p * t + 0.33335060f;
    p = p * t - 0.50000364f;
    p = p * t + 0.99999994f;
    return e * 0.69314718f + t * p;
}

// e^x, relative error below 1e-6 where the result is a normal number; x is cut to [-87, 88].
INLINE Vector exponential(Vector x) {
    x = (x < -87.0f) ? filled(-87.0f) : x;
    x = (x > 88.0f) ? filled(88.0f) : x;
    Vector n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounds to the nearest integer
    Vector r = x - n * 0.693145752f - n * 1.42860677e-6f;      // log 2 in two parts
    Vector p = filled(0.00138368458f);
    p = p * r + 0.00837481581f;
    p = p * r + 0.0416682251f;
    p = p * r + 0.166664198f;
    p = p * r + 0.499999911f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    Integers power = (__builtin_convertvector(n, Integers) + 127) << 23;
    return p * reinterpret_cast<Vector>(power);
}
