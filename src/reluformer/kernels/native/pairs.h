// Products over listed pairs alone: each costs as much as the pairs that it touches.
//
// A list is grouped: entries start[i] .. start[i + 1] belong to line i, and place[e] is the other side of entry e. With
// rows as lines places are slots; transposed it is the other way round.
#pragma once

constexpr int VECTORS = LANES == 16 ? 4 : 8;  // vectors of a line that stay in registers; more find too little cache
constexpr int64_t STRETCH = VECTORS * LANES;

// The lines of a tile, in stretches of STRETCH columns, each of them whole vectors: column c of line i is at
// data[c / STRETCH * step + i * stride + c % STRETCH]. A plain matrix has step == STRETCH. Where lines are read in any
// order, a stretch of all of them should lie close together.
struct Lines {
    float* data;
    int64_t stride, step;

    static Lines plain(float* data, int64_t stride) { return {data, stride, STRETCH}; }
    // Of `count` lines next to each other.
    static Lines close(float* data, int64_t width, int64_t count) {
        const int64_t stride = width < STRETCH ? round_up(width, LANES) : STRETCH;
        return {data, stride, stride * count};
    }
    static int64_t close_floats(int64_t width, int64_t count) {
        return width < STRETCH ? round_up(width, LANES) * count : round_up(width, STRETCH) * count;
    }
    float* at(int64_t line, int64_t column) const { return data + column / STRETCH * step + line * stride; }
    Lines from(int64_t line) const { return {data + line * stride, stride, step}; }

    // Line i becomes `row` times a factor, with zeros up to a whole vector.
    void set(int64_t i, const float* row, int64_t width, float factor = 1.0f) const {
        for (int64_t first = 0; first < width; first += STRETCH) {
            const int64_t here = width - first < STRETCH ? width - first : STRETCH;
            float* to = at(i, first);
            int64_t c = 0;
            for (; c + LANES <= here; c += LANES) store(to + c, load(row + first + c) * factor);
            if (c == here) continue;
            for (int64_t rest = c; rest < c + LANES; ++rest) to[rest] = rest < here ? row[first + rest] * factor : 0.0f;
        }
    }
};

struct Entries {
    int32_t* start;
    uint8_t* place;  // up to 64 more are read past the last, and must be places, too
};

// The sums of the lanes of four vectors.
INLINE void store_totals(float* to, Vector a, Vector b, Vector c, Vector d) {
#if defined(HALVES) && LANES >= 8
    // Neighbours are added and paired until a quarter of the lanes holds all four.
#if LANES == 16
#define LOW(x, y) __builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define HIGH(x, y) __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define LOW_PAIRS(x, y) __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH_PAIRS(x, y) __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#else
#define LOW(x, y) __builtin_shufflevector(x, y, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(x, y) __builtin_shufflevector(x, y, 2, 10, 3, 11, 6, 14, 7, 15)
#define LOW_PAIRS(x, y) __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH_PAIRS(x, y) __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15)
#endif
    const Vector ab = LOW(a, b) + HIGH(a, b), cd = LOW(c, d) + HIGH(c, d);
    const Vector all = LOW_PAIRS(ab, cd) + HIGH_PAIRS(ab, cd);
#if LANES == 16
    const auto half = __builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    const Vector half = all;
#endif
    const auto four = __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#undef LOW
#undef HIGH
#undef LOW_PAIRS
#undef HIGH_PAIRS
    std::memcpy(to, &four, sizeof four);
#else
    to[0] = total(a), to[1] = total(b), to[2] = total(c), to[3] = total(d);
#endif
}

// Entries of one line: out[e] (+)= line . other[place e]. Up to three more are written.
template <int N, bool Add>
INLINE void line_products(float* out, const float* line, const float* other, int64_t stride, const uint8_t* place,
                          int32_t begin, int32_t end) {
    Vector x[N];
#pragma GCC unroll 8
    for (int c = 0; c < N; ++c) x[c] = load(line + c * LANES);
    for (int32_t e = begin; e < end; e += 4) {
        Vector sums[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const float* y = other + place[e + i] * stride;
            sums[i] = x[0] * load(y);
#pragma GCC unroll 8
            for (int c = 1; c < N; ++c) sums[i] += x[c] * load(y + c * LANES);
        }
        if (Add) {
            float more[4];
            store_totals(more, sums[0], sums[1], sums[2], sums[3]);
            for (int i = 0; i < 4 && e + i < end; ++i) out[e + i] += more[i];
        } else {
            store_totals(out + e, sums[0], sums[1], sums[2], sums[3]);
        }
    }
}

// Calls visit(number of vectors, first column) for every stretch of columns.
template <class Visit>
INLINE void for_stretches(int64_t width, const Visit& visit) {
    for (int64_t column = 0; column < width; column += STRETCH) {
        const int64_t vectors = (width - column + LANES - 1) / LANES;
        if (vectors >= VECTORS) {
            visit(std::integral_constant<int, VECTORS>(), column);
        } else if constexpr (VECTORS == 4) {
            switch (vectors) {
                case 1: visit(std::integral_constant<int, 1>(), column); break;
                case 2: visit(std::integral_constant<int, 2>(), column); break;
                default: visit(std::integral_constant<int, 3>(), column);
            }
        } else {
            switch (vectors) {
                case 1: visit(std::integral_constant<int, 1>(), column); break;
                case 2: visit(std::integral_constant<int, 2>(), column); break;
                case 3: visit(std::integral_constant<int, 3>(), column); break;
                case 4: visit(std::integral_constant<int, 4>(), column); break;
                case 5: visit(std::integral_constant<int, 5>(), column); break;
                case 6: visit(std::integral_constant<int, 6>(), column); break;
                default: visit(std::integral_constant<int, 7>(), column);
            }
        }
    }
}

// out[e] = lines[i] . other[place e] for the entries e of each line i.
inline void products_of_entries(float* out, const Lines& lines, const Lines& other, int64_t width,
                                const Entries& entries, int32_t count) {
    if (width == 0) std::memset(out, 0, sizeof(float) * entries.start[count]);
    for_stretches(width, [&](auto vectors, int64_t column) {
        constexpr int N = decltype(vectors)::value;
        const float* from = other.at(0, column);
        for (int32_t i = 0; i < count; ++i) {
            const int32_t begin = entries.start[i], end = entries.start[i + 1];
            if (column == 0) {
                line_products<N, false>(out, lines.at(i, column), from, other.stride, entries.place, begin, end);
            } else {
                line_products<N, true>(out, lines.at(i, column), from, other.stride, entries.place, begin, end);
            }
        }
    });
}

// to[i] += sum of weights[e] * other[place e] over the entries e of each line i.
inline void add_entries(const Lines& to, const float* weights, const Lines& other, int64_t width, const Entries& entries,
                        int32_t count) {
    for_stretches(width, [&](auto vectors, int64_t column) {
        constexpr int N = decltype(vectors)::value;
        const float* from = other.at(0, column);
        for (int32_t i = 0; i < count; ++i) {
            const int32_t begin = entries.start[i], end = entries.start[i + 1];
            if (begin == end) continue;
            float* line = to.at(i, column);
            Vector sums[N];
#pragma GCC unroll 8
            for (int c = 0; c < N; ++c) sums[c] = load(line + c * LANES);
            for (int32_t e = begin; e < end; ++e) {
                const float* y = from + entries.place[e] * other.stride;
                const float weight = weights[e];
#pragma GCC unroll 8
                for (int c = 0; c < N; ++c) sums[c] += weight * load(y + c * LANES);
            }
#pragma GCC unroll 8
            for (int c = 0; c < N; ++c) store(line + c * LANES, sums[c]);
        }
    });
}

// The same entries with places as lines, in the order of the lines they come from, and two numbers of each.
inline void transpose_entries(const Entries& to, float* to_a, float* to_b, const Entries& from, const float* a,
                              const float* b, int32_t lines, int32_t places) {
    const int32_t count = from.start[lines];
    int32_t next[PAIR_SLOTS];
    std::memset(next, 0, sizeof next);
    for (int32_t e = 0; e < count; ++e) ++next[from.place[e]];
    for (int32_t j = 0, sum = 0; j < places; ++j) {
        const int32_t here = next[j];
        to.start[j] = next[j] = sum;
        sum += here;
    }
    to.start[places] = count;
    for (int32_t i = 0; i < lines; ++i)
        for (int32_t e = from.start[i]; e < from.start[i + 1]; ++e) {
            const int32_t at = next[from.place[e]]++;
            to.place[at] = static_cast<uint8_t>(i);
            to_a[at] = a[e];
            to_b[at] = b[e];
        }
}
