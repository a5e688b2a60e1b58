// Beam search over any number of sentences. translation/outline.py says what an outline is, and beam_search.py what
// the search finds.
//
// Sentences wait in a queue. A lane decodes a few of them together, a position at a time; a sentence that is finished
// leaves it and the next one enters. Each lane has a thread, and lanes never wait for each other within a call. What
// is found for a sentence depends on nothing but the sentence.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "decoder.h"
#include "paths.h"

struct SearchOptions {
    int64_t beam, n_best, min_length, stops_at_beam;
    int64_t batch_tokens;  // of sources that are decoded at once, unless a single one has more
    double length_penalty;
};

// What Python hands over for one sentence.
struct SentenceTask {
    const int64_t* source;
    int64_t source_length;
    const int64_t* prefix;
    int64_t prefix_length;
    const int64_t* limits;
    int64_t limit_count;
    int64_t aligned;
    int64_t wants_reads;
};

struct Hypothesis {
    std::vector<int32_t> tokens;  // without begin and end
    std::vector<float> reads;     // (tokens, spans), if they are wanted
    float score;
    double normalised;
};

// The search of one sentence.
class Sentence {
  public:
    Sentence(const Model& model, const SearchOptions& options, const SentenceTask& task);

    // The rows of the source, with memory for the slots of one encoder layer.
    Part source_part();
    // Memory for the slots of the source, which source_slots fills.
    Part slots_of_source();
    // The rows of the next position; at first those of the whole prefix.
    Part next_part();
    // Where the pass writes what may follow the wanted rows of next_part.
    Following* following();
    // Chooses the next beams. false where no translation has a finite probability.
    bool advance();

    int64_t beams() const { return static_cast<int64_t>(scores_.size()); }
    bool done() const { return done_; }
    const std::vector<Hypothesis>& finished() const { return finished_; }
    int64_t span_count() const { return span_count_; }
    size_t source_length() const { return source_.size(); }
    // The tokens with which every hypothesis begins that can still win, and what they read in the best of them.
    Hypothesis settled() const;

  private:
    struct Beam {
        int32_t sentence, within;  // the place in the outline
        int64_t number;            // of its sentence for the embedding
    };
    struct Step {
        std::vector<int32_t> tokens, parents;  // of the beams after it
        std::vector<float> reads;              // (beams before it, spans)
    };
    struct Choice {
        float score;
        int32_t parent, token;
    };

    void follow(Beam& beam, int64_t token, int64_t decoded) const;
    int64_t closing(const Beam& beam) const;  // the only token that may follow, or negative
    bool may_end(const Beam& beam) const;
    bool may_separate(const Beam& beam) const;
    std::vector<Choice> continuations() const;
    void collect(const std::vector<float>& ends, const std::vector<Choice>& chosen);
    bool is_finished(float best) const;
    void extend(const std::vector<Choice>& chosen);
    void forget_slots();
    void grow(int64_t slots);
    Hypothesis trace(size_t steps, int32_t beam) const;
    int64_t layer_floats(int64_t capacity) const { return 2 * capacity * model_.width; }

    const Model& model_;
    const SearchOptions& options_;
    const int64_t lanes_;
    std::vector<int64_t> source_, source_numbers_, prefix_, limits_;
    const bool aligned_;
    std::vector<int32_t> spans_;  // of source slots; empty where nobody asks for reads
    int64_t span_count_ = 0, most_tokens_ = 0;

    std::vector<float> source_slots_, own_slots_, encoder_slots_;
    int64_t source_capacity_, own_capacity_ = 0, used_ = 0, length_ = 0, straight_ = 0;
    std::vector<int64_t> tokens_, numbers_;  // of the rows of the next pass
    std::vector<int32_t> ancestors_, spare_;
    int64_t ancestor_stride_ = 0;
    std::vector<float> reads_;
    std::vector<Following> following_;
    std::vector<float> values_;
    std::vector<int32_t> value_tokens_;

    std::vector<float> scores_;
    std::vector<Beam> beams_;
    std::vector<Step> steps_;
    std::vector<Hypothesis> finished_;
    int64_t ended_ = 0;
    bool done_ = false;
};

enum SearchStatus : int64_t { SEARCH_GOES_ON = 0, SEARCH_DONE = 1, SEARCH_NO_MEMORY = 2, SEARCH_NOT_FINITE = 3 };

class Search {
  public:
    Search(const Model& model, const SearchOptions& options) : model_(model), options_(options) {}

    // Returns the number of the sentence.
    int64_t add(const SentenceTask& task);
    // Decodes at most `positions` positions of each sentence, for at most `microseconds`.
    int64_t run(int64_t positions, int64_t microseconds, int64_t threads);
    // null once it was dropped.
    Sentence* sentence(int64_t number) { return sentences_[number].get(); }
    // Forgets a sentence, finished or not.
    void drop(int64_t number);
    // At most so many of the sentences that have finished since the last call.
    std::vector<int64_t> take_finished(size_t most);

  private:
    struct Lane {
        std::vector<int64_t> active;
    };

    void share(int64_t lanes);
    struct Room {
        size_t sentences, tokens;
    };
    SearchStatus decode_lane(Lane& lane, int64_t positions, std::chrono::steady_clock::time_point end, Room room);
    void enter(Lane& lane, Room room);
    bool position(const std::vector<int64_t>& numbers);

    const Model& model_;
    const SearchOptions options_;
    std::vector<std::unique_ptr<Sentence>> sentences_;
    std::deque<int64_t> waiting_;
    std::vector<int64_t> finished_;
    std::vector<Lane> lanes_;
    std::mutex guard_;  // of waiting_ and finished_
};
