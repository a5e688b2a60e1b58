// The encoder and a few positions of branching beams on every path, and compares all log-probabilities with plain loops
// in double precision, in float32 and in int8. Then whole searches, with one thread and with two. `make sanitize`
// builds it; all memory is exactly as large as it must be.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "bytes.h"
#include "decoder.h"
#include "paths.h"
#include "problem.h"
#include "search.h"
#include "shared.h"

extern "C" {
int64_t reluformer_best_path();
void reluformer_set_launch(void (*)(void (*)(void*), void*, unsigned, unsigned));
void reluformer_allow_vnni(int64_t);
int64_t reluformer_panel_floats(int64_t, int64_t, int64_t);
void reluformer_pack_linear(int64_t, float*, const float*, int64_t, int64_t);
void reluformer_quantise(const float*, int64_t, int64_t, int8_t*, float*);
int64_t reluformer_byte_panel_size(int64_t, int64_t);
int64_t reluformer_byte_slots_size(int64_t, int64_t);
void reluformer_pack_bytes(const int8_t*, int64_t, int64_t, int8_t*, int32_t*, int8_t*);
}

namespace {

using Row = std::vector<double>;

struct Shape {
    int64_t width, heads, slots, vocabulary, layers;
    bool pre_norm, rotary, offsets, int8;
    ReadRule own, cross;
    bool silent = false;  // no slot of a token weighs, few learned ones fire, and the values of the others are no numbers
};

struct Map {
    std::vector<float> weight, bias;
    std::unique_ptr<float[]> panels;
    int64_t in, out;

    std::vector<int8_t> bytes, by_slot, rows;
    std::vector<float> scales;
    std::vector<int32_t> sums;
    bool rounds = false, centred = true;

    // signed_inputs: whether inputs may be negative; others are those of learned slots.
    Linear pack(int64_t path, int64_t inputs, int64_t outputs, bool biased, bool int8, bool signed_inputs = true) {
        in = inputs, out = outputs;
        const float even = std::sqrt(3.0f / in);  // y as large as x, so that rounding does not grow from layer to layer
        for (int64_t i = 0; i < in * out; ++i) weight.push_back(even * draw());
        for (int64_t i = 0; biased && i < out; ++i) bias.push_back(draw());
        const float* own_bias = biased ? bias.data() : nullptr;
        if (!int8) {
            panels.reset(new float[reluformer_panel_floats(path, in, out)]);
            reluformer_pack_linear(path, panels.get(), weight.data(), in, out);
            return {panels.get(), own_bias, in, out, nullptr, nullptr, nullptr, nullptr};
        }
        rounds = true, centred = signed_inputs;
        rows.resize(in * out), scales.resize(out), sums.resize(out);
        reluformer_quantise(weight.data(), out, in, rows.data(), scales.data());
        for (int64_t i = 0; i < in * out; ++i) weight[i] = rows[i] * scales[i / in];
        bytes.resize(reluformer_byte_panel_size(in, out)), by_slot.resize(reluformer_byte_slots_size(in, out));
        reluformer_pack_bytes(rows.data(), in, out, bytes.data(), sums.data(), by_slot.data());
        return {nullptr, own_bias, in, out, bytes.data(), scales.data(), sums.data(), signed_inputs ? nullptr : by_slot.data()};
    }

    // A row as it goes into a product.
    Row rounded(Row x) const {
        double most = 0;
        for (double value : x) most = std::fmax(most, std::fabs(value));
        const double step = most / (centred ? 127 : 255);
        for (double& value : x) value = rounds && most > 0 ? step * std::floor(value / step + 0.5) : value;
        return x;
    }

    Row operator()(const Row& given) const {
        const Row x = rounded(given);
        Row y(out);
        for (int64_t o = 0; o < out; ++o) {
            y[o] = bias.empty() ? 0.0 : bias[o];
            for (int64_t i = 0; i < in; ++i) y[o] += x[i] * weight[o * in + i];
        }
        return y;
    }
};

struct Scaling {
    std::vector<float> weight, bias;

    Norm make(int64_t width) {
        for (int64_t i = 0; i < width; ++i) weight.push_back(1.0f + 0.3f * draw()), bias.push_back(draw());
        return {weight.data(), bias.data(), 1e-5};
    }

    Row operator()(const Row& x) const {
        double mean = 0, square = 0;
        for (double value : x) mean += value / x.size();
        for (double value : x) square += (value - mean) * (value - mean) / x.size();
        Row y(x.size());
        for (size_t i = 0; i < x.size(); ++i) y[i] = (x[i] - mean) / std::sqrt(square + 1e-5) * weight[i] + bias[i];
        return y;
    }
};

struct Slot {
    Row key, value;
};

// From the scores of a row to its weights.
void weigh(Row& scores, const ReadRule& rule, double offset) {
    const double scale = rule.factor * std::pow(scores.size(), -rule.exponent);
    double mean = 0, variance = 0, sum = 0;
    for (double s : scores) mean += s / scores.size();
    for (double s : scores) variance += (s - mean) * (s - mean) / scores.size();
    const double most = *std::max_element(scores.begin(), scores.end());
    const double log_n = std::log(scores.size()), threshold = rule.threshold + rule.growth * log_n;
    const double deviations = rule.spread + rule.chance * std::sqrt(2 * log_n);
    double level = mean + threshold + deviations * std::sqrt(variance + rule.floor);
    if (rule.cap >= 0) level = std::fmin(level, most - rule.cap);
    for (double& s : scores) {
        if (rule.kind == READ_RELU) s = scale * std::fmax(s + offset, 0);
        if (rule.kind == READ_SOFTMAX) s = std::exp(s - most);
        if (rule.kind == READ_RELU_EXP) s = std::fmax(std::expm1(std::fmin(s - level, rule.highest)), 0);
        sum += s;
    }
    for (double& s : scores) s /= rule.kind == READ_RELU ? 1 : rule.delta + sum;
}

Row read(const Row& q, const std::vector<Slot>& slots, int64_t heads, const ReadRule& rule,
         const std::vector<float>& offsets) {
    const int64_t width = q.size() / heads;
    Row out(q.size(), 0.0);
    for (int64_t h = 0; h < heads; ++h) {
        Row weights;
        for (const Slot& slot : slots) {
            double score = 0;
            for (int64_t c = h * width; c < (h + 1) * width; ++c) score += q[c] * slot.key[c];
            weights.push_back(score);
        }
        weigh(weights, rule, offsets.empty() ? 0 : offsets[h]);
        for (size_t j = 0; j < slots.size(); ++j)
            for (int64_t c = h * width; c < (h + 1) * width; ++c) out[c] += weights[j] * slots[j].value[c];
    }
    return out;
}

struct Maps {
    Map qkv, own, query, key_value, cross, keys, values;
    Scaling own_norm, cross_norm, ffn_norm;
    std::vector<float> own_offset, cross_offset;  // empty where there is none

    Layer pack(const Shape& s, int64_t path) {
        for (std::vector<float>* offsets : {&own_offset, &cross_offset})
            for (int64_t h = 0; s.offsets && h < s.heads; ++h) offsets->push_back(draw());
        const Layer layer = {own_norm.make(s.width), cross_norm.make(s.width), ffn_norm.make(s.width),
                qkv.pack(path, s.width, 3 * s.width, true, s.int8), own.pack(path, s.width, s.width, true, s.int8),
                query.pack(path, s.width, s.width, true, s.int8), key_value.pack(path, s.width, 2 * s.width, true, s.int8),
                cross.pack(path, s.width, s.width, true, s.int8), keys.pack(path, s.width, s.slots, true, s.int8),
                values.pack(path, s.slots, s.width, false, s.int8, false),
                s.offsets ? own_offset.data() : nullptr, s.offsets ? cross_offset.data() : nullptr};
        for (int64_t slot = 0; s.silent && slot < s.slots; ++slot) {
            if (slot % 4 == 0) continue;
            keys.bias[slot] = -1000;
            const int64_t width = 2 * path_table(path).lanes, panels = (s.width + width - 1) / width;
            for (int64_t p = 0; !s.int8 && p < panels; ++p)
                std::fill_n(values.panels.get() + (p * s.slots + slot) * width, width, NAN);
        }
        return layer;
    }
};

constexpr int64_t POSITIONS = 80;

// A model with random weights, and what plain loops make of it.
struct Drawn {
    const Shape s;
    const int64_t head;
    std::vector<Maps> encoder, decoder;
    std::vector<Layer> encoder_layers, decoder_layers;
    Map output;
    Scaling encoder_norm, decoder_norm;
    std::vector<float> embedding, sinusoids, cosines, sines, embedding_scales;
    std::vector<int8_t> embedding_bytes;
    Model model{};

    Drawn(const Shape& shape, int64_t path)
        : s(shape), head(shape.width / shape.heads), encoder(shape.layers), decoder(shape.layers),
          embedding(shape.vocabulary * shape.width), sinusoids(POSITIONS * shape.width), cosines(POSITIONS * (head / 2)),
          sines(POSITIONS * (head / 2)), embedding_scales(shape.vocabulary), embedding_bytes(embedding.size()) {
        for (Maps& maps : encoder) encoder_layers.push_back(maps.pack(s, path));
        for (Maps& maps : decoder) decoder_layers.push_back(maps.pack(s, path));
        for (std::vector<float>* numbers : {&embedding, &sinusoids, &cosines, &sines})
            for (float& number : *numbers) number = draw();
        Embedding table{embedding.data(), nullptr, nullptr};
        if (s.int8) {
            reluformer_quantise(embedding.data(), s.vocabulary, s.width, embedding_bytes.data(), embedding_scales.data());
            for (size_t i = 0; i < embedding.size(); ++i) embedding[i] = embedding_bytes[i] * embedding_scales[i / s.width];
            table = {nullptr, embedding_bytes.data(), embedding_scales.data()};
        }
        model.width = s.width, model.heads = s.heads, model.slots = s.slots, model.vocabulary = s.vocabulary;
        model.encoder_layers = model.decoder_layers = s.layers;
        model.pre_norm = s.pre_norm, model.path = path;
        model.separator = s.offsets ? 5 : -1, model.adds_positions = !s.rotary;
        model.encoder_rule = s.cross, model.own_rule = s.own, model.cross_rule = s.cross;
        model.embedding_scale = 1.5;
        model.source_embedding = model.target_embedding = table;
        model.encoder = encoder_layers.data(), model.decoder = decoder_layers.data();
        if (s.pre_norm) model.encoder_norm = encoder_norm.make(s.width), model.decoder_norm = decoder_norm.make(s.width);
        model.output = output.pack(path, s.width, s.vocabulary, false, s.int8);
        model.positions = POSITIONS;
        model.sinusoids = sinusoids.data();
        if (s.rotary) model.cosines = cosines.data(), model.sines = sines.data();
    }

    Row embed(int64_t token, int64_t position, int64_t number) const {
        Row x(s.width);
        for (int64_t c = 0; c < s.width; ++c) {
            x[c] = 1.5 * embedding[token * s.width + c];
            if (!s.rotary) x[c] += sinusoids[position * s.width + c];
            if (model.separator >= 0) x[c] += sinusoids[number * s.width + c];
        }
        return x;
    }

    template <class Add>
    void sublayer(Row& x, const Scaling& scaling, const Add& layer) const {
        const Row y = layer(s.pre_norm ? scaling(x) : x);
        for (int64_t c = 0; c < s.width; ++c) x[c] += y[c];
        if (!s.pre_norm) x = scaling(x);
    }

    Row fire(const Maps& m, const Row& in) const {
        Row fired = m.keys(in);
        for (double& value : fired) value = std::fmax(value, 0);
        return m.values(fired);
    }

    // Query and slot of a row.
    std::pair<Row, Slot> own_slot(const Maps& m, const Row& in, int64_t position) const {
        const Row wide = m.qkv(in);
        Row q(wide.begin(), wide.begin() + s.width), key(wide.begin() + s.width, wide.end() - s.width);
        if (s.rotary) turn(q, position), turn(key, position);
        return {q, {key, Row(wide.end() - s.width, wide.end())}};
    }

    void turn(Row& x, int64_t position) const {
        const int64_t half = head / 2;
        for (int64_t h = 0; h < s.heads; ++h)
            for (int64_t c = h * head; c < h * head + half; ++c) {
                const int64_t at = position * half + c - h * head;
                const double a = x[c], b = x[c + half], co = cosines[at], si = sines[at];
                x[c] = a * co - b * si, x[c + half] = a * si + b * co;
            }
    }

    // The slots that each decoder layer reads of a source.
    std::vector<std::vector<Slot>> encode(const std::vector<int64_t>& tokens) const {
        std::vector<Row> rows;
        int64_t number = 0;
        for (size_t i = 0; i < tokens.size(); ++i) rows.push_back(embed(tokens[i], i, number += tokens[i] == model.separator));
        for (const Maps& m : encoder) {
            std::vector<Slot> slots;
            std::vector<Row> queries;
            for (size_t i = 0; i < rows.size(); ++i) {
                auto [q, slot] = own_slot(m, s.pre_norm ? m.own_norm(rows[i]) : rows[i], i);
                queries.push_back(q), slots.push_back(slot);
            }
            for (size_t i = 0; i < rows.size(); ++i) {
                sublayer(rows[i], m.own_norm, [&](const Row&) {
                    return m.own(read(queries[i], slots, s.heads, model.encoder_rule, m.own_offset));
                });
                sublayer(rows[i], m.ffn_norm, [&](const Row& in) { return fire(m, in); });
            }
        }
        std::vector<std::vector<Slot>> found;
        for (const Maps& m : decoder) {
            found.emplace_back();
            for (const Row& row : rows) {
                const Row wide = m.key_value(s.pre_norm ? encoder_norm(row) : row);
                found.back().push_back({Row(wide.begin(), wide.begin() + s.width), Row(wide.begin() + s.width, wide.end())});
            }
        }
        return found;
    }

    // The log-probabilities behind a token; the slots of `history` grow.
    Row step(int64_t token, int64_t position, int64_t number, std::vector<std::vector<Slot>>& history,
             const std::vector<std::vector<Slot>>& source) const {
        Row x = embed(token, position, number);
        for (size_t layer = 0; layer < decoder.size(); ++layer) {
            const Maps& m = decoder[layer];
            sublayer(x, m.own_norm, [&](const Row& in) {
                auto [q, slot] = own_slot(m, in, position);
                history[layer].push_back(slot);
                return m.own(read(q, history[layer], s.heads, s.own, m.own_offset));
            });
            sublayer(x, m.cross_norm, [&](const Row& in) {
                return m.cross(read(m.query(in), source[layer], s.heads, s.cross, m.cross_offset));
            });
            sublayer(x, m.ffn_norm, [&](const Row& in) { return fire(m, in); });
        }
        Row logits = output(s.pre_norm ? decoder_norm(x) : x);
        double most = *std::max_element(logits.begin(), logits.end()), sum = 0;
        for (double logit : logits) sum += std::exp(logit - most);
        for (double& logit : logits) logit -= most + std::log(sum);
        return logits;
    }
};

double worst = 0, worst_int8 = 0;

int64_t random_below(int64_t count) { return std::abs(static_cast<int64_t>(draw() * 100000)) % count; }

// Rows of a part, with memory for what follows them.
struct Followers {
    int64_t k;
    std::vector<float> values;
    std::vector<int32_t> tokens;
    std::vector<Following> rows;

    Followers(int64_t count, int64_t k) : k(k), values(count * k), tokens(count * k) {
        for (int64_t r = 0; r < count; ++r) rows.push_back({0, 0, 1, values.data() + r * k, tokens.data() + r * k});
    }
};

void compare(const Shape& s, const Following& found, const Row& expected, int64_t k) {
    double& most = s.int8 ? worst_int8 : worst;
    double scale = 1;
    for (double value : expected) scale = std::fmax(scale, std::fabs(value));
    const auto check = [&](double value, int64_t token) {
        const double error = std::fabs(value - expected[token]) / scale;
        most = std::isnan(error) ? INFINITY : std::fmax(most, error);
    };
    check(found.end, TOKEN_END);
    if (s.vocabulary > TOKEN_SEPARATOR) check(found.separator, TOKEN_SEPARATOR);
    std::vector<int64_t> seen;
    for (int64_t i = 0; i < k && found.tokens[i] >= 0; ++i) {
        check(found.values[i], found.tokens[i]);
        seen.push_back(found.tokens[i]);
        if (i > 0 && found.values[i] > found.values[i - 1]) std::exit(1);
    }
    std::sort(seen.begin(), seen.end());
    if (std::unique(seen.begin(), seen.end()) != seen.end()) std::exit(1);
    if (static_cast<int64_t>(seen.size()) != std::min(k, s.vocabulary - 3)) std::exit(1);
    // single precision, with weights of ReLU that are in the tens; int8 may round a number to its other neighbour
    if (!(most <= (s.int8 ? 0.03 : 1e-4))) {
        std::printf("log-probabilities differ by %g: width%ld heads%ld rules%ld,%ld int8%d\n", most, long(s.width),
                    long(s.heads), long(s.own.kind), long(s.cross.kind), int(s.int8));
        std::exit(1);
    }
}

void check(const Shape& s, int64_t path) {
    constexpr int64_t capacity = 48, sources = 16, beams_at[] = {4, 3, 7, 6, 5};
    const Drawn drawn(s, path);
    const PathTable& table = path_table(path);
    const int64_t step = 2 * capacity * s.width, source_step = 2 * sources * s.width, k = s.vocabulary;
    std::vector<std::vector<int64_t>> tokens = {{4, 5, 6, 3, 2}, {7}, {8, 5, 2}}, numbers(3);
    for (auto& row : tokens)
        for (int64_t& token : row) token %= s.vocabulary;
    std::vector<std::vector<float>> own(3), source(3), encoder(3);
    std::vector<std::vector<std::vector<Slot>>> source_slots;
    std::vector<Part> parts;
    int64_t rows = 0;
    for (int64_t b = 0; b < 3; ++b) {
        own[b].assign(step * s.layers, NAN), source[b].assign(source_step * s.layers, NAN), encoder[b].assign(source_step, NAN);
        int64_t number = 0;
        for (int64_t token : tokens[b]) numbers[b].push_back(number += token == drawn.model.separator);
        source_slots.push_back(drawn.encode(tokens[b]));
        Part part{};
        part.tokens = tokens[b].data(), part.rows = tokens[b].size(), part.consecutive = 1;
        part.numbers = drawn.model.separator < 0 ? nullptr : numbers[b].data();
        part.own = encoder[b].data(), part.own_capacity = sources;
        parts.push_back(part);
        rows += part.rows;
    }
    std::vector<float> scratch(table.pass_floats(drawn.model, rows, 5, 0));
    const float* encoded = table.encode(drawn.model, parts.data(), 3, 5, scratch.data());
    std::vector<float> states(encoded, encoded + rows * s.width);
    const float* from = states.data();
    for (int64_t b = 0; b < 3; ++b) {
        Part part{};
        part.rows = tokens[b].size(), part.source = source[b].data(), part.source_step = source_step;
        part.source_capacity = sources;
        scratch.assign(table.pass_floats(drawn.model, part.rows, part.rows, 0), NAN);
        table.source_slots(drawn.model, part, from, scratch.data());
        from += part.rows * s.width;
    }
    // A prefix of b + 1 tokens for source b, and then beams with random parents.
    using History = std::vector<std::vector<Slot>>;
    std::vector<std::vector<History>> histories(3, {History(s.layers)});
    std::vector<std::vector<int64_t>> row_numbers(3, {0});
    std::vector<std::vector<int32_t>> ancestors(3);
    int64_t used[3], stride = 16;
    for (size_t position = 0; position < 6; ++position) {
        std::vector<std::vector<int64_t>> rows_of(3), counted(3), parents(3);
        std::vector<Row> expected;
        std::vector<int32_t> spans(5, 0);
        std::vector<std::vector<float>> reads(3);
        parts.clear();
        rows = 0;
        int64_t wanted = 0;
        for (int64_t b = 0; b < 3; ++b) {
            Part part{};
            const bool begins = position == 0;
            const int64_t count = begins ? b + 1 : s.silent ? 5 : beams_at[position - 1];
            for (int64_t r = 0; r < count; ++r) {
                rows_of[b].push_back(random_below(s.vocabulary));
                parents[b].push_back(begins ? 0 : random_below(histories[b].size()));
            }
            std::vector<History> next;
            std::vector<int64_t> next_numbers;
            std::vector<int32_t> own_ancestors(count * stride, -1);
            for (int64_t r = 0; r < count; ++r) {
                const int64_t before = begins ? r : b + position;
                History history = begins && r > 0 ? next.back() : histories[b][parents[b][r]];
                const int64_t number = (begins && r > 0 ? next_numbers.back() : row_numbers[b][parents[b][r]]) +
                                       (rows_of[b][r] == drawn.model.separator);
                const Row row = drawn.step(rows_of[b][r], before, number, history, source_slots[b]);
                counted[b].push_back(number);
                next_numbers.push_back(number);
                next.push_back(history);
                if (!begins || r + 1 == count) expected.push_back(row);
                for (int64_t t = 0; !begins && t < before; ++t)
                    own_ancestors[r * stride + t] = position == 1 ? int32_t(t) : ancestors[b][parents[b][r] * stride + t];
                if (!begins) own_ancestors[r * stride + before] = static_cast<int32_t>(used[b] + r);
            }
            if (begins) used[b] = 0, next = {next.back()}, next_numbers = {next_numbers.back()};
            ancestors[b] = own_ancestors, histories[b] = next, row_numbers[b] = next_numbers;
            part.tokens = rows_of[b].data(), part.numbers = drawn.model.separator < 0 ? nullptr : counted[b].data();
            part.rows = count, part.consecutive = begins, part.position = begins ? 0 : b + position;
            part.first_wanted = begins ? count - 1 : 0;
            part.own = own[b].data(), part.own_step = step, part.own_capacity = capacity, part.used = used[b];
            part.ancestors = begins ? nullptr : ancestors[b].data(), part.ancestor_stride = stride;
            part.straight = begins ? 0 : b + 1;
            part.source = source[b].data(), part.source_step = source_step, part.source_capacity = sources;
            part.source_count = tokens[b].size();
            reads[b].assign(count, NAN);
            part.spans = spans.data(), part.span_count = 1, part.reads = reads[b].data();
            used[b] += count, rows += count, wanted += count - part.first_wanted;
            parts.push_back(part);
        }
        Followers followers(wanted, k);
        scratch.assign(table.pass_floats(drawn.model, rows, capacity, 1), NAN);
        table.decode(drawn.model, parts.data(), 3, capacity, 1, followers.rows.data(), k, scratch.data());
        for (int64_t layer = 0; s.silent && layer < s.layers; ++layer)
            for (int64_t b = 0; b < 3; ++b) {
                std::fill_n(own[b].data() + layer * step + step / 2, step / 2, NAN);
                std::fill_n(source[b].data() + layer * source_step + source_step / 2, source_step / 2, NAN);
            }
        for (int64_t r = 0; r < wanted; ++r) compare(s, followers.rows[r], expected[r], k);
        for (const auto& row : reads)
            for (float share : row)
                if (s.layers > 0 && !(share >= 0 && share <= s.heads + 1e-4)) std::exit(1);
    }
}

// The same sentences alone, and together with one thread and with two; most have beams that branch for a long time.
void search(const Shape& s, int64_t path) {
    const Drawn drawn(s, path);
    std::vector<std::vector<int64_t>> sources;
    for (int64_t i = 0; i < 9; ++i) {
        sources.emplace_back();
        for (int64_t t = 0; t <= i % 4 * 3; ++t) sources.back().push_back(3 + random_below(s.vocabulary - 3));
        sources.back().push_back(TOKEN_END);
    }
    const std::vector<int64_t> limits = {6, 40}, prefix = {4, TOKEN_SEPARATOR, 4};
    const SearchOptions options{5, 2, 20, 0, 30, 1.0};
    const auto run = [&](size_t first, size_t last, int64_t threads) {
        Search search(drawn.model, options);
        for (size_t i = first; i < last; ++i)
            search.add({sources[i].data(), int64_t(sources[i].size()), prefix.data(), 3, limits.data(), 2, 1, i % 2 == 0});
        while (search.run(3, 1000000, threads) == SEARCH_GOES_ON)
            for (size_t i = first; i < last; ++i) search.sentence(i - first)->settled();
        std::vector<std::vector<int32_t>> found;
        for (size_t i = first; i < last; ++i)
            for (const Hypothesis& one : search.sentence(i - first)->finished()) {
                if (one.reads.size() != (i % 2 == 0 ? one.tokens.size() * search.sentence(i - first)->span_count() : 0))
                    std::exit(1);
                found.push_back(one.tokens);
            }
        return found;
    };
    const auto together = run(0, sources.size(), 1);
    if (together.size() != 2 * sources.size() || together != run(0, sources.size(), 2)) std::exit(1);
    for (size_t i = 0; i < sources.size(); ++i) {
        const auto alone = run(i, i + 1, 1);
        if (alone[0] != together[2 * i] || alone[1] != together[2 * i + 1]) std::exit(1);
    }
}

}  // namespace

int main() {
    reluformer_set_launch(launch);
    const ReadRule relu{READ_RELU, 0.9, 0.5, 0, 0, 0, 0, 0, 0, 0, -1}, softmax{READ_SOFTMAX, 1, 0, 0, 0, 0, 0, 0, 0, 0, -1};
    const ReadRule relu_exp{READ_RELU_EXP, 1, 0, -0.3, 0.1, 0.4, 0.02, 0.2, 50, 0, -1};
    const ReadRule cut{READ_RELU_EXP, 1, 0, 0.1, 0, 0, 0.02, 0.6, 1, 0, -1};
    const ReadRule capped{READ_RELU_EXP, 1, 0, 0.4, 0, 0, 0.02, 0.2, 50, 0.5, 0.3};
    const ReadRule nothing{READ_RELU_EXP, 1, 0, 100, 0, 0, 0.02, 0.2, 50, 0, -1};
    const std::vector<std::pair<ReadRule, ReadRule>> rules = {
        {relu, relu}, {softmax, softmax}, {relu_exp, cut}, {cut, softmax}, {capped, capped}};
    int64_t count = 0;
    for (int64_t path : {PORTABLE, AVX2, AVX512}) {
        if (path == AVX2 && reluformer_best_path() < AVX2) continue;
        for (int64_t vnni : {0, 2}) {
            reluformer_allow_vnni(vnni);
            for (const auto& [own, cross] : rules)
                for (int bits = 0; bits < 16; ++bits) {
                    const bool pre_norm = bits & 1, rotary = bits & 2, offsets = bits & 4, int8 = bits & 8;
                    if (vnni && !int8) continue;
                    for (const Shape& shape : {Shape{6, 3, 5, 7, 1, pre_norm, rotary, offsets, int8, own, cross},
                                               Shape{64, 1, 33, 70, 2, pre_norm, rotary, offsets, int8, own, cross},
                                               Shape{40, 2, 300, 600, 1, pre_norm, rotary, offsets, int8, own, cross},
                                               Shape{16, 4, 8, 9, 0, pre_norm, rotary, offsets, int8, own, cross}}) {
                        check(shape, path);
                        ++count;
                    }
                }
            for (int bits = 0; bits < 2; ++bits)
                check(Shape{40, 2, 300, 60, 2, true, false, false, bits == 1, nothing, nothing, true}, path);
            for (int bits = 0; bits < 2; ++bits)
                for (const auto& [own, cross] : rules)
                    search(Shape{24, 3, 40, 30, 2, true, bits == 1, bits == 1, bits == 1, own, cross}, path);
        }
    }
    std::printf("%ld models, worst error %g, of int8 %g\n", long(count), worst, worst_int8);
    return 0;
}
