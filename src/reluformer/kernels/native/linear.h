// Rows times a weight matrix that was laid out once. In float32: [panel of WIDTH outputs][in][WIDTH], zeros past the
// last. In int8: bytes.h; the rows are rounded to bytes first, each with a scale of its own.
#pragma once

inline int64_t panel_floats(int64_t in, int64_t out) { return (out + WIDTH - 1) / WIDTH * WIDTH * in; }

// weight: (out, in)
inline void pack_linear(float* to, const float* weight, int64_t in, int64_t out) {
    for (int64_t first = 0; first < out; first += WIDTH)
        for (int64_t p = 0; p < in; ++p)
            for (int64_t c = 0; c < WIDTH; ++c) *to++ = first + c < out ? weight[(first + c) * in + p] : 0.0f;
}

constexpr int64_t DEPTH = 256;  // of a product that stays in the nearest cache: DEPTH x WIDTH weights

// y[r] (=, += or = positive part of) bias + x[r] panels, for R rows and one panel, steps begin .. end of `in`. Where
// `inputs` is given, the others are known to be zero: begin .. end are places in it, and `first` and `last` say
// whether the sum begins and ends here.
template <int R>
INLINE void block_of_rows(float* y, int64_t y_stride, const float* x, const Linear& map, int64_t panel,
                          const int32_t* inputs, int64_t begin, int64_t end, bool first, bool last, After after) {
    Vector sums[R][2];
    const float* weights = map.panels + panel * WIDTH * map.in;
    const int64_t column = panel * WIDTH, here = map.out - column < WIDTH ? map.out - column : WIDTH;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = Vector{};
    const auto add = [&](int64_t p) __attribute__((always_inline)) {
        const float* b = weights + p * WIDTH;
        const Vector left = load(b), right = load(b + LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const float factor = x[r * map.in + p];
            sums[r][0] += factor * left;
            sums[r][1] += factor * right;
        }
    };
    if (inputs == nullptr) {
        for (int64_t p = begin; p < end; ++p) add(p);
    } else {
        for (int64_t i = begin; i < end; ++i) add(inputs[i]);
    }
    for (int r = 0; r < R; ++r) {
        float edge[WIDTH];
        float* to = y + r * y_stride;
        float* at = here == WIDTH ? to : edge;
        if (at == edge)
            for (int64_t c = 0; c < here; ++c) edge[c] = first && after != ADD ? 0.0f : to[c];
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

// All rows and the panels first_panel .. last_panel; y begins at the first of them. inputs: `count` of them in rising
// order, or null. A row has the same bits among any others: its sum is made of the same parts in the same order.
inline void float_product(float* y, int64_t y_stride, const float* x, const Linear& map, int64_t rows,
                          int64_t first_panel, int64_t last_panel, const int32_t* inputs, int64_t count, After after) {
    static_assert(ROWS == 6, "one case for each number of rows that may be left over");
    int64_t begin = 0;
    for (int64_t depth = 0; depth < map.in; depth += DEPTH) {
        const int64_t reach = depth + DEPTH < map.in ? depth + DEPTH : map.in;
        int64_t end = inputs == nullptr ? reach : begin;
        while (inputs != nullptr && end < count && inputs[end] < reach) ++end;
        const bool first = depth == 0, last = reach == map.in;
        for (int64_t panel = first_panel; panel < last_panel; ++panel) {
            float* to = y + (panel - first_panel) * WIDTH;
            const auto block = [&](auto size, int64_t r) __attribute__((always_inline)) {
                block_of_rows<decltype(size)::value>(to + r * y_stride, y_stride, x + r * map.in, map, panel, inputs,
                                                     begin, end, first, last, after);
            };
            int64_t r = 0;
            for (; r + ROWS <= rows; r += ROWS) block(std::integral_constant<int, ROWS>{}, r);
            switch (rows - r) {
                case 1: block(std::integral_constant<int, 1>{}, r); break;
                case 2: block(std::integral_constant<int, 2>{}, r); break;
                case 3: block(std::integral_constant<int, 3>{}, r); break;
                case 4: block(std::integral_constant<int, 4>{}, r); break;
                case 5: block(std::integral_constant<int, 5>{}, r); break;
            }
        }
        begin = end;
    }
}

inline int64_t byte_stride(int64_t in) { return (in + 63) / 64 * 64; }

// One row of bytes: x = scale * (byte - 128), or scale * byte where no x is negative. Returns the scale, which is no
// number where some x is none or infinite.
INLINE float round_row(uint8_t* to, const float* x, int64_t in, bool centred) {
    using Bytes = uint8_t __attribute__((vector_size(LANES), aligned(1), may_alias));
    float most = 0;
    int64_t c = 0;
    Vector highest{}, lowest{}, trouble{};
    for (; c + LANES <= in; c += LANES) {
        const Vector part = load(x + c);
        trouble += part * 0.0f;
        highest = (part > highest) ? part : highest;
        lowest = (part < lowest) ? part : lowest;
    }
    for (int lane = 0; lane < LANES; ++lane) {
        most = highest[lane] > most ? highest[lane] : most;
        most = -lowest[lane] > most ? -lowest[lane] : most;
    }
    float wrong = total(trouble);
    for (; c < in; ++c) {
        most = std::fabs(x[c]) > most ? std::fabs(x[c]) : most;
        wrong += x[c] * 0.0f;
    }
    const float steps = centred ? 127.0f : 255.0f, zero = centred ? 128.5f : 0.5f;
    const float scale = most / steps, factor = most > 0 ? steps / most : 0.0f;
    const auto byte = [&](float number) {
        const float moved = number * factor + zero;
        return static_cast<uint8_t>(moved >= 0.0f && moved < 256.0f ? moved : zero);
    };
    for (c = 0; c + LANES <= in; c += LANES) {
        Vector moved = load(x + c) * factor + zero;
        moved = ((moved >= 0.0f) & (moved < 256.0f)) ? moved : filled(zero);
        *reinterpret_cast<Bytes*>(to + c) = __builtin_convertvector(__builtin_convertvector(moved, Integers), Bytes);
    }
    for (; c < in; ++c) to[c] = byte(x[c]);
    for (; c < byte_stride(in); ++c) to[c] = 0;
    return scale + wrong;
}

// Rows of activations on their way into products.
struct Operand {
    const float* x;
    int64_t rows;
    ByteRows bytes;
};

// Memory for the bytes and scales of so many rows of so many inputs.
inline int64_t operand_floats(int64_t rows, int64_t in) { return rows * (byte_stride(in) / 4 + 1) + 16; }

// x (rows, in); `memory` holds the bytes, if the map needs them.
inline Operand operand_of(const float* x, int64_t rows, const Linear& map, float* memory, bool centred = true) {
    if (map.bytes == nullptr) return {x, rows, {}};
    const int64_t stride = byte_stride(map.in);
    uint8_t* bytes = reinterpret_cast<uint8_t*>(memory + rows);
    for (int64_t r = 0; r < rows; ++r) memory[r] = round_row(bytes + r * stride, x + r * map.in, map.in, centred);
    return {x, rows, {bytes, stride, memory, centred}};
}

// y (rows, out), rows y_stride apart. Outputs first .. last, multiples of PRODUCT_OUTPUTS or the last one.
constexpr int64_t PRODUCT_OUTPUTS = 32 > PANEL_OUTPUTS ? 32 : PANEL_OUTPUTS;
static_assert(PRODUCT_OUTPUTS % WIDTH == 0 && PRODUCT_OUTPUTS % PANEL_OUTPUTS == 0, "whole panels of either kind");

inline void product_of(float* y, int64_t y_stride, const Operand& x, const Linear& map, const ByteCode& code,
                       int64_t first, int64_t last, After after = SET) {
    if (map.bytes != nullptr) {
        code.product(y, y_stride, x.bytes, map, x.rows, first / PANEL_OUTPUTS, byte_panels(last), after);
    } else {
        float_product(y, y_stride, x.x, map, x.rows, first / WIDTH, (last + WIDTH - 1) / WIDTH, nullptr, 0, after);
    }
}

inline void linear(float* y, int64_t y_stride, const float* x, const Linear& map, int64_t rows, const ByteCode& code,
                   float* memory, After after = SET) {
    product_of(y, y_stride, operand_of(x, rows, map, memory), map, code, 0, map.out, after);
}

constexpr int64_t FEW_ROWS = 16;  // of which a slot may fire in none

// y += bias + x W^T for x >= 0, of which many are zero: weights of slots that fired in no row are not loaded.
// inputs: room for `in` + GROUP_INPUTS numbers; memory: twice operand_floats.
inline void add_fired(float* y, int64_t y_stride, const float* x, const Linear& map, int64_t rows, const ByteCode& code,
                      float* memory, int32_t* inputs) {
    Operand operand = operand_of(x, rows, map, memory, false);
    if (rows > FEW_ROWS) return product_of(y, y_stride, operand, map, code, 0, map.out, ADD);
    int64_t count = 0;
    if (map.bytes == nullptr) {
        for (int64_t p = 0; p < map.in; ++p) {
            bool fired = false;
            for (int64_t r = 0; r < rows; ++r) fired |= x[r * map.in + p] != 0.0f;
            inputs[count] = static_cast<int32_t>(p);
            count += fired;
        }
        if (2 * count > map.in) return product_of(y, y_stride, operand, map, code, 0, map.out, ADD);
        return float_product(y, y_stride, x, map, rows, 0, (map.out + WIDTH - 1) / WIDTH, inputs, count, ADD);
    }
    const ByteRows& bytes = operand.bytes;
    for (int64_t p = 0; p < map.in; ++p) {
        uint8_t fired = 0;
        for (int64_t r = 0; r < rows; ++r) fired |= bytes.bytes[r * bytes.stride + p];
        inputs[count] = static_cast<int32_t>(p);
        count += fired != 0;
    }
    if (map.by_slot == nullptr || 2 * count > map.in)
        return product_of(y, y_stride, operand, map, code, 0, map.out, ADD);
    const int64_t found = count;
    while (count % GROUP_INPUTS != 0) inputs[count++] = 0;
    uint8_t* chosen = reinterpret_cast<uint8_t*>(memory + operand_floats(rows, map.in));
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < count; ++i)
            chosen[r * bytes.stride + i] = i < found ? bytes.bytes[r * bytes.stride + inputs[i]] : 0;
    code.sparse_product(y, y_stride, {chosen, bytes.stride, bytes.scales, false}, map, rows, inputs, count, ADD);
}
