// What Python hands over to decode one position: the weights, laid out once, and the state of the search.
// native/decoder.py mirrors these structs field by field; ABI counts their versions together with problem.h.
#pragma once

#include <cstdint>

// y = x W^T + bias. `panels`: see linear.h; bias: `out` numbers, or null.
struct Linear {
    const float* panels;
    const float* bias;
    int64_t in, out;
};

// weight is null where there is no norm.
struct Norm {
    const float *weight, *bias;
    double epsilon;
};

struct DecoderLayer {
    Norm own_norm, cross_norm, ffn_norm;
    Linear query_key_value, own_output;  // the scale of the scores is in the query's weights
    Linear cross_query, cross_output;
    Linear ffn_keys, ffn_values;
    const float *own_offset, *cross_offset;  // (heads), added to the scores; null where there is none
};

enum ReadKind : int64_t { READ_RELU = 0, READ_SOFTMAX = 1, READ_RELU_EXP = 2 };

// How the scores of a row become weights. The numbers are those of READ_RELU_EXP, (e^x - 1)+ / (delta + sum (e^x - 1)+)
// with x = score - level, cut at `highest`; level = min(mean + threshold + growth log n + (spread + chance sqrt(2 log n))
// sqrt(variance + floor), best score - cap). Others leave them 0.
struct ReadRule {
    int64_t kind;
    double threshold, growth, spread, floor, delta, highest, chance;
    double cap;  // negative where the level has none
};

struct Decoder {
    int64_t width, heads, layers, slots, vocabulary;
    int64_t pre_norm, path;
    ReadRule own_rule, cross_rule;
    double embedding_scale;
    const float* embedding;  // (vocabulary, width)
    const DecoderLayer* layer;
    Norm norm;
    Linear output;
};

// The slots of one layer, those of a head next to each other: a search reads them head by head.
struct LayerSlots {
    float *own_keys, *own_values;              // (batch, heads, capacity, width / heads)
    const float *source_keys, *source_values;  // (batch, heads, source_capacity, width / heads)
};

// One position of `batch` sources with `beams` beams each. Row numbers count beams, source after source.
struct Position {
    int64_t batch, beams, threads;
    int64_t length;                      // positions before this one
    int64_t used, capacity;              // own slots of a source that are taken, and that there is room for
    int64_t source_capacity;
    const int64_t *tokens, *parents;     // (batch * beams): what is appended, to which row of the position before
    const int32_t* old_ancestors;        // of the rows of the position before, (rows, ancestor_stride): the own slot of each position
    int32_t* ancestors;                  // (batch * beams, ancestor_stride): the same with this position's
    int64_t ancestor_stride;
    const int64_t* source_lengths;       // (batch)
    const float *sinusoid;               // (width), added to the embedding, or null
    const float *cosine, *sine;          // (width / heads / 2), rotate queries and keys, or null
    double own_scale;                    // factor of the weights of an own read
    const float* source_scales;          // (batch): the same for the source's
    const LayerSlots* slots;             // of each layer
    float* log_probabilities;            // (batch * beams, vocabulary)
};
