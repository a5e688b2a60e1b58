// Reads with sparse rows at 0 to 100 % zeros, on every path, against plain loops in double precision: lists that are
// kept, kept in part and found again, one thread and two, and numbers that are not finite. `make sanitize` builds it.
#include <algorithm>
#include <cstring>

#include "expected.h"

extern "C" {
int64_t reluformer_best_path();
void reluformer_allow_vnni(int64_t);
void reluformer_set_launch(void (*)(void (*)(void*), void*, unsigned, unsigned));
int64_t reluformer_forward(const Problem*);
int64_t reluformer_backward(const Gradient*);
int64_t reluformer_sparse_forward(const Problem*, const Sparse*);
int64_t reluformer_sparse_backward(const Gradient*, const Sparse*);
}

namespace {

void fail(const char* what, const Case& c) {
    compare(what, c, std::vector<float>{NAN}.data(), {0.0}, 0.0);
}

// Sets the row bias so that a share of each row's scores is below zero, and none so near that rounding decides.
void set_zeros(Read& read, double share) {
    Problem& p = read.g.forward;
    p.row_bias = read.of_rows(read.row_bias), read.g.d_row_bias = read.of_rows(read.d_row_bias);
    for (int64_t row = 0; row < read.rows; ++row) {
        const int64_t b = row / p.queries / p.heads, h = row / p.queries % p.heads, i = row % p.queries;
        std::vector<double> scores;
        for (int64_t j = 0; j < (p.causal ? p.slots - p.queries + i + 1 : p.slots); ++j) {
            if (p.key_mask != nullptr && !p.key_mask[b * p.mask_batch + j]) continue;
            double s = p.key_bias.data == nullptr ? 0.0 : p.key_bias.at(b, h)[j];
            for (int64_t c = 0; c < p.width; ++c) s += p.scale * p.q.at(b, h, i)[c] * p.k.at(b, h, j)[c];
            scores.push_back(s);
        }
        std::sort(scores.begin(), scores.end());
        size_t below = static_cast<size_t>(share * scores.size());
        while (below > 0 && below < scores.size() && scores[below] - scores[below - 1] < 1e-4) --below;
        const double threshold = scores.empty()             ? 0.0
                                 : below == 0               ? scores.front() - 0.1
                                 : below == scores.size()   ? scores.back() + 0.1
                                                            : (scores[below] + scores[below - 1]) / 2;
        read.row_bias[row] = static_cast<float>(-threshold);
    }
}

// Everything that a read wrote, bit by bit.
std::vector<uint32_t> bits_of(const Read& read) {
    std::vector<uint32_t> bits;
    const auto add = [&](const Floats& from, int64_t count) {
        const size_t size = bits.size();
        bits.resize(size + count);
        if (count > 0) std::memcpy(bits.data() + size, from.get(), sizeof(float) * count);
    };
    const Shape& s = read.c.shape;
    add(read.out, read.rows * s.value_width), add(read.d_q, read.rows * s.width);
    add(read.d_k, read.keys * s.width), add(read.d_v, read.keys * s.value_width), add(read.d_row_bias, read.rows);
    if (read.g.d_key_bias.data != nullptr) add(read.d_key_bias, read.keys);
    if (read.statistics) add(read.row_sum, read.rows), add(read.entropy, read.rows), add(read.zeros, read.rows);
    return bits;
}

// Forward and backward with a list of so many bytes, in memory of exactly that size.
SparseReport run(Read& read, int64_t mode, int64_t bytes, int64_t threads = 2) {
    read.poison();
    read.g.forward.threads = threads;
    std::unique_ptr<int64_t[]> list(bytes > 0 ? new int64_t[bytes / 8] : nullptr);
    SparseReport report{};
    Sparse sparse{mode, reinterpret_cast<uint8_t*>(list.get()), bytes / 8 * 8, &report};
    if (reluformer_sparse_forward(&read.g.forward, &sparse) != 0) std::exit(1);
    if (bytes > 0) {  // the backward pass gets a copy that holds what was written and no more
        std::unique_ptr<int64_t[]> copy(new int64_t[report.used / 8]);
        std::memcpy(copy.get(), list.get(), report.used);
        list = std::move(copy);
        sparse.list = reinterpret_cast<uint8_t*>(list.get()), sparse.bytes = report.used;
        if (reluformer_sparse_backward(&read.g, &sparse) != 0) std::exit(1);
    } else if (reluformer_sparse_backward(&read.g, &sparse) != 0) {
        std::exit(1);
    }
    return report;
}

void check(const Case& c, bool statistics, double share, double cap) {
    Read read(c, statistics);
    set_zeros(read, share);
    if (cap > 0) read.set_cap(cap);
    const Expected expected = naive(read.g);
    const SparseReport report = run(read, SPARSE, 0);
    const std::vector<uint32_t> bits = bits_of(read);
    read.compare_with(expected, 2e-4);
    if (report.dense_pairs != 0 || report.used != 0 || report.nonzero_pairs > report.sparse_pairs) fail("the report", c);
    for (int64_t bytes : {report.needed, report.needed / 2, int64_t{8}}) {
        const SparseReport kept = run(read, SPARSE, bytes);
        if (kept.used > bytes || (bytes == report.needed && kept.used != bytes)) fail("the bytes of the list", c);
        if (bits_of(read) != bits) fail("a read with a kept list", c);
    }
    run(read, SPARSE, report.needed, 1);
    if (bits_of(read) != bits) fail("a read with one thread", c);
    for (int64_t mode : {AUTOMATIC, DENSE}) {
        run(read, mode, report.needed);
        read.compare_with(expected, 2e-4);
    }
}

// What a row does not see leaves no trace, finite or not; what it sees does.
void check_not_finite(Activation activation, int64_t path, int64_t mode, float poison) {
    const Case c{{1, 1, 300, 300, 20, 24}, activation, true, false, false, false, path};
    Read read(c, false);
    set_zeros(read, 0.5);
    const Shape& s = c.shape;
    for (int64_t place : {5, 97, 130, 191, 250}) {
        std::vector<float> outs[2], gradients[2];
        for (int bad = 0; bad < 2; ++bad) {
            std::vector<float> old_k(read.k.get(), read.k.get() + read.keys * s.width), old_v(read.v.get(), read.v.get() + read.keys * s.value_width);
            if (bad) {
                for (int64_t w = 0; w < s.width; ++w) read.k[place * s.width + w] = poison;
                for (int64_t w = 0; w < s.value_width; ++w) read.v[place * s.value_width + w] = poison;
            }
            run(read, mode, 1 << 20);
            outs[bad].assign(read.out.get(), read.out.get() + place * s.value_width);
            gradients[bad].assign(read.d_q.get(), read.d_q.get() + place * s.width);
            if (bad && std::isfinite(read.out[place * s.value_width])) fail("what a row sees", c);
            std::copy(old_k.begin(), old_k.end(), read.k.get());
            std::copy(old_v.begin(), old_v.end(), read.v.get());
        }
        if (outs[0] != outs[1] || gradients[0] != gradients[1]) fail("what a row does not see", c);
        // A row that is not finite leaves no trace in slots that it does not see.
        std::vector<float> slots[2];
        for (int bad = 0; bad < 2; ++bad) {
            std::vector<float> old_q(read.q.get(), read.q.get() + read.rows * s.width), old_d(read.d_out.get(), read.d_out.get() + read.rows * s.value_width);
            if (bad) {
                for (int64_t w = 0; w < s.width; ++w) read.q[place * s.width + w] = poison;
                for (int64_t w = 0; w < s.value_width; ++w) read.d_out[place * s.value_width + w] = poison;
            }
            run(read, mode, 1 << 20);
            for (const Floats* from : {&read.d_k, &read.d_v}) {
                const int64_t width = from == &read.d_k ? s.width : s.value_width;
                slots[bad].insert(slots[bad].end(), from->get() + (place + 1) * width, from->get() + read.keys * width);
            }
            if (bad && std::isfinite(read.out[place * s.value_width])) fail("a row that is not finite", c);
            if (bad)
                for (int64_t i = 0; i < read.rows; ++i)
                    if (i != place && !std::isfinite(read.out[i * s.value_width])) fail("a row beside it", c);
            std::copy(old_q.begin(), old_q.end(), read.q.get());
            std::copy(old_d.begin(), old_d.end(), read.d_out.get());
        }
        for (float x : slots[1])
            if (!std::isfinite(x)) fail("slots that a row does not see", c);
    }
}

// A sequence gives the same bits alone, beside others, and padded on the right.
void check_neighbours(int64_t path) {
    const Case alone{{1, 2, 230, 230, 16, 16}, RELU, true, true, true, false, path};
    const Case padded{{3, 2, 300, 300, 16, 16}, RELU, true, true, true, false, path};
    for (double share : {0.5, 0.6, 0.7, 0.95}) {
        Read one(alone, false), many(padded, false);
        for (int64_t j = 0; j < 230; ++j) one.mask[j] = 1;
        set_zeros(one, share), set_zeros(many, 1 - share);
        for (int64_t j = 0; j < 300; ++j) many.mask[300 + j] = j < 230;
        const auto copy = [](Floats& to, const Floats& from, int64_t width) {
            for (int64_t h = 0; h < 2; ++h)
                std::copy(from.get() + h * 230 * width, from.get() + (h + 1) * 230 * width, to.get() + (2 + h) * 300 * width);
        };
        copy(many.q, one.q, 16), copy(many.k, one.k, 16), copy(many.v, one.v, 16), copy(many.d_out, one.d_out, 16);
        copy(many.row_bias, one.row_bias, 1), copy(many.key_bias, one.key_bias, 1);
        run(one, AUTOMATIC, 1 << 20), run(many, AUTOMATIC, 1 << 20);
        const auto same = [](const Floats& a, const Floats& b, int64_t width) {
            for (int64_t h = 0; h < 2; ++h)
                if (std::memcmp(a.get() + h * 230 * width, b.get() + (2 + h) * 300 * width, sizeof(float) * 230 * width) != 0)
                    return false;
            return true;
        };
        if (!same(one.out, many.out, 16) || !same(one.d_q, many.d_q, 16)) fail("a padded sequence", alone);
    }
}

// A batch that shares one memory: the same as one long sequence, and each item the same bits as alone.
void check_shared(int64_t path) {
    const Shape s{3, 1, 110, 250, 40, 70};
    for (double share : {0.3, 0.6, 0.95})
        for (int64_t mode : {AUTOMATIC, DENSE, SPARSE}) {
            const Case c{{1, 1, s.batches * s.queries, s.slots, s.width, s.value_width}, RELU, false, false, true, false, path};
            Read all(c, true);
            set_zeros(all, share);
            Read items(Case{s, RELU, false, false, true, false, path}, true);
            const auto borrow = [&](Read& to, int64_t batches, int64_t first) {  // the inputs of `all`, from a row on
                Problem& p = to.g.forward;
                p.batches = batches, p.queries = s.queries;
                p.k = {all.k.get(), 0, 0, s.width}, p.v = {all.v.get(), 0, 0, s.value_width}, p.key_bias = {all.key_bias.get(), 0, 0};
                p.q = {all.q.get() + first * s.width, s.queries * s.width, 0, s.width};
                p.row_bias = {all.row_bias.get() + first, s.queries, 0};
                to.g.d_row_bias = to.of_rows(to.d_row_bias), to.g.d_key_bias = {to.d_key_bias.get(), 0, 0};
                to.g.d_out = {all.d_out.get() + first * s.value_width, s.queries * s.value_width, 0, s.value_width};
                to.g.d_row_sum = {all.d_row_sum.get() + first, s.queries, 0};
                to.g.d_entropy = {all.d_entropy.get() + first, s.queries, 0};
                to.g.d_k = {to.d_k.get(), 0, 0, s.width}, to.g.d_v = {to.d_v.get(), 0, 0, s.value_width};
            };
            const auto run_shared = [&](Read& read) {
                std::vector<int64_t> list(1 << 16);
                const Sparse sparse{mode | SHARED, reinterpret_cast<uint8_t*>(list.data()), 1 << 19, nullptr};
                if (reluformer_sparse_forward(&read.g.forward, &sparse) != 0) fail("a shared memory", c);
                if (reluformer_sparse_backward(&read.g, &sparse) != 0) fail("the gradient of a shared memory", c);
            };
            borrow(items, s.batches, 0);
            run_shared(items);
            const Expected expected = naive(all.g);
            compare("out of a shared memory", c, items.out.get(), expected.out, 2e-5);
            compare("d_q of a shared memory", c, items.d_q.get(), expected.d_q, 5e-3);
            compare("d_k of a shared memory", c, items.d_k.get(), expected.d_k, 5e-3);
            compare("d_v of a shared memory", c, items.d_v.get(), expected.d_v, 2e-5);
            compare("d_key_bias of a shared memory", c, items.d_key_bias.get(), expected.d_key_bias, 5e-3);
            compare("d_row_bias of a shared memory", c, items.d_row_bias.get(), expected.d_row_bias, 5e-3);
            compare("row_sum of a shared memory", c, items.row_sum.get(), expected.row_sum, 2e-5);
            for (int64_t item = 0; item < s.batches; ++item) {
                Read one(Case{{1, 1, s.queries, s.slots, s.width, s.value_width}, RELU, false, false, true, false, path}, true);
                borrow(one, 1, item * s.queries);
                run_shared(one);
                const int64_t out = s.queries * s.value_width, d_q = s.queries * s.width;
                if (std::memcmp(one.out.get(), items.out.get() + item * out, sizeof(float) * out) != 0 ||
                    std::memcmp(one.d_q.get(), items.d_q.get() + item * d_q, sizeof(float) * d_q) != 0)
                    fail("an item of a batch", c);
            }
            items.g.forward.k.batch = 1;  // not shared after all
            const Sparse sparse{mode | SHARED, nullptr, 0, nullptr};
            if (reluformer_sparse_forward(&items.g.forward, &sparse) != 2) fail("a layout that does not fit", c);
            if (reluformer_sparse_backward(&items.g, &sparse) != 2) fail("a layout that does not fit", c);
        }
}

}  // namespace

int main() {
    reluformer_set_launch(launch);
    const Shape shapes[] = {{2, 2, 17, 17, 9, 7},     {1, 1, 1, 1, 1, 1},     {1, 1, 3, 300, 33, 70}, {2, 1, 0, 5, 4, 4},
                            {1, 2, 101, 230, 64, 64}, {1, 1, 9, 1600, 8, 8},  {2, 1, 9, 0, 8, 8},     {1, 1, 200, 400, 3, 65},
                            {1, 1, 30, 40, 0, 8},     {1, 1, 30, 40, 8, 0},   {1, 1, 20, 70, 140, 260}};
    int64_t count = 0;
    for (int64_t path : {PORTABLE, AVX2, AVX512})
        for (int64_t vnni : {0, 1, 2}) {  // of vnni.cpp: neither, VNNI, and VBMI2
#if defined(RELUFORMER_EMULATE)
            if (path == AVX2 && reluformer_best_path() < AVX2) continue;
#else
            if (path > reluformer_best_path()) continue;
#endif
            if (vnni && path != AVX512) continue;
            reluformer_allow_vnni(vnni);
            check_neighbours(path);
            check_shared(path);
            for (Activation activation : {RELU, RELU_SQUARED, RELU_EXP, SIGMOID})
                for (int64_t mode : {DENSE, SPARSE})
                    for (float poison : {NAN, INFINITY}) check_not_finite(activation, path, mode, poison);
            for (const Shape& shape : shapes)
                for (int bits = 0; bits < 32; ++bits)
                    for (Activation activation : {RELU, RELU_SQUARED, RELU_EXP}) {
                        const Case c{shape, activation, bool(bits & 1), bool(bits & 2), bool(bits & 4), bool(bits & 8), path};
                        if (c.causal && shape.queries > shape.slots) continue;
                        const double shares[] = {0.0, 0.5, 0.9, 0.99, 1.0};
                        const int64_t number = count++;
                        check(c, bits & 16, shares[number % 5], number / 5 % 3 == 0 ? 0.4 : 0.0);
                    }
        }
    std::printf("%ld cases, worst error %g\n", long(count), worst);
    return 0;
}
