// What the code for one vector width offers. A task writes what no other task writes.
#pragma once

#include "decoder.h"
#include "pair_list.h"
#include "problem.h"
#include "rows.h"

struct PathTable {
    // Floats of scratch memory for a forward task of so many queries.
    int64_t (*forward_floats)(const Problem&, int64_t queries);
    // The read of queries begin .. end of one head.
    void (*forward)(const Problem&, const Rows&, float* scratch, int64_t b, int64_t h, int64_t begin, int64_t end);

    // The same for all queries of one head, where they are at most FEW and nobody asked for statistics.
    int64_t (*few_floats)(const Problem&);
    void (*few)(const Problem&, const Rows&, float* scratch, int64_t b, int64_t h);

    // out = sum over slots of weight * value, reading a value only where its weight is not zero.
    void (*weigh_values)(float* out, const float* weights, int64_t slots, const float* values, int64_t stride,
                         int64_t width);

    int64_t (*backward_floats)(const Problem&);
    int64_t (*query_gradient_floats)(const Problem&);
    // The gradients of visible slots begin .. end of one head, and their share of those of the queries and row biases.
    void (*backward)(const Gradient&, const Rows&, float* scratch, float* d_q, float* d_row_bias, int64_t b, int64_t h,
                     int32_t begin, int32_t end);
    void (*finish_query_gradient)(const Gradient&, const float* shares, int64_t step, int64_t parts, int64_t b,
                                  int64_t h);

    // Forward and backward of reads with sparse rows, of any activation with exact zeros.
    int64_t (*sparse_forward_floats)(const Problem&, int64_t queries);
    void (*sparse_forward)(const Problem&, const Rows&, const SparseRun&, float* scratch, int64_t b, int64_t h,
                           int64_t begin, int64_t end);
    int64_t (*sparse_backward_floats)(const Problem&);
    void (*sparse_backward)(const Gradient&, const Rows&, const SparseRun&, float* scratch, float* d_q,
                            float* d_row_bias, int64_t b, int64_t h, int32_t begin, int32_t end);

    int64_t (*moment_floats)(const Moments&);
    void (*moments_forward)(const Moments&, float* scratch, int64_t b, int64_t h);
    void (*moments_backward)(const Moments&, float* scratch, int64_t b, int64_t h);

    // A weight matrix in the layout of this path: how many floats it takes, and the layout itself.
    int64_t (*panel_floats)(int64_t in, int64_t out);
    void (*pack_linear)(float* to, const float* weight, int64_t in, int64_t out);
    // Floats of scratch memory for a pass of so many rows; see decode.h.
    int64_t (*pass_floats)(const Model&, int64_t rows, int64_t most_slots, int64_t spans);
    // The states (rows, width) behind the encoder, which lie in the scratch memory.
    const float* (*encode)(const Model&, const Part* parts, int64_t count, int64_t most_slots, float* scratch);
    // Makes the slots of the source of a part, whose encoded states are given.
    void (*source_slots)(const Model&, const Part&, const float* states, float* scratch);
    // What may follow each wanted row.
    void (*decode)(const Model&, const Part* parts, int64_t count, int64_t most_slots, int64_t spans,
                   Following* following, int64_t k, float* scratch);
    int64_t lanes;
};

extern const PathTable PORTABLE_PATH;
#if defined(__x86_64__)
extern const PathTable AVX2_PATH, AVX512_PATH;
#endif

// The code for one of the paths of problem.h.
const PathTable& path_table(int64_t path);
