// Runs the library over odd shapes, rules, masks and biases on every path that this processor has, with two threads,
// and compares outputs, statistics and gradients with plain loops in double precision. `make sanitize` builds it, with
// sixteen lanes emulated.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "expected.h"

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

void check(const Case& c, bool statistics) {
    Read read(c, statistics);
    if (reluformer_forward(&read.g.forward) != 0 || reluformer_backward(&read.g) != 0) std::exit(1);
    read.compare_with(naive(read.g));
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
                            {1, 1, 200, 200, 3, 65}, {1, 2, 30, 40, 0, 8},     {1, 1, 30, 40, 8, 0}};
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
