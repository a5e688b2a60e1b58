// Decodes a few positions with branching beams on every path, with two threads, and compares the log-probabilities
// with plain loops in double precision. `make sanitize` builds it; all memory is exactly as large as it must be.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "decoder.h"
#include "problem.h"
#include "shared.h"

extern "C" {
int64_t reluformer_best_path();
void reluformer_set_launch(void (*)(void (*)(void*), void*, unsigned, unsigned));
int64_t reluformer_panel_floats(int64_t, int64_t, int64_t);
void reluformer_pack_linear(int64_t, float*, const float*, int64_t, int64_t);
int64_t reluformer_decode(const Decoder*, const Position*);
void reluformer_best(int64_t, const float*, int64_t, int64_t, int64_t, float*, int64_t*, int64_t);
}

namespace {

using Row = std::vector<double>;

struct Shape {
    int64_t width, heads, slots, vocabulary, layers;
    bool pre_norm, rotary, offsets;
    ReadRule own, cross;
};

struct Map {
    std::vector<float> weight, bias;
    std::unique_ptr<float[]> panels;
    int64_t in, out;

    Linear pack(int64_t path, int64_t inputs, int64_t outputs, bool biased) {
        in = inputs, out = outputs;
        const float even = std::sqrt(3.0f / in);  // y as large as x, so that rounding does not grow from layer to layer
        for (int64_t i = 0; i < in * out; ++i) weight.push_back(even * draw());
        for (int64_t i = 0; biased && i < out; ++i) bias.push_back(draw());
        panels.reset(new float[reluformer_panel_floats(path, in, out)]);
        reluformer_pack_linear(path, panels.get(), weight.data(), in, out);
        return {panels.get(), biased ? bias.data() : nullptr, in, out};
    }

    Row operator()(const Row& x) const {
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
void weigh(Row& scores, const ReadRule& rule, double offset, double scale) {
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
         const std::vector<float>& offsets, double scale) {
    const int64_t width = q.size() / heads;
    Row out(q.size(), 0.0);
    for (int64_t h = 0; h < heads; ++h) {
        Row weights;
        for (const Slot& slot : slots) {
            double score = 0;
            for (int64_t c = h * width; c < (h + 1) * width; ++c) score += q[c] * slot.key[c];
            weights.push_back(score);
        }
        weigh(weights, rule, offsets.empty() ? 0 : offsets[h], scale);
        for (size_t j = 0; j < slots.size(); ++j)
            for (int64_t c = h * width; c < (h + 1) * width; ++c) out[c] += weights[j] * slots[j].value[c];
    }
    return out;
}

void turn(Row& x, int64_t heads, const std::vector<float>& cosine, const std::vector<float>& sine) {
    const int64_t width = x.size() / heads, half = width / 2;
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t c = h * width; c < h * width + half; ++c) {
            const double a = x[c], b = x[c + half], co = cosine[c - h * width], si = sine[c - h * width];
            x[c] = a * co - b * si, x[c + half] = a * si + b * co;
        }
}

struct Maps {
    Map qkv, own, query, cross, keys, values;
    Scaling own_norm, cross_norm, ffn_norm;
    std::vector<float> own_offset, cross_offset;  // empty where there is none
};

double worst = 0;

void check(const Shape& s, int64_t path) {
    constexpr int64_t batch = 3, sources = 5;
    const std::vector<int64_t> widths = {1, 4, 3, 6, 6, 5};
    const int64_t capacity = 25, head = s.width / s.heads;  // 1 + 4 + ... + 5 slots
    std::vector<Maps> maps(s.layers);
    std::vector<DecoderLayer> layers;
    for (Maps& m : maps) {
        for (std::vector<float>* offsets : {&m.own_offset, &m.cross_offset})
            for (int64_t h = 0; s.offsets && h < s.heads; ++h) offsets->push_back(draw());
        layers.push_back({m.own_norm.make(s.width), m.cross_norm.make(s.width), m.ffn_norm.make(s.width),
                          m.qkv.pack(path, s.width, 3 * s.width, true), m.own.pack(path, s.width, s.width, true),
                          m.query.pack(path, s.width, s.width, true), m.cross.pack(path, s.width, s.width, true),
                          m.keys.pack(path, s.width, s.slots, true), m.values.pack(path, s.slots, s.width, false),
                          s.offsets ? m.own_offset.data() : nullptr, s.offsets ? m.cross_offset.data() : nullptr});
    }
    Map output;
    Scaling norm;
    std::vector<float> embedding(s.vocabulary * s.width), sinusoid(s.width), cosine(head / 2), sine(head / 2);
    for (std::vector<float>* numbers : {&embedding, &sinusoid, &cosine, &sine})
        for (float& number : *numbers) number = draw();
    Decoder decoder{s.width, s.heads, s.layers, s.slots, s.vocabulary, s.pre_norm, path, s.own, s.cross, 1.5,
                    embedding.data(), layers.data(), s.pre_norm ? norm.make(s.width) : Norm{nullptr, nullptr, 0},
                    output.pack(path, s.width, s.vocabulary, false)};
    const std::vector<int64_t> lengths = {5, 1, 3};
    const std::vector<float> scales = {0.5f, 0.7f, 0.9f};
    std::vector<std::vector<std::vector<Slot>>> source(s.layers, std::vector<std::vector<Slot>>(batch));
    std::vector<std::vector<float>> memory(4 * s.layers);
    std::vector<LayerSlots> slots;
    for (int64_t layer = 0; layer < s.layers; ++layer) {
        for (int part = 0; part < 4; ++part) {
            memory[4 * layer + part].assign(batch * (part < 2 ? capacity : sources) * s.width, NAN);
        }
        for (int64_t b = 0; b < batch; ++b)
            for (int64_t j = 0; j < lengths[b]; ++j) {
                Slot slot{Row(s.width), Row(s.width)};
                for (int64_t c = 0; c < s.width; ++c) {
                    const int64_t at = ((b * s.heads + c / head) * sources + j) * head + c % head;
                    slot.key[c] = memory[4 * layer + 2][at] = draw();
                    slot.value[c] = memory[4 * layer + 3][at] = draw();
                }
                source[layer][b].push_back(slot);
            }
        float* parts[4];
        for (int part = 0; part < 4; ++part) parts[part] = memory[4 * layer + part].data();
        slots.push_back({parts[0], parts[1], parts[2], parts[3]});
    }
    // What each row has read so far, as plain lists.
    using History = std::vector<std::vector<Slot>>;
    std::vector<History> histories(batch, History(s.layers));
    std::vector<int32_t> ancestors(batch * widths.size(), -1), old;
    int64_t used = 0, old_beams = 1;
    for (size_t step = 0; step < widths.size(); ++step) {
        const int64_t beams = widths[step], rows = batch * beams;
        std::vector<int64_t> tokens(rows), parents(rows);
        for (int64_t r = 0; r < rows; ++r) {
            tokens[r] = std::abs(static_cast<int64_t>(draw() * 1000)) % s.vocabulary;
            parents[r] = r / beams * old_beams + std::abs(static_cast<int64_t>(draw() * 1000)) % old_beams;
        }
        old = ancestors;
        ancestors.assign(rows * widths.size(), -1);
        std::vector<float> found(rows * s.vocabulary, NAN);
        Position position{batch, beams, 2, static_cast<int64_t>(step), used, capacity, sources,
                          tokens.data(), parents.data(), old.data(), ancestors.data(),
                          static_cast<int64_t>(widths.size()), lengths.data(),
                          s.rotary ? nullptr : sinusoid.data(), s.rotary ? cosine.data() : nullptr,
                          s.rotary ? sine.data() : nullptr, 0.8, scales.data(), slots.data(), found.data()};
        if (reluformer_decode(&decoder, &position) != 0) std::exit(1);
        std::vector<History> next;
        for (int64_t r = 0; r < rows; ++r) {
            next.push_back(histories[parents[r]]);
            Row x(s.width);
            for (int64_t c = 0; c < s.width; ++c)
                x[c] = 1.5 * embedding[tokens[r] * s.width + c] + (s.rotary ? 0.0f : sinusoid[c]);
            const auto sublayer = [&](const Scaling& scaling, const auto& layer) {
                const Row y = layer(s.pre_norm ? scaling(x) : x);
                for (int64_t c = 0; c < s.width; ++c) x[c] += y[c];
                if (!s.pre_norm) x = scaling(x);
            };
            for (int64_t layer = 0; layer < s.layers; ++layer) {
                const Maps& m = maps[layer];
                sublayer(m.own_norm, [&](const Row& in) {
                    const Row wide = m.qkv(in);
                    Row q(wide.begin(), wide.begin() + s.width), key(wide.begin() + s.width, wide.end() - s.width);
                    if (s.rotary) turn(q, s.heads, cosine, sine), turn(key, s.heads, cosine, sine);
                    next[r][layer].push_back({key, Row(wide.end() - s.width, wide.end())});
                    return m.own(read(q, next[r][layer], s.heads, s.own, m.own_offset, 0.8));
                });
                sublayer(m.cross_norm, [&](const Row& in) {
                    return m.cross(read(m.query(in), source[layer][r / beams], s.heads, s.cross, m.cross_offset,
                                        scales[r / beams]));
                });
                sublayer(m.ffn_norm, [&](const Row& in) {
                    Row fired = m.keys(in);
                    for (double& value : fired) value = std::fmax(value, 0);
                    return m.values(fired);
                });
            }
            Row logits = output(s.pre_norm ? norm(x) : x);
            double most = *std::max_element(logits.begin(), logits.end()), sum = 0;
            for (double logit : logits) sum += std::exp(logit - most);
            for (int64_t t = 0; t < s.vocabulary; ++t) {
                const double expected = logits[t] - most - std::log(sum);
                const double error = std::fabs(found[r * s.vocabulary + t] - expected) / std::fmax(1, std::fabs(most));
                worst = std::isnan(error) ? INFINITY : std::fmax(worst, error);
            }
        }
        if (!(worst <= 1e-4)) {  // single precision, with weights of ReLU that are in the tens
            std::printf("log-probabilities differ by %g: width%ld heads%ld rules%ld,%ld path%ld step%ld\n", worst,
                        long(s.width), long(s.heads), long(s.own.kind), long(s.cross.kind), long(path), long(step));
            std::exit(1);
        }
        histories = next, used += beams, old_beams = beams;
        const int64_t k = std::min<int64_t>(4, s.vocabulary);
        std::vector<float> values(rows * k);
        std::vector<int64_t> places(rows * k);
        reluformer_best(path, found.data(), rows, s.vocabulary, k, values.data(), places.data(), 2);
        for (int64_t r = 0; r < rows; ++r) {
            std::vector<float> sorted(found.begin() + r * s.vocabulary, found.begin() + (r + 1) * s.vocabulary);
            std::sort(sorted.rbegin(), sorted.rend());
            for (int64_t i = 0; i < k; ++i)
                if (values[r * k + i] != sorted[i] || found[r * s.vocabulary + places[r * k + i]] != sorted[i]) std::exit(1);
        }
    }
}

}  // namespace

int main() {
    reluformer_set_launch(launch);
    const ReadRule relu{READ_RELU, 0, 0, 0, 0, 0, 0, 0, -1}, softmax{READ_SOFTMAX, 0, 0, 0, 0, 0, 0, 0, -1};
    const ReadRule relu_exp{READ_RELU_EXP, -0.3, 0.1, 0.4, 0.02, 0.2, 50, 0, -1};
    const ReadRule cut{READ_RELU_EXP, 0.1, 0, 0, 0.02, 0.6, 1, 0, -1}, capped{READ_RELU_EXP, 0.4, 0, 0, 0.02, 0.2, 50, 0.5, 0.3};
    const std::vector<std::pair<ReadRule, ReadRule>> rules = {
        {relu, relu}, {softmax, softmax}, {relu_exp, cut}, {cut, softmax}, {capped, capped}};
    int64_t count = 0;
    for (int64_t path : {PORTABLE, AVX2, AVX512}) {
        if (path == AVX2 && reluformer_best_path() < AVX2) continue;
        for (const auto& [own, cross] : rules)
            for (int bits = 0; bits < 8; ++bits) {
                const bool pre_norm = bits & 1, rotary = bits & 2, offsets = bits & 4;
                for (const Shape& shape : {Shape{6, 3, 5, 3, 1, pre_norm, rotary, offsets, own, cross},
                                           Shape{64, 1, 33, 70, 2, pre_norm, rotary, offsets, own, cross},
                                           Shape{40, 2, 300, 129, 1, pre_norm, rotary, offsets, own, cross},
                                           Shape{16, 4, 8, 9, 0, pre_norm, rotary, offsets, own, cross}}) {
                    check(shape, path);
                    ++count;
                }
            }
    }
    std::printf("%ld decoders, worst error %g\n", long(count), worst);
    return 0;
}
