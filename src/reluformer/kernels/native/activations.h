// The activations, and what the backward pass needs of their slopes: where a slope is known from the activation,
// `times_slope` multiplies by it; else it is kept. `by_row`: a block is faster one row after the other, as all at once
// want more registers than there are; measured.
#pragma once

struct Relu {
    template <bool Backward> static constexpr bool by_row = false;
    static constexpr bool slope_kept = false;
    static INLINE Vector activate(Vector s) { return positive_part(s); }
    static INLINE Vector slope(Vector, Vector) { return Vector{}; }
    static INLINE Vector times_slope(Vector d, Vector a) { return (a == 0.0f) ? Vector{} : d; }
};

// (e^s - 1)+, with scores above `highest` counted as `highest`. Of a small e^s - 1 few digits are right, but it is as
// exact as the others in absolute terms, which is what sums notice; it is exactly 0 where s <= 0.
struct ReluExp {
    template <bool Backward> static constexpr bool by_row = Backward;
    static constexpr bool slope_kept = false;
    static constexpr float HIGHEST = 60.0f;
    static constexpr float MOST = 1.1420e26f;  // e^60, less what `exponential` may be off by
    static INLINE Vector activate(Vector s, float highest = HIGHEST) {
        const Vector positive = positive_part(s);
        return exponential_within((positive > highest) ? filled(highest) : positive) - 1.0f;
    }
    static INLINE Vector slope(Vector, Vector) { return Vector{}; }
    static INLINE Vector times_slope(Vector d, Vector a) {
        return ((a == 0.0f) | (a >= MOST)) ? Vector{} : d * (a + 1.0f);
    }
};

struct ReluSquared {
    template <bool Backward> static constexpr bool by_row = false;
    static constexpr bool slope_kept = true;
    static INLINE Vector activate(Vector s) {
        const Vector positive = positive_part(s);
        return positive * positive;
    }
    static INLINE Vector slope(Vector s, Vector) { return 2.0f * positive_part(s); }
    static INLINE Vector times_slope(Vector d, Vector) { return d; }
};

struct Sigmoid {
    template <bool Backward> static constexpr bool by_row = true;
    static constexpr bool slope_kept = true;
    static INLINE Vector activate(Vector s) { return 1.0f / (1.0f + exponential(-s)); }
    static INLINE Vector slope(Vector, Vector a) { return a * (1.0f - a); }
    static INLINE Vector times_slope(Vector d, Vector) { return d; }
};
