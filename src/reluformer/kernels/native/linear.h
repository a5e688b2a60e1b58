// Rows times a weight matrix that was laid out once: [panel of WIDTH outputs][in][WIDTH], zeros past the last.
#pragma once

inline int64_t panel_floats(int64_t in, int64_t out) { return (out + WIDTH - 1) / WIDTH * WIDTH * in; }

// weight: (out, in)
inline void pack_linear(float* to, const float* weight, int64_t in, int64_t out) {
    for (int64_t first = 0; first < out; first += WIDTH)
        for (int64_t p = 0; p < in; ++p)
            for (int64_t c = 0; c < WIDTH; ++c) *to++ = first + c < out ? weight[(first + c) * in + p] : 0.0f;
}

constexpr int64_t DEPTH = 256;  // of a product that stays in the nearest cache: DEPTH x WIDTH weights

enum After { SET, SET_POSITIVE, ADD };

// y[r] (=, += or = positive part of) bias + x[r] panels, for R rows and one panel, steps begin .. end of `in`.
template <int R>
INLINE void block_of_rows(float* y, int64_t y_stride, const float* x, const Linear& map, int64_t panel, int64_t begin,
                          int64_t end, After after) {
    Vector sums[R][2];
    const float* b = map.panels + panel * WIDTH * map.in + begin * WIDTH;
    const int64_t column = panel * WIDTH, here = map.out - column < WIDTH ? map.out - column : WIDTH;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = Vector{};
    for (int64_t p = begin; p < end; ++p, b += WIDTH) {
        const Vector left = load(b), right = load(b + LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const float factor = x[r * map.in + p];
            sums[r][0] += factor * left;
            sums[r][1] += factor * right;
        }
    }
    const bool first = begin == 0, last = end == map.in;
    for (int r = 0; r < R; ++r) {
        float edge[WIDTH];
        float* to = y + r * y_stride + column;
        float* at = here == WIDTH ? to : edge;
        if (at == edge)
            for (int64_t c = 0; c < here; ++c) edge[c] = to[c];
        for (int side = 0; side < 2; ++side) {
            Vector sum = sums[r][side];
            if (!first || after == ADD) sum += load(at + side * LANES);
            if (first && map.bias != nullptr) {
                if (here == WIDTH) {
                    sum += load(map.bias + column + side * LANES);
                } else {
                    for (int lane = 0; lane < LANES; ++lane)
                        if (side * LANES + lane < here) sum[lane] += map.bias[column + side * LANES + lane];
                }
            }
            if (last && after == SET_POSITIVE) sum = positive_part(sum);
            store(at + side * LANES, sum);
        }
        if (at == edge)
            for (int64_t c = 0; c < here; ++c) to[c] = edge[c];
    }
}

template <int R>
INLINE void rows_from(float* y, int64_t y_stride, const float* x, const Linear& map, int64_t rows, int64_t panel,
                      int64_t begin, int64_t end, After after) {
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        block_of_rows<ROWS>(y + r * y_stride, y_stride, x + r * map.in, map, panel, begin, end, after);
    if (R > 0) block_of_rows<R == 0 ? 1 : R>(y + r * y_stride, y_stride, x + r * map.in, map, panel, begin, end, after);
}

// y (rows, out), rows y_stride apart, from x (rows, in).
template <int R>
inline void linear_with_rest(float* y, int64_t y_stride, const float* x, const Linear& map, int64_t rows, After after) {
    const int64_t panels = (map.out + WIDTH - 1) / WIDTH;
    for (int64_t begin = 0; begin < map.in; begin += DEPTH) {
        const int64_t end = begin + DEPTH < map.in ? begin + DEPTH : map.in;
        for (int64_t panel = 0; panel < panels; ++panel)
            rows_from<R>(y, y_stride, x, map, rows, panel, begin, end, after);
    }
}

inline void linear(float* y, int64_t y_stride, const float* x, const Linear& map, int64_t rows, After after = SET) {
    static_assert(ROWS == 6, "one case for each number of rows that may be left over");
    switch (rows % ROWS) {
        case 0: return linear_with_rest<0>(y, y_stride, x, map, rows, after);
        case 1: return linear_with_rest<1>(y, y_stride, x, map, rows, after);
        case 2: return linear_with_rest<2>(y, y_stride, x, map, rows, after);
        case 3: return linear_with_rest<3>(y, y_stride, x, map, rows, after);
        case 4: return linear_with_rest<4>(y, y_stride, x, map, rows, after);
        default: return linear_with_rest<5>(y, y_stride, x, map, rows, after);
    }
}
