// The activations, and what the backward pass needs of their slopes.
#pragma once

struct Relu {
    static constexpr bool slope_kept = false;  // known from the activation alone
    static INLINE Vector activate(Vector s) { return positive_part(s); }
    static INLINE Vector slope(Vector, Vector) { return Vector{}; }
};

struct ReluSquared {
    static constexpr bool slope_kept = true;
    static INLINE Vector activate(Vector s) {
        const Vector positive = positive_part(s);
        return positive * positive;
    }
    static INLINE Vector slope(Vector s, Vector) { return 2.0f * positive_part(s); }
};

struct Sigmoid {
    static constexpr bool slope_kept = true;
    static INLINE Vector activate(Vector s) { return 1.0f / (1.0f + exponential(-s)); }
    static INLINE Vector slope(Vector, Vector a) { return a * (1.0f - a); }
};
