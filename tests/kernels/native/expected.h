// What a read and its gradients should be, as plain loops in double precision, and how to compare.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "problem.h"
#include "shared.h"

// Exactly as large as it must be, so that a step outside is seen.
using Floats = std::unique_ptr<float[]>;

inline Floats drawn(int64_t count) {
    Floats floats(new float[count]);
    for (int64_t i = 0; i < count; ++i) floats[i] = draw();
    return floats;
}

inline Floats poisoned(int64_t count) {
    Floats floats(new float[count]);
    for (int64_t i = 0; i < count; ++i) floats[i] = NAN;
    return floats;
}

struct Shape {
    int64_t batches, heads, queries, slots, width, value_width;
};

struct Case {
    Shape shape;
    Activation activation;
    bool causal, masked, biased, divided;
    int64_t path;
};

inline double worst = 0;

inline void compare(const char* what, const Case& c, const float* got, const std::vector<double>& expected, double tolerance) {
    double largest = 1, error = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
        largest = std::fmax(largest, std::fabs(expected[i]));
        const double difference = std::fabs(got[i] - expected[i]);
        error = std::isnan(difference) ? INFINITY : std::fmax(error, difference);
    }
    worst = std::fmax(worst, error / largest);
    if (error <= tolerance * largest) return;
    std::printf("%s differs by %g: B%ld H%ld Q%ld K%ld d%ld dv%ld act%ld causal%d masked%d biased%d divided%d path%ld\n",
                what, error / largest, long(c.shape.batches), long(c.shape.heads), long(c.shape.queries),
                long(c.shape.slots), long(c.shape.width), long(c.shape.value_width), long(c.activation), c.causal,
                c.masked, c.biased, c.divided, long(c.path));
    std::exit(1);
}

struct Expected {
    std::vector<double> out, row_sum, entropy, zeros, unsure, d_q, d_k, d_v, d_row_bias, d_key_bias;
};

// The mathematics of problem.h and backward.h as plain loops over dense weights.
inline Expected naive(const Gradient& g) {
    const Problem& p = g.forward;
    const int64_t B = p.batches, H = p.heads, Q = p.queries, K = p.slots, D = p.width, V = p.value_width;
    Expected e;
    e.out.assign(B * H * Q * V, 0), e.d_q.assign(B * H * Q * D, 0);
    e.d_k.assign(B * H * K * D, 0), e.d_v.assign(B * H * K * V, 0);
    e.row_sum.assign(B * H * Q, 0), e.entropy = e.zeros = e.unsure = e.d_row_bias = e.row_sum, e.d_key_bias.assign(B * H * K, 0);
    for (int64_t head = 0; head < B * H; ++head)
        for (int64_t i = 0; i < Q; ++i) {
            const int64_t b = head / H, h = head % H, row = head * Q + i, past = p.causal ? K - Q + i + 1 : K;
            std::vector<int64_t> seen;
            for (int64_t j = 0; j < past; ++j)
                if (p.key_mask == nullptr || p.key_mask[b * p.mask_batch + j]) seen.push_back(j);
            const double n = std::fmax(seen.size(), 1), scale = p.factor * std::pow(n, -p.exponent);
            std::vector<double> scores, a, slope, d_a;
            double sum = 0, logs = 0, zeros = 0, unsure = 0, product = 0;
            size_t best = 0;
            for (int64_t j : seen) {
                double s = 0;
                for (int64_t c = 0; c < D; ++c) s += p.scale * p.q.at(b, h, i)[c] * p.k.at(b, h, j)[c];
                if (p.row_bias.data) s += p.row_bias.at(b, h)[i];
                if (p.key_bias.data) s += p.key_bias.at(b, h)[j];
                if (p.log_n) s -= std::log(n);
                scores.push_back(s);
                if (s > scores[best]) best = scores.size() - 1;
            }
            const bool capped = p.capped() && !seen.empty() && scores[best] < p.cap;
            const double lift = capped ? p.cap - scores[best] : 0;
            for (double score : scores) {
                const double s = score + lift;
                const double r = std::fmax(s, 0), sigmoid = 1 / (1 + std::exp(-s));
                const double values[] = {r, r * r, sigmoid, std::expm1(r)};  // in the order of Activation
                const double slopes[] = {double(s > 0), 2 * r, sigmoid * (1 - sigmoid), s > 0 ? std::exp(s) : 0.0};
                a.push_back(values[p.activation]);
                slope.push_back(slopes[p.activation]);
                sum += a.back(), zeros += a.back() == 0, unsure += std::fabs(s) < 2e-6;  // single precision may round to 0
                if (a.back() > 0) logs += a.back() * std::log(a.back());
            }
            const double f = p.delta < 0 ? scale : scale / (p.delta + scale * sum);
            for (size_t x = 0; x < seen.size(); ++x)
                for (int64_t c = 0; c < V; ++c) e.out[row * V + c] += f * a[x] * p.v.at(b, h, seen[x])[c];
            e.row_sum[row] = f * sum, e.entropy[row] = sum > 0 ? std::log(sum) - logs / sum : 0;
            e.zeros[row] = seen.empty() ? 0 : zeros / n, e.unsure[row] = unsure / n;
            for (int64_t c = 0; c < V; ++c) product += g.d_out.at(b, h, i)[c] * e.out[row * V + c];
            for (size_t x = 0; x < seen.size(); ++x) {
                const int64_t j = seen[x];
                double d = 0;
                for (int64_t c = 0; c < V; ++c) {
                    d += f * g.d_out.at(b, h, i)[c] * p.v.at(b, h, j)[c];
                    e.d_v[(head * K + j) * V + c] += f * a[x] * g.d_out.at(b, h, i)[c];
                }
                if (p.delta >= 0) d -= f * product;
                if (g.d_row_sum.data) d += g.d_row_sum.at(b, h)[i] * (p.delta < 0 ? f : f - f * f * sum);
                if (g.d_entropy.data && a[x] > 0) d += g.d_entropy.at(b, h)[i] * (logs / sum - std::log(a[x])) / sum;
                d *= slope[x];
                d_a.push_back(d);
            }
            double all = 0;
            for (double d : d_a) all += d;
            if (capped) d_a[best] -= all;  // the score of the best slot sets the level of the row
            for (size_t x = 0; x < seen.size(); ++x) {
                const int64_t j = seen[x];
                const double d = d_a[x];
                e.d_row_bias[row] += d, e.d_key_bias[head * K + j] += d;
                for (int64_t c = 0; c < D; ++c) {
                    e.d_q[row * D + c] += p.scale * d * p.k.at(b, h, j)[c];
                    e.d_k[(head * K + j) * D + c] += p.scale * d * p.q.at(b, h, i)[c];
                }
            }
        }
    return e;
}

// One read with everything it needs: drawn inputs, and outputs that are NaN until somebody writes them.
struct Read {
    Case c;
    bool statistics;
    int64_t rows, keys;
    Floats q, k, v, row_bias, key_bias, d_out, d_row_sum, d_entropy;
    Floats out, sum, mean_log, row_sum, entropy, zeros, d_q, d_k, d_v, d_row_bias, d_key_bias;
    Floats capped_bias;
    std::unique_ptr<int32_t[]> best;
    std::unique_ptr<uint8_t[]> mask;
    Gradient g{};

    void set_cap(double cap) {
        capped_bias = poisoned(rows), best.reset(new int32_t[rows]);
        g.forward.cap = cap, g.forward.best = best.get(), g.forward.capped_bias = capped_bias.get();
    }

    Read(const Case& c_, bool statistics_)
        : c(c_), statistics(statistics_), rows(c.shape.batches * c.shape.heads * c.shape.queries),
          keys(c.shape.batches * c.shape.heads * c.shape.slots), mask(new uint8_t[c.shape.batches * c.shape.slots]) {
        const Shape& s = c.shape;
        q = drawn(rows * s.width), k = drawn(keys * s.width), v = drawn(keys * s.value_width);
        row_bias = drawn(rows), key_bias = drawn(keys);
        d_out = drawn(rows * s.value_width), d_row_sum = drawn(rows), d_entropy = drawn(rows);
        for (int64_t i = 0; i < s.batches * s.slots; ++i) mask[i] = draw() > -0.4f && i >= s.slots / 2;
        Problem& p = g.forward;
        p.batches = s.batches, p.heads = s.heads, p.queries = s.queries, p.slots = s.slots;
        p.width = s.width, p.value_width = s.value_width;
        p.causal = c.causal, p.threads = 2, p.path = c.path, p.activation = c.activation;
        p.log_n = c.activation == SIGMOID;
        p.scale = 1.5, p.factor = 1.25, p.exponent = 0.5, p.delta = c.divided ? 0.75 : -1.0;
        p.q = of_rows(q, s.width), p.k = of_keys(k, s.width), p.v = of_keys(v, s.value_width);
        if (c.masked) p.key_mask = mask.get(), p.mask_batch = s.slots;
        if (c.biased) p.row_bias = of_rows(row_bias), p.key_bias = of_keys(key_bias);
        g.d_out = of_rows(d_out, s.value_width);
        if (statistics) g.d_row_sum = of_rows(d_row_sum), g.d_entropy = of_rows(d_entropy);
        poison();
    }

    // New memory for all outputs.
    void poison() {
        const Shape& s = c.shape;
        Problem& p = g.forward;
        out = poisoned(rows * s.value_width), sum = poisoned(rows), mean_log = poisoned(rows);
        row_sum = poisoned(rows), entropy = poisoned(rows), zeros = poisoned(rows);
        d_q = poisoned(rows * s.width), d_k = poisoned(keys * s.width), d_v = poisoned(keys * s.value_width);
        d_row_bias = poisoned(rows), d_key_bias = poisoned(keys);
        p.out = of_rows(out, s.value_width);
        if (statistics || c.divided) p.sum = of_rows(sum), p.mean_log = of_rows(mean_log);
        if (statistics) p.row_sum = of_rows(row_sum), p.entropy = of_rows(entropy), p.zero_fraction = of_rows(zeros);
        g.d_q = of_rows(d_q, s.width), g.d_k = of_keys(d_k, s.width), g.d_v = of_keys(d_v, s.value_width);
        if (p.row_bias.data != nullptr) g.d_row_bias = of_rows(d_row_bias);
        if (p.key_bias.data != nullptr) g.d_key_bias = of_keys(d_key_bias);
    }

    // An entropy notices the relative error of small weights, and its gradient holds log w, which is steep there. In a
    // capped row the best slot takes back what all others were given, so that errors are those of far larger numbers.
    void compare_with(const Expected& e, double of_entropy = 2e-5) {
        const double exact = 2e-5, steep = statistics ? 5e-3 : (g.forward.capped() ? 1e-4 : exact);
        compare("out", c, out.get(), e.out, exact);
        if (statistics) {
            compare("row_sum", c, row_sum.get(), e.row_sum, exact);
            compare("entropy", c, entropy.get(), e.entropy, of_entropy);
            for (int64_t row = 0; row < rows; ++row)  // where the sign of a score is lost in rounding, either is right
                if (std::fabs(zeros[row] - e.zeros[row]) <= e.unsure[row] + 1e-6)
                    zeros[row] = static_cast<float>(e.zeros[row]);
            compare("zero_fraction", c, zeros.get(), e.zeros, exact);
        }
        compare("d_q", c, d_q.get(), e.d_q, steep);
        compare("d_k", c, d_k.get(), e.d_k, steep);
        compare("d_v", c, d_v.get(), e.d_v, exact);
        if (g.d_row_bias.data != nullptr) compare("d_row_bias", c, d_row_bias.get(), e.d_row_bias, steep);
        if (g.d_key_bias.data != nullptr) compare("d_key_bias", c, d_key_bias.get(), e.d_key_bias, steep);
    }

    Tensor4 of_rows(Floats& data, int64_t width) const { return tensor4(data, c.shape.queries, width); }
    Tensor4 of_keys(Floats& data, int64_t width) const { return tensor4(data, c.shape.slots, width); }
    Tensor3 of_rows(Floats& data) const { return {data.get(), c.shape.heads * c.shape.queries, c.shape.queries}; }
    Tensor3 of_keys(Floats& data) const { return {data.get(), c.shape.heads * c.shape.slots, c.shape.slots}; }

  private:
    Tensor4 tensor4(Floats& data, int64_t length, int64_t width) const {
        return {data.get(), c.shape.heads * length * width, length * width, width};
    }
};
