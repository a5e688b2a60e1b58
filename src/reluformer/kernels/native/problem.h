// What Python hands over: one read, or its gradient, as plain pointers, sizes and strides.
// native/library.py mirrors these structs field by field; ABI counts their versions.
#pragma once

#include <cstdint>

#define RELUFORMER_ABI 9

// A float32 tensor (B, H, T, width): element strides of the first three, the last is contiguous.
struct Tensor4 {
    float* data;
    int64_t batch, head, row;

    float* at(int64_t b, int64_t h, int64_t t) const { return data + b * batch + h * head + t * row; }
};

// A float32 tensor (B, H, T), contiguous along T; the strides of B and H may be 0.
struct Tensor3 {
    float* data;
    int64_t batch, head;

    float* at(int64_t b, int64_t h) const { return data == nullptr ? nullptr : data + b * batch + h * head; }
};

// Up to so many queries are read slot by slot instead of tile by tile.
constexpr int64_t FEW = 8;

enum Activation : int64_t { RELU = 0, RELU_SQUARED = 1, SIGMOID = 2, RELU_EXP = 3 };
enum Path : int64_t { PORTABLE = 0, AVX2 = 1, AVX512 = 2 };

// w_ij = act(scale q_i k_j + row_bias_i + key_bias_j - [log_n] log n_i) * factor * n_i^-exponent,
// then, where delta >= 0, divided by delta + its own row sum. Where cap > 0 and the best score of a row with its biases
// lies below it, the row bias is what lifts that score to the cap (capped_rows.h).
struct Problem {
    int64_t batches, heads, queries, slots, width, value_width;
    int64_t causal, threads, path;
    int64_t activation, log_n;
    double scale, factor, exponent, delta;
    Tensor4 q, k, v, out;
    const uint8_t* key_mask;  // (B, Tk), 1 = visible, or null
    int64_t mask_batch;       // its element stride along B
    Tensor3 row_bias, key_bias;
    // Sums over the activations a of each row, kept for the backward pass; null where nobody needs them.
    Tensor3 sum, mean_log;  // A = sum a, and (sum a log a) / A
    // Statistics of the weights; null where nobody asked.
    Tensor3 row_sum, entropy, zero_fraction;
    // Only where cap > 0, (B, H, Tq) each, contiguous: written by the forward pass, read by the backward pass.
    double cap;
    int32_t* best;       // 1 + the slot whose score sets the bias of the row; 0 where the row keeps its own
    float* capped_bias;  // that bias

    bool capped() const { return cap > 0; }
    int64_t row(int64_t b, int64_t h, int64_t i) const { return (b * heads + h) * queries + i; }
};

// Mean and variance of scale y_i . x_j over the slots that row i sees, or the row bias that takes a level made of them off
// the scores: bias_i = -(threshold + growth log n_i + mean_i + (spread + chance sqrt(2 log n_i)) sqrt(variance_i + floor)).
struct Moments {
    int64_t batches, heads, queries, slots, width, causal, threads, path;
    double scale;
    Tensor4 y, x;
    const uint8_t* key_mask;  // (B, Tk), 1 = visible, or null
    int64_t mask_batch;       // its element stride along B
    float *mean, *variance;   // (B, H, Tq), contiguous
    const float *d_mean, *d_variance;  // likewise; null where the moments are wanted, and not their gradient
    Tensor4 d_y, d_x;  // what they get is added to what they hold
    double threshold, growth, spread, chance, floor;
    float* bias;          // likewise; null where the mean is wanted instead
    const float* d_bias;  // likewise, in place of d_mean and d_variance

    bool backward() const { return d_mean != nullptr || d_bias != nullptr; }
    bool visible(int64_t b, int64_t slot) const { return key_mask == nullptr || key_mask[b * mask_batch + slot]; }
};

struct Gradient {
    Problem forward;
    Tensor4 d_out, d_q, d_k, d_v;
    Tensor3 d_row_sum, d_entropy;      // null: no gradient
    Tensor3 d_row_bias, d_key_bias;    // null: not wanted
};

// How a read with exact zeros is computed. The automatic choice looks at one row for every 96 (see sparse_rows.h).
// SHARED is added to a mode where all items of the batch read one memory of one head, as in a feed-forward layer: keys,
// values and key biases, and their gradients, have batch stride 0; the gradients are summed over the batch. Then nothing
// is hidden, and all that belongs to rows is contiguous along the batch.
enum Mode : int64_t { AUTOMATIC = 0, DENSE = 1, SPARSE = 2, SHARED = 4 };

// What a read reports, summed over all heads.
struct SparseReport {
    int64_t needed;         // bytes of a list that holds all nonzero pairs of the rows that were read sparsely
    int64_t used;           // bytes of the list that were written; the rest of its memory may be given back
    int64_t sparse_pairs;   // visible pairs of the rows that were read sparsely
    int64_t nonzero_pairs;  // those of them that have a weight
    int64_t dense_pairs;    // visible pairs of all other rows
};

// The sparse part of a read. The caller owns the memory of the list: the forward pass writes it, and the backward
// pass reads it, with the same mode and shapes. Pairs that did not fit are found again.
struct Sparse {
    int64_t mode;
    uint8_t* list;         // starts at a multiple of 8; null: nothing is kept
    int64_t bytes;         // of the list
    SparseReport* report;  // written by the forward pass; null: nobody asked
};
