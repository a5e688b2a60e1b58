// The C interface of translation: weights laid out once, and searches over sentences.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "bytes.h"
#include "decoder.h"
#include "parallel.h"
#include "paths.h"
#include "search.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int64_t reluformer_panel_floats(int64_t path, int64_t in, int64_t out) {
    return path_table(path).panel_floats(in, out);
}

EXPORT void reluformer_pack_linear(int64_t path, float* to, const float* weight, int64_t in, int64_t out) {
    path_table(path).pack_linear(to, weight, in, out);
}

// Rows (count, size) to bytes and a scale each.
EXPORT void reluformer_quantise(const float* rows, int64_t count, int64_t size, int8_t* bytes, float* scales) {
    for (int64_t r = 0; r < count; ++r, rows += size, bytes += size) {
        float most = 0;
        for (int64_t c = 0; c < size; ++c) most = std::fabs(rows[c]) <= most ? most : std::fabs(rows[c]);
        scales[r] = most / 127.0f;
        const float factor = most > 0 ? 127.0f / most : 0.0f;
        for (int64_t c = 0; c < size; ++c) {
            const float step = std::nearbyint(rows[c] * factor);
            bytes[c] = static_cast<int8_t>(step >= -127.0f && step <= 127.0f ? step : 0.0f);
        }
    }
}

// The bytes that a product of so many inputs and outputs takes in the layout of bytes.h, and that layout by slot.
EXPORT int64_t reluformer_byte_panel_size(int64_t in, int64_t out) {
    return byte_panels(out) * PANEL_OUTPUTS * ((in + GROUP_INPUTS - 1) / GROUP_INPUTS) * GROUP_INPUTS;
}

EXPORT int64_t reluformer_byte_slots_size(int64_t in, int64_t out) {
    return (out + CHUNK_OUTPUTS - 1) / CHUNK_OUTPUTS * CHUNK_OUTPUTS * in;
}

// weight: (out, in); sums: (out). by_slot may be null.
EXPORT void reluformer_pack_bytes(const int8_t* weight, int64_t in, int64_t out, int8_t* bytes, int32_t* sums,
                                  int8_t* by_slot) {
    const int64_t groups = (in + GROUP_INPUTS - 1) / GROUP_INPUTS;
    std::memset(bytes, 0, reluformer_byte_panel_size(in, out));
    if (by_slot != nullptr) std::memset(by_slot, 0, reluformer_byte_slots_size(in, out));
    const int64_t stride = (out + CHUNK_OUTPUTS - 1) / CHUNK_OUTPUTS * CHUNK_OUTPUTS;
    for (int64_t o = 0; o < out; ++o) {
        int32_t sum = 0;
        const int64_t panel = o / PANEL_OUTPUTS, lane = o % PANEL_OUTPUTS;
        const int64_t chunk = o / CHUNK_OUTPUTS, j = o % CHUNK_OUTPUTS / 16, l = o % 16 / 4, k = o % 4;
        for (int64_t i = 0; i < in; ++i) {
            const int8_t byte = weight[o * in + i];
            sum += byte;
            bytes[((panel * groups + i / 4) * PANEL_OUTPUTS + lane) * GROUP_INPUTS + i % 4] = byte;
            if (by_slot != nullptr) by_slot[i * stride + chunk * CHUNK_OUTPUTS + 16 * l + 4 * j + k] = byte;
        }
        sums[o] = 128 * sum;
    }
}

EXPORT int64_t reluformer_model_size() { return sizeof(Model); }

EXPORT int64_t reluformer_sentence_size() { return sizeof(SentenceTask); }

EXPORT Search* reluformer_search(const Model* model, const SearchOptions* options) {
    return new (std::nothrow) Search(*model, *options);
}

EXPORT void reluformer_search_end(Search* search) { delete search; }

// The number of the sentence, or -1 where memory ran out.
EXPORT int64_t reluformer_search_add(Search* search, const SentenceTask* task) {
    try {
        return search->add(*task);
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

EXPORT int64_t reluformer_search_run(Search* search, int64_t positions, int64_t microseconds, int64_t threads) {
    return search->run(positions, microseconds, threads);
}

EXPORT void reluformer_search_drop(Search* search, int64_t number) { search->drop(number); }

// Writes the numbers of at most `room` sentences that finished since the last call; how many they are.
EXPORT int64_t reluformer_search_finished(Search* search, int64_t* numbers, int64_t room) {
    const std::vector<int64_t> taken = search->take_finished(room);
    std::copy(taken.begin(), taken.end(), numbers);
    return static_cast<int64_t>(taken.size());
}

// A hypothesis of a sentence: its tokens and what they read of each sentence of the source.
struct Found {
    int64_t length, spans;
    double score, normalised;
};

namespace {

Found describe(const Sentence& sentence, const Hypothesis& hypothesis, int32_t* tokens, float* reads) {
    if (tokens != nullptr) std::copy(hypothesis.tokens.begin(), hypothesis.tokens.end(), tokens);
    if (reads != nullptr) std::copy(hypothesis.reads.begin(), hypothesis.reads.end(), reads);
    return {static_cast<int64_t>(hypothesis.tokens.size()), sentence.span_count(), hypothesis.score,
            hypothesis.normalised};
}

}  // namespace

// How many hypotheses of a sentence are finished.
EXPORT int64_t reluformer_search_count(Search* search, int64_t number) {
    return static_cast<int64_t>(search->sentence(number)->finished().size());
}

// Writes hypothesis `rank` of a finished sentence, or what is settled of one for a negative rank. Called with null
// for the size, and then with memory for tokens (length) and reads (length, spans). 1 where memory ran out.
EXPORT int64_t reluformer_search_hypothesis(Search* search, int64_t number, int64_t rank, Found* found, int32_t* tokens,
                                            float* reads) {
    const Sentence& sentence = *search->sentence(number);
    try {
        *found = describe(sentence, rank < 0 ? sentence.settled() : sentence.finished()[rank], tokens, reads);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
