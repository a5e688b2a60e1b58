// Products of 8-bit integers: rows of activations, rounded on the fly, times the int8 weights of a Linear.
//
// `bytes` of a Linear: [panel of 16 outputs][group of 4 inputs][16][4], zeros past the last of both.
// `by_slot`: [input][chunk of 64 outputs][64], where output 16 j + 4 l + k of a chunk stands at 16 l + 4 j + k.
// Sums are exact, so every instruction set gives the same integers.
#pragma once

#include <cstdint>

#include "decoder.h"

constexpr int64_t PANEL_OUTPUTS = 16, GROUP_INPUTS = 4, CHUNK_OUTPUTS = 64;

// What a product does with y.
enum After : int64_t { SET, SET_POSITIVE, ADD };

// Rows of activations: x = scale * (byte - 128) where they are centred, else scale * byte.
struct ByteRows {
    const uint8_t* bytes;
    int64_t stride;  // a multiple of GROUP_INPUTS; past the last input stands anything
    const float* scales;
    bool centred;
};

struct ByteCode {
    // y (rows, out), y_stride apart, for the panels first .. last; y begins at the first of them.
    void (*product)(float* y, int64_t y_stride, const ByteRows& x, const Linear& map, int64_t rows, int64_t first,
                    int64_t last, After after);
    // The same for all outputs from `by_slot`. Row r of x has the bytes of the inputs inputs[0 .. count), which is
    // a multiple of GROUP_INPUTS.
    void (*sparse_product)(float* y, int64_t y_stride, const ByteRows& x, const Linear& map, int64_t rows,
                           const int32_t* inputs, int64_t count, After after);
};

// The code for one of the paths of problem.h, with the best instructions that the processor has and tests allow.
const ByteCode& byte_code(int64_t path);

inline int64_t byte_panels(int64_t out) { return (out + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS; }
