// Runs the library over odd shapes, rules, masks and biases on every path that this processor has, with two threads,
// and compares outputs, statistics and gradients with plain loops in double precision. `make sanitize` builds it, with
// sixteen lanes emulated.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "problem.h"
#include "shared.h"

extern "C" {
int64_t reluformer_abi();
int64_t reluformer_best_path();
void reluformer_set_launch(void (*)(void (*)(void*), void*, unsigned, unsigned));
int64_t reluformer_forward(const Problem*);
int64_t reluformer_backward(const Gradient*);
int64_t reluformer_moments(const Moments*);
void reluformer_weigh_values(int64_t, float*, const float*, int64_t, int64_t, const float*, int64_t);
}

namespace {

// Exactly as large as it must be, so that a step outside is seen.
using Floats = std::unique_ptr<float[]>;

Floats drawn(int64_t count) {
    Floats floats(new float[count]);
    for (int64_t i = 0; i < count; ++i) floats[i] = draw();
    return floats;
}

Floats poisoned(int64_t count) {
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

double worst = 0;

void compare(const char* what, const Case& c, const float* got, const std::vector<double>& expected, double tolerance) {
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
Expected naive(const Gradient& g) {
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
            std::vector<double> a, slope, d_a;
            double sum = 0, logs = 0, zeros = 0, unsure = 0, product = 0;
            for (int64_t j : seen) {
                double s = 0;
                for (int64_t c = 0; c < D; ++c) s += p.scale * p.q.at(b, h, i)[c] * p.k.at(b, h, j)[c];
                if (p.row_bias.data) s += p.row_bias.at(b, h)[i] + p.key_bias.at(b, h)[j];
                if (p.log_n) s -= std::log(n);
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
                e.d_row_bias[row] += d, e.d_key_bias[head * K + j] += d;
                for (int64_t c = 0; c < D; ++c) {
                    e.d_q[row * D + c] += p.scale * d * p.k.at(b, h, j)[c];
                    e.d_k[(head * K + j) * D + c] += p.scale * d * p.q.at(b, h, i)[c];
                }
            }
        }
    return e;
}

void check(const Case& c, bool statistics) {
    const Shape& s = c.shape;
    const int64_t rows = s.batches * s.heads * s.queries, keys = s.batches * s.heads * s.slots;
    const auto tensor4 = [&](Floats& data, int64_t length, int64_t width) {
        return Tensor4{data.get(), s.heads * length * width, length * width, width};
    };
    const auto tensor3 = [&](Floats& data, int64_t length) { return Tensor3{data.get(), s.heads * length, length}; };
    Floats q = drawn(rows * s.width), k = drawn(keys * s.width), v = drawn(keys * s.value_width);
    Floats row_bias = drawn(rows), key_bias = drawn(keys), out = poisoned(rows * s.value_width);
    Floats sum = poisoned(rows), mean_log = poisoned(rows), row_sum = poisoned(rows), entropy = poisoned(rows);
    Floats zeros = poisoned(rows), d_out = drawn(rows * s.value_width), d_row_sum = drawn(rows), d_entropy = drawn(rows);
    Floats d_q = poisoned(rows * s.width), d_k = poisoned(keys * s.width), d_v = poisoned(keys * s.value_width);
    Floats d_row_bias = poisoned(rows), d_key_bias = poisoned(keys);
    std::unique_ptr<uint8_t[]> mask(new uint8_t[s.batches * s.slots]);
    for (int64_t i = 0; i < s.batches * s.slots; ++i) mask[i] = draw() > -0.4f && i >= s.slots / 2;
    Gradient g{};
    Problem& p = g.forward;
    p.batches = s.batches, p.heads = s.heads, p.queries = s.queries, p.slots = s.slots;
    p.width = s.width, p.value_width = s.value_width;
    p.causal = c.causal, p.threads = 2, p.path = c.path, p.activation = c.activation, p.log_n = c.activation == SIGMOID;
    p.scale = 1.5, p.factor = 1.25, p.exponent = 0.5, p.delta = c.divided ? 0.75 : -1.0;
    p.q = tensor4(q, s.queries, s.width), p.k = tensor4(k, s.slots, s.width);
    p.v = tensor4(v, s.slots, s.value_width), p.out = tensor4(out, s.queries, s.value_width);
    if (c.masked) p.key_mask = mask.get(), p.mask_batch = s.slots;
    if (c.biased) p.row_bias = tensor3(row_bias, s.queries), p.key_bias = tensor3(key_bias, s.slots);
    if (statistics || c.divided) p.sum = tensor3(sum, s.queries), p.mean_log = tensor3(mean_log, s.queries);
    if (statistics) {
        p.row_sum = tensor3(row_sum, s.queries), p.entropy = tensor3(entropy, s.queries);
        p.zero_fraction = tensor3(zeros, s.queries);
        g.d_row_sum = tensor3(d_row_sum, s.queries), g.d_entropy = tensor3(d_entropy, s.queries);
    }
    g.d_out = tensor4(d_out, s.queries, s.value_width), g.d_q = tensor4(d_q, s.queries, s.width);
    g.d_k = tensor4(d_k, s.slots, s.width), g.d_v = tensor4(d_v, s.slots, s.value_width);
    if (c.biased) g.d_row_bias = tensor3(d_row_bias, s.queries), g.d_key_bias = tensor3(d_key_bias, s.slots);
    if (reluformer_forward(&p) != 0 || reluformer_backward(&g) != 0) std::exit(1);
    const Expected e = naive(g);
    // The gradient of an entropy holds log w, which is steep where w is small.
    const double exact = 2e-5, steep = statistics ? 5e-3 : exact;
    compare("out", c, out.get(), e.out, exact);
    if (statistics) {
        compare("row_sum", c, row_sum.get(), e.row_sum, exact);
        compare("entropy", c, entropy.get(), e.entropy, exact);
        for (int64_t row = 0; row < rows; ++row)  // where the sign of a score is lost in rounding, either is right
            if (std::fabs(zeros[row] - e.zeros[row]) <= e.unsure[row] + 1e-6) zeros[row] = static_cast<float>(e.zeros[row]);
        compare("zero_fraction", c, zeros.get(), e.zeros, exact);
    }
    compare("d_q", c, d_q.get(), e.d_q, steep);
    compare("d_k", c, d_k.get(), e.d_k, steep);
    compare("d_v", c, d_v.get(), e.d_v, exact);
    if (!c.biased) return;
    compare("d_row_bias", c, d_row_bias.get(), e.d_row_bias, steep);
    compare("d_key_bias", c, d_key_bias.get(), e.d_key_bias, steep);
}

void check_values(int64_t path) {
    const int64_t rows = 3, slots = 301, width = 77;
    Floats weights = drawn(rows * slots), values = drawn(slots * width), out = poisoned(rows * width);
    std::vector<double> expected(rows * width, 0);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < slots; ++j) {
            float& weight = weights[i * slots + j];
            weight = weight < 0.5f ? 0.0f : weight;
            for (int64_t c = 0; c < width; ++c) expected[i * width + c] += weight * values[j * width + c];
        }
    reluformer_weigh_values(path, out.get(), weights.get(), rows, slots, values.get(), width);
    compare("weigh_values", Case{{1, 1, rows, slots, 0, width}, RELU, false, false, false, false, path}, out.get(), expected, 2e-5);
}

// Mean and variance of each row's scores, and the gradients of both.
void check_moments(const Shape& s, bool causal, bool masked, int64_t path) {
    const Case c{s, RELU, causal, masked, false, false, path};
    const int64_t heads = s.batches * s.heads, Q = s.queries, K = s.slots, D = s.width;
    const double scale = 0.3;
    Floats y = drawn(heads * Q * D), x = drawn(heads * K * D), d_mean = drawn(heads * Q), d_variance = drawn(heads * Q);
    Floats mean = poisoned(heads * Q), variance = poisoned(heads * Q), d_y = poisoned(heads * Q * D), d_x = poisoned(heads * K * D);
    std::vector<uint8_t> mask(s.batches * K);
    for (int64_t j = 0; j < s.batches * K; ++j) mask[j] = j % K == 0 || j % 3 != 1;  // the first, so that no row sees nothing
    std::vector<double> means(heads * Q, 0), variances(means), y_gradient(heads * Q * D, 0), x_gradient(heads * K * D, 0);
    for (int64_t head = 0; head < heads; ++head)
        for (int64_t i = 0; i < Q; ++i) {
            const int64_t row = head * Q + i;
            const auto for_slots = [&](const auto& visit) {
                for (int64_t j = 0; j < (causal ? K - Q + i + 1 : K); ++j) {
                    if (masked && !mask[head / s.heads * K + j]) continue;
                    const float *a = y.get() + row * D, *b = x.get() + (head * K + j) * D;
                    double score = 0;
                    for (int64_t p = 0; p < D; ++p) score += scale * a[p] * b[p];
                    visit(score, a, b, x_gradient.data() + (head * K + j) * D);
                }
            };
            double n = 0, sum = 0, square = 0;
            for_slots([&](double score, const float*, const float*, double*) { n += 1, sum += score; });
            if (n == 0) continue;
            means[row] = sum / n;
            for_slots([&](double score, const float*, const float*, double*) { square += (score - sum / n) * (score - sum / n); });
            variances[row] = square / n;
            for_slots([&](double score, const float* a, const float* b, double* to) {
                const double factor = scale * (d_mean[row] + 2 * d_variance[row] * (score - sum / n)) / n;
                for (int64_t p = 0; p < D; ++p) y_gradient[row * D + p] += factor * b[p], to[p] += factor * a[p];
            });
        }
    Moments m{s.batches, s.heads, Q, K, D, causal, 2, path, scale, {y.get(), s.heads * Q * D, Q * D, D},
              {x.get(), s.heads * K * D, K * D, D}, masked ? mask.data() : nullptr, K,
              mean.get(), variance.get(), nullptr, nullptr, {}, {}};
    if (reluformer_moments(&m) != 0) std::exit(1);
    m.d_mean = d_mean.get(), m.d_variance = d_variance.get();
    m.d_y = {d_y.get(), s.heads * Q * D, Q * D, D}, m.d_x = {d_x.get(), s.heads * K * D, K * D, D};
    if (reluformer_moments(&m) != 0) std::exit(1);
    if (Q == 0 || K == 0) return;  // nothing is written where nothing is to be read
    compare("mean", c, mean.get(), means, 2e-5);
    compare("variance", c, variance.get(), variances, 2e-5);
    compare("d_y", c, d_y.get(), y_gradient, 2e-5);
    compare("d_x", c, d_x.get(), x_gradient, 2e-5);
}

}  // namespace

int main() {
    reluformer_set_launch(launch);
    const Shape shapes[] = {{2, 2, 17, 17, 9, 7},   {1, 2, 1, 1, 1, 1},       {1, 1, 3, 300, 33, 70}, {2, 1, 0, 5, 4, 4},
                            {1, 1, 4, 4, 16, 256},  {1, 3, 101, 230, 64, 64}, {1, 1, 97, 1600, 8, 8}, {2, 1, 9, 0, 8, 8},
                            {1, 1, 200, 200, 3, 65}};
    int64_t count = 0;
    for (int64_t path : {PORTABLE, AVX2, AVX512}) {
        if (path == AVX2 && reluformer_best_path() < AVX2) continue;
        check_values(path);
        for (const Shape& shape : shapes)
            for (bool causal : {false, true})
                for (bool masked : {false, true})
                    if (!causal || shape.queries <= shape.slots) check_moments(shape, causal, masked, path);
        for (const Shape& shape : shapes)
            for (int bits = 0; bits < 32; ++bits)
                for (Activation activation : {RELU, RELU_SQUARED, SIGMOID, RELU_EXP}) {
                    const Case c{shape, activation, bool(bits & 1), bool(bits & 2), bool(bits & 4), bool(bits & 8), path};
                    if (c.causal && shape.queries > shape.slots) continue;
                    check(c, bits & 16);
                    ++count;
                }
    }
    std::printf("%ld cases, worst error %g\n", long(count), worst);
    return 0;
}
