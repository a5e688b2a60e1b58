// The activations, and what the backward pass needs of their slopes: where a slope is known from the activation,
// `times_slope` multiplies by it; else it is kept.
#pragma once

struct Relu {
    static constexpr bool slope_kept = false;
    static INLINE Vector activate(Vector s) { return positive_part(s); }
    static INLINE Vector slope(Vector, Vector) { return Vector{}; }
    static INLINE Vector times_slope(Vector d, Vector a) { return (a == 0.0f) ? Vector{} : d; }
};

// (e^s - 1)+, with scores above `highest` counted as `highest`. Of a small e^s - 1 few digits are right, but it is as
// exact as the others in absolute terms, which is what sums notice; it is exactly 0 where s <= 0.
struct ReluExp {
    static constexpr bool slope_kept = false;
    static constexpr float HIGHEST = 60.0f;
    static INLINE Vector power(Vector s, float highest) { return exponential((s > highest) ? filled(highest) : s); }
    static INLINE Vector activate(Vector s, float highest = HIGHEST) { return positive_part(power(s, highest) - 1.0f); }
    static INLINE Vector slope(Vector, Vector) { return Vector{}; }
    static INLINE Vector times_slope(Vector d, Vector a) {
        const Vector most = activate(filled(HIGHEST));
        return ((a == 0.0f) | (a >= most)) ? Vector{} : d * (a + 1.0f);
    }
};

struct ReluSquared {
    static constexpr bool slope_kept = true;
    static INLINE Vector activate(Vector s) {
        const Vector positive = positive_part(s);
        return positive * positive;
    }
    static INLINE Vector slope(Vector s, Vector) { return 2.0f * positive_part(s); }
    static INLINE Vector times_slope(Vector d, Vector) { return d; }
};

struct Sigmoid {
    static constexpr bool slope_kept = true;
    static INLINE Vector activate(Vector s) { return 1.0f / (1.0f + exponential(-s)); }
    static INLINE Vector slope(Vector, Vector a) { return a * (1.0f - a); }
    static INLINE Vector times_slope(Vector d, Vector) { return d; }
};
