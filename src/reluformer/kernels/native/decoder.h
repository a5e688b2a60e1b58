// What Python hands over: the weights of a model, laid out once. native/decoder.py mirrors these structs field by
// field; ABI counts their versions together with problem.h. Rows are tokens of any sentences; nobody else touches
// the rows and slots of a task.
#pragma once

#include <cstdint>

// y = x W^T + bias: in float32 (`panels`, see linear.h) or in int8 (`bytes`, see bytes.h), with the other one null.
struct Linear {
    const float* panels;
    const float* bias;  // (out), or null
    int64_t in, out;
    const int8_t* bytes;    // weights, each row of W divided by its scale
    const float* scales;    // (out)
    const int32_t* sums;    // (out): 128 times the sum of a row of `bytes`
    const int8_t* by_slot;  // the same weights, those of an input together; null except for the values of a memory
};

// weight is null where there is no norm.
struct Norm {
    const float *weight, *bias;
    double epsilon;
};

// Rows of embeddings: float32, or int8 with a scale each.
struct Embedding {
    const float* floats;
    const int8_t* bytes;
    const float* scales;
};

// A block of the encoder or the decoder; that of an encoder has no cross attention.
struct Layer {
    Norm own_norm, cross_norm, ffn_norm;
    Linear query_key_value, own_output;  // the scale of the scores is in the query's weights
    Linear cross_query, cross_key_value, cross_output;
    Linear ffn_keys, ffn_values;
    const float *own_offset, *cross_offset;  // (heads), added to the scores; null where there is none
};

enum ReadKind : int64_t { READ_RELU = 0, READ_SOFTMAX = 1, READ_RELU_EXP = 2 };

// How the scores of a row become weights. `factor` and `exponent` are those of READ_RELU, factor n^-exponent (s)+. The
// other numbers are those of READ_RELU_EXP, (e^x - 1)+ / (delta + sum (e^x - 1)+) with x = score - level, cut at
// `highest`; level = min(mean + threshold + growth log n + (spread + chance sqrt(2 log n)) sqrt(variance + floor),
// best score - cap).
struct ReadRule {
    int64_t kind;
    double factor, exponent;
    double threshold, growth, spread, floor, delta, highest, chance;
    double cap;  // negative where the level has none
};

struct Model {
    int64_t width, heads, slots, vocabulary, encoder_layers, decoder_layers;
    int64_t pre_norm, path;
    int64_t separator;        // the token that opens the next sentence, negative where sentences are not counted
    int64_t adds_positions;   // whether the sinusoids of a token's position are added to its embedding
    ReadRule encoder_rule, own_rule, cross_rule;
    double embedding_scale;
    Embedding source_embedding, target_embedding;
    const Layer *encoder, *decoder;
    Norm encoder_norm, decoder_norm;
    Linear output;
    int64_t positions;       // rows of the tables that follow; each of them may be null
    const float* sinusoids;  // (positions, width), of positions and of numbers of sentences
    const float *cosines, *sines;  // (positions, width / heads / 2), rotate queries and keys
};

// The rows of one sentence in a pass, and the slots that they read. The slots of a layer are keys (heads, capacity /
// lanes, head width, lanes) and then values (heads, capacity, head width).
struct Part {
    const int64_t* tokens;   // (rows)
    const int64_t* numbers;  // (rows): of their sentences; null where they are not counted
    int64_t rows;
    int64_t position;     // of the first row
    int64_t consecutive;  // 1: the rows stand behind each other, and a causal row sees those before it; 0: they are beams
    int64_t first_wanted;  // what follows is wanted of this row and those after it
    float* own;            // of the first layer; a row writes slot `used` + its number
    int64_t own_step, own_capacity, used;
    const int32_t* ancestors;  // (rows, stride): the slot of each position so far; null where slot t has position t
    int64_t ancestor_stride;
    int64_t straight;     // of so many first positions the slot is the position, for all rows
    const float* source;  // of the first layer
    int64_t source_step, source_capacity, source_count;
    const int32_t* spans;  // (source_count): the sentence that a source slot belongs to, negative for none
    int64_t span_count;
    float* reads;  // (rows, span_count): what the last layer read of each sentence; null where nobody asks
};

// What may follow a row: the log-probabilities of the end and the separator, and the best of all other tokens.
struct Following {
    float end, separator;
    int64_t separates;  // given: whether the separator is among the others
    float* values;      // (k), falling; minus infinity where there are fewer
    int32_t* tokens;    // (k)
};

constexpr int64_t TOKEN_PAD = 0, TOKEN_BEGIN = 1, TOKEN_END = 2, TOKEN_SEPARATOR = 3;
