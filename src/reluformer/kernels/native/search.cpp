#include "search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "parallel.h"
#include "workspace.h"

namespace {

constexpr float NEVER = -std::numeric_limits<float>::infinity();
constexpr size_t ROWS_TOGETHER = 64;        // of a pass: more of them would leave the nearest caches
constexpr size_t TOKENS_TOGETHER = 512;    // of sources and prefixes that are read in one pass, unless one is longer
constexpr int64_t FORGOTTEN_AT_ONCE = 64;  // slots without descendants are worth a move when they are that many

int64_t whole_blocks(int64_t slots) { return (slots + 15) / 16 * 16; }  // for any number of lanes

}  // namespace

Sentence::Sentence(const Model& model, const SearchOptions& options, const SentenceTask& task)
    : model_(model), options_(options), lanes_(path_table(model.path).lanes),
      source_(task.source, task.source + task.source_length), prefix_(task.prefix, task.prefix + task.prefix_length),
      limits_(task.limits, task.limits + task.limit_count), aligned_(task.aligned != 0),
      source_capacity_(whole_blocks(task.source_length)) {
    if (task.wants_reads) {
        int32_t span = 0;
        for (int64_t token : source_) {
            if (token == TOKEN_SEPARATOR) ++span;
            const bool word = token != TOKEN_SEPARATOR && token != TOKEN_END && token != TOKEN_PAD;
            spans_.push_back(word ? span : -1);
        }
        span_count_ = span + 1;
    }
    if (model.separator >= 0) {
        int64_t number = 0;
        for (int64_t token : source_) source_numbers_.push_back(number += token == model.separator);
    }
    int64_t begun = 0;
    for (int64_t token : prefix_) begun += aligned_ && token == TOKEN_SEPARATOR;
    for (size_t i = begun; i < limits_.size(); ++i) most_tokens_ += limits_[i] + 1;
    tokens_.push_back(TOKEN_BEGIN);
    tokens_.insert(tokens_.end(), prefix_.begin(), prefix_.end());
    Beam beam{0, 0, 0};
    for (size_t i = 0; i < tokens_.size(); ++i) {
        if (i > 0) follow(beam, tokens_[i], static_cast<int64_t>(i));
        if (model.separator >= 0) numbers_.push_back(beam.number += tokens_[i] == model.separator);
    }
    beams_.push_back(beam);
    scores_.push_back(0.0f);
}

Part Sentence::source_part() {
    encoder_slots_.assign(layer_floats(source_capacity_), 0.0f);
    Part part{};
    part.tokens = source_.data();
    part.numbers = source_numbers_.empty() ? nullptr : source_numbers_.data();
    part.rows = static_cast<int64_t>(source_.size());
    part.consecutive = 1;
    part.own = encoder_slots_.data();
    part.own_capacity = source_capacity_;
    return part;
}

Part Sentence::slots_of_source() {
    source_slots_.assign(layer_floats(source_capacity_) * model_.decoder_layers, 0.0f);
    std::vector<float>().swap(encoder_slots_);
    Part part{};
    part.rows = static_cast<int64_t>(source_.size());
    part.source = source_slots_.data();
    part.source_step = layer_floats(source_capacity_);
    part.source_capacity = source_capacity_;
    return part;
}

Part Sentence::next_part() {
    const int64_t rows = static_cast<int64_t>(tokens_.size()), beams = this->beams();
    const bool begins = length_ == 0;
    if (used_ + rows > own_capacity_) grow(used_ + rows + (begins ? 24 * std::min<int64_t>(options_.beam, 8) : 0));
    Part part{};
    part.tokens = tokens_.data();
    part.numbers = numbers_.empty() ? nullptr : numbers_.data();
    part.rows = rows;
    part.position = length_;
    part.consecutive = begins;
    part.first_wanted = begins ? rows - 1 : 0;
    part.own = own_slots_.data();
    part.own_step = layer_floats(own_capacity_);
    part.own_capacity = own_capacity_;
    part.used = used_;
    if (!begins) {
        for (int64_t b = 0; b < beams; ++b)
            ancestors_[b * ancestor_stride_ + length_] = static_cast<int32_t>(used_ + b);
        if (beams == 1 && straight_ == length_ && used_ == length_) ++straight_;
        const bool straight = beams == 1 && straight_ > length_;
        part.ancestors = straight ? nullptr : ancestors_.data();
        part.ancestor_stride = ancestor_stride_;
        part.straight = straight_;
    }
    part.source = source_slots_.data();
    part.source_step = layer_floats(source_capacity_);
    part.source_capacity = source_capacity_;
    part.source_count = static_cast<int64_t>(source_.size());
    if (span_count_ > 0) {
        reads_.assign(rows * span_count_, 0.0f);
        part.spans = spans_.data();
        part.span_count = span_count_;
        part.reads = reads_.data();
    }
    return part;
}

Following* Sentence::following() {
    const int64_t beams = this->beams(), k = options_.beam;
    following_.resize(beams);
    values_.resize(beams * k);
    value_tokens_.resize(beams * k);
    for (int64_t b = 0; b < beams; ++b)
        following_[b] = {NEVER, NEVER, may_separate(beams_[b]), values_.data() + b * k, value_tokens_.data() + b * k};
    return following_.data();
}

void Sentence::follow(Beam& beam, int64_t token, int64_t decoded) const {
    const bool ends = aligned_ && token == TOKEN_SEPARATOR, given = decoded <= static_cast<int64_t>(prefix_.size());
    const int32_t last = static_cast<int32_t>(limits_.size()) - 1;
    if (ends && beam.sentence < last) ++beam.sentence;
    beam.within = ends || (!aligned_ && given) ? 0 : beam.within + 1;
}

int64_t Sentence::closing(const Beam& beam) const {
    if (beam.within < limits_[beam.sentence]) return -1;
    return beam.sentence + 1 == static_cast<int64_t>(limits_.size()) ? TOKEN_END : TOKEN_SEPARATOR;
}

bool Sentence::may_end(const Beam& beam) const {
    if (beam.sentence + 1 != static_cast<int64_t>(limits_.size()) || (aligned_ && beam.within == 0)) return false;
    const int64_t written = static_cast<int64_t>(steps_.size());
    return written >= options_.min_length || closing(beam) == TOKEN_END;
}

bool Sentence::may_separate(const Beam& beam) const {
    if (!aligned_) return true;
    return beam.sentence + 1 != static_cast<int64_t>(limits_.size()) && beam.within > 0;
}

std::vector<Sentence::Choice> Sentence::continuations() const {
    std::vector<Choice> all;
    for (int32_t b = 0; b < static_cast<int32_t>(beams_.size()); ++b) {
        const Following& following = following_[b];
        const int64_t only = closing(beams_[b]);
        if (only == TOKEN_END) continue;
        if (only == TOKEN_SEPARATOR) {
            all.push_back({scores_[b] + following.separator, b, static_cast<int32_t>(only)});
            continue;
        }
        for (int64_t i = 0; i < options_.beam && following.tokens[i] >= 0; ++i)
            all.push_back({scores_[b] + following.values[i], b, following.tokens[i]});
    }
    const auto impossible = [](const Choice& choice) { return !(choice.score > NEVER); };
    all.erase(std::remove_if(all.begin(), all.end(), impossible), all.end());
    std::stable_sort(all.begin(), all.end(), [](const Choice& a, const Choice& b) { return a.score > b.score; });
    if (static_cast<int64_t>(all.size()) > options_.beam) all.resize(options_.beam);
    return all;
}

bool Sentence::advance() {
    const int64_t beams = this->beams();
    if (length_ == 0) {  // the prefix was read: its slots are as straight as can be
        length_ = used_ = straight_ = static_cast<int64_t>(tokens_.size());
        if (span_count_ > 0) reads_.erase(reads_.begin(), reads_.end() - span_count_);
    } else {
        used_ += beams;
        ++length_;
    }
    std::vector<float> ends(beams, NEVER);
    for (int64_t b = 0; b < beams; ++b)
        if (may_end(beams_[b])) ends[b] = scores_[b] + following_[b].end;
    std::vector<Choice> chosen = continuations();
    steps_.emplace_back();
    steps_.back().reads = reads_;
    collect(ends, chosen);
    if (chosen.empty()) {
        done_ = true;
        return !finished_.empty();
    }
    done_ = is_finished(chosen[0].score);
    if (!done_) extend(chosen);
    return true;
}

void Sentence::collect(const std::vector<float>& ends, const std::vector<Choice>& chosen) {
    for (size_t b = 0; b < ends.size(); ++b) {
        if (!(ends[b] > NEVER)) continue;
        int64_t better = 0;
        for (const Choice& choice : chosen) better += choice.score > ends[b];
        for (float end : ends) better += end > ends[b];
        if (better >= options_.beam) continue;
        Hypothesis found = trace(steps_.size() - 1, static_cast<int32_t>(b));
        const double length = static_cast<double>(found.tokens.size() - prefix_.size() + 1);
        found.score = ends[b];
        found.normalised = ends[b] / std::pow(length, options_.length_penalty);
        ++ended_;
        const auto place = std::find_if(finished_.begin(), finished_.end(), [&](const Hypothesis& other) {
            return other.normalised < found.normalised;
        });
        finished_.insert(place, std::move(found));
        if (static_cast<int64_t>(finished_.size()) > options_.n_best) finished_.pop_back();
    }
}

bool Sentence::is_finished(float best) const {
    if (static_cast<int64_t>(finished_.size()) < options_.n_best) return false;
    if (options_.stops_at_beam) return ended_ >= options_.beam;
    return best / std::pow(static_cast<double>(most_tokens_), options_.length_penalty) <= finished_.back().normalised;
}

void Sentence::extend(const std::vector<Choice>& chosen) {
    const size_t beams = chosen.size();
    std::vector<Beam> places;
    std::vector<float> scores;
    Step& step = steps_.back();
    tokens_.clear();
    numbers_.clear();
    for (const Choice& choice : chosen) {
        Beam place = beams_[choice.parent];
        follow(place, choice.token, length_);
        if (model_.separator >= 0) numbers_.push_back(place.number += choice.token == model_.separator);
        places.push_back(place);
        scores.push_back(choice.score);
        tokens_.push_back(choice.token);
        step.tokens.push_back(choice.token);
        step.parents.push_back(choice.parent);
    }
    const bool first = steps_.size() == 1;
    const int64_t old_stride = ancestor_stride_;
    if (first || length_ >= ancestor_stride_) ancestor_stride_ = 2 * length_ + 32;
    spare_.assign(beams * ancestor_stride_, 0);
    for (size_t b = 0; b < beams; ++b) {
        int32_t* own = spare_.data() + b * ancestor_stride_;
        if (first) {
            for (int64_t t = 0; t < length_; ++t) own[t] = static_cast<int32_t>(t);
        } else {
            std::memcpy(own, ancestors_.data() + chosen[b].parent * old_stride, sizeof(int32_t) * length_);
        }
    }
    ancestors_.swap(spare_);
    beams_.swap(places);
    scores_.swap(scores);
    if (used_ - length_ >= FORGOTTEN_AT_ONCE) forget_slots();
}

// Slots that no beam reads leave, and the others move together, in their order.
void Sentence::forget_slots() {
    const int64_t beams = this->beams();
    std::vector<int32_t> moved(used_ - straight_, 0);
    for (int64_t b = 0; b < beams; ++b)
        for (int64_t t = straight_; t < length_; ++t) moved[ancestors_[b * ancestor_stride_ + t] - straight_] = 1;
    int64_t kept = straight_;
    const int64_t width = model_.width / model_.heads, layers = model_.decoder_layers, heads = model_.heads;
    for (int64_t slot = straight_; slot < used_; ++slot) {
        if (!moved[slot - straight_]) continue;
        moved[slot - straight_] = static_cast<int32_t>(kept);
        for (int64_t part = 0; slot != kept && part < layers * 2 * heads; ++part) {
            float* slots = own_slots_.data() + part * own_capacity_ * width;
            if (part / heads % 2 == 0) {
                float* from = slots + slot / lanes_ * lanes_ * width + slot % lanes_;
                float* to = slots + kept / lanes_ * lanes_ * width + kept % lanes_;
                for (int64_t c = 0; c < width; ++c) to[c * lanes_] = from[c * lanes_];
            } else {
                std::memcpy(slots + kept * width, slots + slot * width, sizeof(float) * width);
            }
        }
        ++kept;
    }
    for (int64_t b = 0; b < beams; ++b)
        for (int64_t t = straight_; t < length_; ++t) {
            int32_t& slot = ancestors_[b * ancestor_stride_ + t];
            slot = moved[slot - straight_];
        }
    used_ = kept;
    for (bool same = true; same && straight_ < length_; straight_ += same)
        for (int64_t b = 0; b < beams; ++b) same &= ancestors_[b * ancestor_stride_ + straight_] == straight_;
}

void Sentence::grow(int64_t slots) {
    const int64_t capacity = whole_blocks(std::max(slots, own_capacity_ + own_capacity_ / 2));
    const int64_t parts = model_.decoder_layers * 2 * model_.heads, width = model_.width / model_.heads;
    std::vector<float> larger(layer_floats(capacity) * model_.decoder_layers, 0.0f);
    for (int64_t part = 0; part < parts; ++part)
        std::copy_n(own_slots_.data() + part * own_capacity_ * width, own_capacity_ * width,
                    larger.data() + part * capacity * width);
    own_slots_.swap(larger);
    own_capacity_ = capacity;
}

Hypothesis Sentence::trace(size_t steps, int32_t beam) const {
    const size_t given = prefix_.size(), u = static_cast<size_t>(span_count_);
    Hypothesis found{};
    found.tokens.assign(given + steps, 0);
    found.reads.assign(found.tokens.size() * u, 0.0f);
    for (size_t i = 0; i < given; ++i) found.tokens[i] = static_cast<int32_t>(prefix_[i]);
    for (size_t step = steps; step-- > 0;) {
        const int32_t parent = steps_[step].parents[beam];
        found.tokens[given + step] = steps_[step].tokens[beam];
        if (u > 0) {
            const float* shares = steps_[step].reads.data() + parent * u;
            float sum = 0;
            for (size_t i = 0; i < u; ++i) sum += shares[i];
            for (size_t i = 0; sum > 0 && i < u; ++i) found.reads[(given + step) * u + i] = shares[i] / sum;
        }
        beam = parent;
    }
    return found;
}

Hypothesis Sentence::settled() const {
    if (done_) return finished_.front();
    if (steps_.empty()) return trace(0, 0);
    Hypothesis common = trace(steps_.size(), 0);
    size_t length = common.tokens.size();
    const auto shorten = [&](const Hypothesis& other) {
        length = std::min(length, other.tokens.size());
        for (size_t i = 0; i < length; ++i)
            if (other.tokens[i] != common.tokens[i]) length = i;
    };
    for (int32_t b = 1; b < static_cast<int32_t>(beams_.size()); ++b) shorten(trace(steps_.size(), b));
    for (const Hypothesis& other : finished_) shorten(other);
    common.tokens.resize(length);
    common.reads.resize(length * span_count_);
    return common;
}

int64_t Search::add(const SentenceTask& task) {
    const int64_t number = static_cast<int64_t>(sentences_.size());
    sentences_.push_back(std::make_unique<Sentence>(model_, options_, task));
    waiting_.push_back(number);
    return number;
}

void Search::drop(int64_t number) {
    sentences_[number].reset();
    const auto forget = [&](auto& numbers) {
        numbers.erase(std::remove(numbers.begin(), numbers.end(), number), numbers.end());
    };
    forget(waiting_);
    forget(finished_);
    for (Lane& lane : lanes_) forget(lane.active);
}

std::vector<int64_t> Search::take_finished(size_t most) {
    const auto end = finished_.begin() + std::min(most, finished_.size());
    std::vector<int64_t> taken(finished_.begin(), end);
    finished_.erase(finished_.begin(), end);
    return taken;
}

// Deals the sentences in work to so many lanes, as evenly as can be.
void Search::share(int64_t lanes) {
    std::vector<int64_t> active;
    for (const Lane& lane : lanes_) active.insert(active.end(), lane.active.begin(), lane.active.end());
    size_t most = 0, least = active.size();
    for (const Lane& lane : lanes_) {
        most = std::max(most, lane.active.size());
        least = std::min(least, lane.active.size());
    }
    if (static_cast<int64_t>(lanes_.size()) == lanes && most - least < 2) return;
    lanes_.assign(lanes, {});
    for (size_t i = 0; i < active.size(); ++i) lanes_[i % lanes].active.push_back(active[i]);
}

int64_t Search::run(int64_t positions, int64_t microseconds, int64_t threads) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
    size_t active = 0;
    for (const Lane& lane : lanes_) active += lane.active.size();
    const size_t all = active + waiting_.size();
    if (all == 0) return SEARCH_DONE;
    const int64_t lanes = std::max<int64_t>(1, std::min<int64_t>(threads, all));
    std::atomic<int64_t> worst{SEARCH_GOES_ON};
    try {
        share(lanes);
        const size_t even = (all + lanes - 1) / lanes, most = std::max<size_t>(1, ROWS_TOGETHER / options_.beam);
        const size_t tokens = static_cast<size_t>(options_.batch_tokens / lanes);
        for_each_task(launcher(), lanes, lanes, [&](int64_t lane, int64_t) {
            SearchStatus status;
            try {
                status = decode_lane(lanes_[lane], positions, end, {std::min(even, most), tokens});
            } catch (const std::bad_alloc&) {
                status = SEARCH_NO_MEMORY;
            }
            if (status > worst) worst = status;
        });
    } catch (const std::bad_alloc&) {
        return SEARCH_NO_MEMORY;
    }
    if (worst != SEARCH_GOES_ON) return worst;
    active = 0;
    for (const Lane& lane : lanes_) active += lane.active.size();
    return active + waiting_.size() == 0 ? SEARCH_DONE : SEARCH_GOES_ON;
}

SearchStatus Search::decode_lane(Lane& lane, int64_t positions, std::chrono::steady_clock::time_point end, Room room) {
    for (int64_t p = 0; p < positions; ++p) {
        enter(lane, room);
        if (lane.active.empty()) return SEARCH_GOES_ON;
        if (!position(lane.active)) return SEARCH_NOT_FINITE;
        std::vector<int64_t> left;
        for (int64_t number : lane.active) {
            if (!sentences_[number]->done()) {
                left.push_back(number);
                continue;
            }
            const std::lock_guard<std::mutex> lock(guard_);
            finished_.push_back(number);
        }
        lane.active.swap(left);
        if (std::chrono::steady_clock::now() >= end) break;
    }
    return SEARCH_GOES_ON;
}

// Takes sentences from the queue and reads their sources.
void Search::enter(Lane& lane, Room room) {
    size_t held = 0;
    for (int64_t number : lane.active) held += sentences_[number]->source_length();
    while (lane.active.size() < room.sentences) {
        std::vector<int64_t> entering;
        std::vector<Part> parts;
        int64_t rows = 0, longest = 0;
        {
            const std::lock_guard<std::mutex> lock(guard_);
            while (!waiting_.empty() && lane.active.size() + entering.size() < room.sentences) {
                Sentence& sentence = *sentences_[waiting_.front()];
                const size_t length = sentence.source_length();
                const bool alone = lane.active.empty() && entering.empty();
                if (!alone && held + length > room.tokens) break;
                if (!entering.empty() && rows + length > TOKENS_TOGETHER) break;
                const Part part = sentence.source_part();
                rows += part.rows;
                held += length;
                longest = std::max(longest, part.rows);
                parts.push_back(part);
                entering.push_back(waiting_.front());
                waiting_.pop_front();
            }
        }
        if (entering.empty()) return;
        const PathTable& path = path_table(model_.path);
        std::vector<float> states(rows * model_.width);
        {
            const Workspace memory(1, path.pass_floats(model_, rows, longest, 0));
            const float* encoded = path.encode(model_, parts.data(), parts.size(), longest, memory.of(0));
            std::copy_n(encoded, states.size(), states.data());
            const float* from = states.data();
            for (int64_t number : entering) {
                const Part part = sentences_[number]->slots_of_source();
                path.source_slots(model_, part, from, memory.of(0));
                from += part.rows * model_.width;
            }
        }
        lane.active.insert(lane.active.end(), entering.begin(), entering.end());
    }
}

bool Search::position(const std::vector<int64_t>& numbers) {
    const PathTable& path = path_table(model_.path);
    std::vector<Part> parts;
    std::vector<Following> following;
    int64_t rows = 0, most_slots = 1, spans = 0;
    for (int64_t number : numbers) {
        Sentence& sentence = *sentences_[number];
        const Part part = sentence.next_part();
        const Following* own = sentence.following();
        following.insert(following.end(), own, own + part.rows - part.first_wanted);
        rows += part.rows;
        most_slots = std::max({most_slots, part.used + part.rows, part.source_count});
        spans = std::max(spans, part.span_count);
        parts.push_back(part);
    }
    const Workspace memory(1, path.pass_floats(model_, rows, most_slots, spans));
    path.decode(model_, parts.data(), parts.size(), most_slots, spans, following.data(), options_.beam, memory.of(0));
    const Following* own = following.data();
    bool finite = true;
    for (size_t i = 0; i < numbers.size(); ++i) {
        Sentence& sentence = *sentences_[numbers[i]];
        std::copy_n(own, parts[i].rows - parts[i].first_wanted, sentence.following());
        own += parts[i].rows - parts[i].first_wanted;
        finite &= sentence.advance();
    }
    return finite;
}
