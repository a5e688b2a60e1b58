// The products of bytes.h for one instruction set; included by bytes.cpp inside a namespace of its own, after LANES
// is set and Weights, Inputs, weights_at, inputs_at and dot are defined for it.
//
// A vector holds LANES outputs, with four inputs each.

using Vector = float __attribute__((vector_size(4 * LANES)));
using Loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
using LooseIntegers = int32_t __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

constexpr int VECTORS = PANEL_OUTPUTS / LANES;  // of a panel
constexpr int MOST_ROWS = LANES == 4 ? 2 : 6, MOST_PANELS = LANES == 16 ? 4 : 1;

INLINE Vector load(const float* from) { return *reinterpret_cast<const Loose*>(from); }
INLINE void store(float* to, Vector x) { *reinterpret_cast<Loose*>(to) = x; }

// Adds or sets LANES outputs of a row, of which `here` exist.
INLINE void finish(float* y, Integers sum, const ByteRows& x, int64_t row, const Linear& map, int64_t column,
                   int64_t here, After after) {
    if (here <= 0) return;
    float edge[LANES], scales[LANES], bias[LANES];
    int32_t sums[LANES];
    const bool whole = here >= LANES;
    if (!whole)
        for (int lane = 0; lane < LANES; ++lane) {
            const bool there = lane < here;
            edge[lane] = there && after == ADD ? y[lane] : 0.0f;
            scales[lane] = there ? map.scales[column + lane] : 0.0f;
            sums[lane] = there ? map.sums[column + lane] : 0;
            bias[lane] = there && map.bias != nullptr ? map.bias[column + lane] : 0.0f;
        }
    if (x.centred) sum -= *reinterpret_cast<const LooseIntegers*>(whole ? map.sums + column : sums);
    Vector result = __builtin_convertvector(sum, Vector) * (load(whole ? map.scales + column : scales) * x.scales[row]);
    if (map.bias != nullptr) result += load(whole ? map.bias + column : bias);
    if (after == ADD) result += load(whole ? y : edge);
    if (after == SET_POSITIVE) result = (result < 0.0f) ? Vector{} : result;
    store(whole ? y : edge, result);
    if (!whole)
        for (int lane = 0; lane < here; ++lane) y[lane] = edge[lane];
}

template <int R, int P>
INLINE void block(float* y, int64_t y_stride, const ByteRows& x, const Linear& map, int64_t row, int64_t panel,
                  After after) {
    const int64_t groups = (map.in + GROUP_INPUTS - 1) / GROUP_INPUTS, step = PANEL_OUTPUTS * GROUP_INPUTS;
    const int8_t* weights = map.bytes + panel * groups * step;
    const uint8_t* inputs = x.bytes + row * x.stride;
    Integers sums[R][P * VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < P * VECTORS; ++v) sums[r][v] = Integers{};
    for (int64_t group = 0; group < groups; ++group, weights += step, inputs += GROUP_INPUTS) {
        Weights w[P * VECTORS];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; ++v)
                w[p * VECTORS + v] = weights_at(weights + p * groups * step + v * LANES * GROUP_INPUTS);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Inputs a = inputs_at(inputs + r * x.stride);
#pragma GCC unroll 8
            for (int v = 0; v < P * VECTORS; ++v) sums[r][v] = dot(sums[r][v], a, w[v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < P * VECTORS; ++v) {
            const int64_t column = panel * PANEL_OUTPUTS + v * LANES;
            finish(y + r * y_stride + v * LANES, sums[r][v], x, row + r, map, column, map.out - column, after);
        }
}

template <int P>
INLINE void rows_of_panels(float* y, int64_t y_stride, const ByteRows& x, const Linear& map, int64_t rows,
                           int64_t panel, After after) {
    int64_t row = 0;
    for (; row + MOST_ROWS <= rows; row += MOST_ROWS)
        block<MOST_ROWS, P>(y + row * y_stride, y_stride, x, map, row, panel, after);
    y += row * y_stride;
    switch (rows - row) {
        case 1: return block<1, P>(y, y_stride, x, map, row, panel, after);
#if LANES > 4
        case 2: return block<2, P>(y, y_stride, x, map, row, panel, after);
        case 3: return block<3, P>(y, y_stride, x, map, row, panel, after);
        case 4: return block<4, P>(y, y_stride, x, map, row, panel, after);
        case 5: return block<5, P>(y, y_stride, x, map, row, panel, after);
#endif
    }
}

void product(float* y, int64_t y_stride, const ByteRows& x, const Linear& map, int64_t rows, int64_t first,
             int64_t last, After after) {
    int64_t panel = first;
    for (; MOST_PANELS > 1 && panel + MOST_PANELS <= last; panel += MOST_PANELS)
        rows_of_panels<MOST_PANELS>(y + (panel - first) * PANEL_OUTPUTS, y_stride, x, map, rows, panel, after);
    for (; panel < last; ++panel)
        rows_of_panels<1>(y + (panel - first) * PANEL_OUTPUTS, y_stride, x, map, rows, panel, after);
}

// One vector of each of the four quarters of a chunk: outputs 16 j + half * LANES .. of it, for R rows.
template <int R>
INLINE void sparse_block(float* y, int64_t y_stride, const ByteRows& x, const Linear& map, int64_t row, int64_t chunk,
                         int64_t half, const int32_t* inputs, int64_t count, After after) {
    const int64_t stride = (map.out + CHUNK_OUTPUTS - 1) / CHUNK_OUTPUTS * CHUNK_OUTPUTS;
    const int8_t* weights = map.by_slot + chunk * CHUNK_OUTPUTS + half * LANES * GROUP_INPUTS;
    const uint8_t* bytes = x.bytes + row * x.stride;
    Integers sums[R][4];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) sums[r][j] = Integers{};
    for (int64_t i = 0; i < count; i += GROUP_INPUTS, bytes += GROUP_INPUTS) {
        Weights w[4];
        weights_of_slots(w, weights + inputs[i] * stride, weights + inputs[i + 1] * stride,
                         weights + inputs[i + 2] * stride, weights + inputs[i + 3] * stride);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Inputs a = inputs_at(bytes + r * x.stride);
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) sums[r][j] = dot(sums[r][j], a, w[j]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < 4; ++j) {
            const int64_t column = chunk * CHUNK_OUTPUTS + j * PANEL_OUTPUTS + half * LANES;
            finish(y + r * y_stride + column, sums[r][j], x, row + r, map, column, map.out - column, after);
        }
}

void sparse_product(float* y, int64_t y_stride, const ByteRows& x, const Linear& map, int64_t rows,
                    const int32_t* inputs, int64_t count, After after) {
    const int64_t chunks = (map.out + CHUNK_OUTPUTS - 1) / CHUNK_OUTPUTS;
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
        for (int64_t half = 0; half < VECTORS; ++half) {
            int64_t row = 0;
            for (; row + 4 <= rows; row += 4)
                sparse_block<4>(y + row * y_stride, y_stride, x, map, row, chunk, half, inputs, count, after);
            for (; row < rows; ++row)
                sparse_block<1>(y + row * y_stride, y_stride, x, map, row, chunk, half, inputs, count, after);
        }
}
