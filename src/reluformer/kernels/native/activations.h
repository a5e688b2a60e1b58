// The activations, and what the backward pass needs of their slopes: where a slope is known from the activation,
// `times_slope` multiplies by it; else it is kept. `by_row`: a block is faster one row after the other, as all at once
// want more registers than there are; measured.
//
// A list of nonzero pairs keeps one number a pair, `kept`, from which weight and slope follow.
#pragma once

struct Relu {
    static constexpr bool exact_zeros = true;
    template <bool Backward> static constexpr bool by_row = false;
    static constexpr bool slope_kept = false;
    static INLINE Vector activate(Vector s) { return positive_part(s); }
    static INLINE Vector slope(Vector, Vector) { return Vector{}; }
    static INLINE Vector times_slope(Vector d, Vector a) { return (a == 0.0f) ? Vector{} : d; }
    static constexpr bool keeps_weight = true;
    static INLINE Vector kept(Vector, Vector a) { return a; }
    static INLINE Vector weight(Vector kept) { return kept; }
    static INLINE Vector times_kept_slope(Vector d, Vector) { return d; }
};

// (e^s - 1)+, with scores above `highest` counted as `highest`. Of a small e^s - 1 few digits are right, but it is as
// exact as the others in absolute terms, which is what sums notice; it is exactly 0 where s <= 0.
struct ReluExp {
    static constexpr bool exact_zeros = true;
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
    static constexpr bool keeps_weight = true;
    static INLINE Vector kept(Vector, Vector a) { return a; }
    static INLINE Vector weight(Vector kept) { return kept; }
    static INLINE Vector times_kept_slope(Vector d, Vector kept) { return times_slope(d, kept); }
};

struct ReluSquared {
    static constexpr bool exact_zeros = true;
    template <bool Backward> static constexpr bool by_row = false;
    static constexpr bool slope_kept = true;
    static INLINE Vector activate(Vector s) {
        const Vector positive = positive_part(s);
        return positive * positive;
    }
    static INLINE Vector slope(Vector s, Vector) { return 2.0f * positive_part(s); }
    static INLINE Vector times_slope(Vector d, Vector) { return d; }
    static constexpr bool keeps_weight = false;
    static INLINE Vector kept(Vector s, Vector) { return s; }
    static INLINE Vector weight(Vector kept) { return kept * kept; }
    static INLINE Vector times_kept_slope(Vector d, Vector kept) { return d * (2.0f * kept); }
};

struct Sigmoid {
    static constexpr bool exact_zeros = false;
    template <bool Backward> static constexpr bool by_row = true;
    static constexpr bool slope_kept = true;
    static INLINE Vector activate(Vector s) { return 1.0f / (1.0f + exponential(-s)); }
    static INLINE Vector slope(Vector, Vector a) { return a * (1.0f - a); }
    static INLINE Vector times_slope(Vector d, Vector) { return d; }
};
