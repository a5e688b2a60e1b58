// The one product of matrices: a block of ROWS x WIDTH sums kept in registers.
#pragma once

constexpr int ROWS = 6;           // 6 x 2 accumulators fill 16 registers together with their operands
constexpr int WIDTH = 2 * LANES;  // columns of a block, and of a panel

// Steps start .. start + count of the inner dimension; the rest of it is known to be zero.
struct Run {
    int32_t start, count;
};

struct Block {
    Vector at[ROWS][2];
};

INLINE Block zero_block() { return Block{}; }

INLINE Block load_block(const float* from, int64_t stride) {
    Block block;
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        block.at[r][0] = load(from + r * stride);
        block.at[r][1] = load(from + r * stride + LANES);
    }
    return block;
}

INLINE void store_block(float* to, int64_t stride, const Block& block) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        store(to + r * stride, block.at[r][0]);
        store(to + r * stride + LANES, block.at[r][1]);
    }
}

// block[r][c] += sum over p of a[r * a_row + p * a_step] * b[p * b_step + c]
INLINE void multiply(Block& block, const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_step,
                     int64_t count) {
#pragma GCC unroll 4
    for (int64_t p = 0; p < count; ++p) {
        const Vector left = load(b), right = load(b + LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            const float x = a[r * a_row];
            block.at[r][0] += x * left;
            block.at[r][1] += x * right;
        }
        a += a_step;
        b += b_step;
    }
}

INLINE float dot(const float* a, const float* b, int64_t width) {
    Vector even{}, odd{};
    int64_t c = 0;
    for (; c + 2 * LANES <= width; c += 2 * LANES) {
        even += load(a + c) * load(b + c);
        odd += load(a + c + LANES) * load(b + c + LANES);
    }
    for (; c + LANES <= width; c += LANES) even += load(a + c) * load(b + c);
    float rest = 0;
    for (; c < width; ++c) rest += a[c] * b[c];
    return total(even + odd) + rest;
}
