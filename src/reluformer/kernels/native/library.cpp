// The C interface that native/library.py loads, and how a read is divided into tasks.
#include <atomic>
#include <cstring>
#include <new>
#include <vector>

#include "pair_list.h"
#include "parallel.h"
#include "paths.h"
#include "problem.h"
#include "rows.h"
#include "workspace.h"

#ifndef RELUFORMER_SOURCE_HASH
#define RELUFORMER_SOURCE_HASH "unknown"
#endif
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

Launch launch = nullptr;

const PathTable& table(int64_t path) {
#if defined(__x86_64__)
    if (path == AVX512) return AVX512_PATH;
    if (path == AVX2) return AVX2_PATH;
#endif
    return PORTABLE_PATH;
}

// How many queries a forward task takes: enough tasks that every thread finds work, but long ones, as each
// task packs the keys that it reads. The division does not change any result.
int64_t stretch(const Problem& problem, int64_t threads) {
    const int64_t heads = problem.batches * problem.heads, shortest = 192;
    const int64_t parts = threads == 1 ? 1 : (2 * threads + heads - 1) / heads;
    const int64_t even = (problem.queries + parts - 1) / parts;
    return (even + shortest - 1) / shortest * shortest;
}

// Waking a thread costs more than it saves below about this many products of two numbers.
int64_t useful_threads(const Problem& problem) {
    const double products = 1.0 * problem.batches * problem.heads * problem.queries * problem.slots *
                            (problem.width + problem.value_width), each = 2e6;
    const double useful = products / each;
    return useful < 2 ? 1 : (useful < problem.threads ? static_cast<int64_t>(useful) : problem.threads);
}

void run_few(const Problem& problem, const Rows& rows, const PathTable& path) {
    const int64_t heads = problem.batches * problem.heads, threads = useful_threads(problem);
    const Workspace memory(threads, path.few_floats(problem));
    for_each_task(launch, heads, threads, [&](int64_t head, int64_t thread) {
        path.few(problem, rows, memory.of(thread), head / problem.heads, head % problem.heads);
    });
}

// sparse: null where all rows are read densely.
void run_forward(const Problem& problem, const SparseRun* sparse) {
    const int64_t heads = problem.batches * problem.heads, queries = problem.queries;
    if (heads == 0 || queries == 0) return;
    const RowTables tables(problem);
    const PathTable& path = table(problem.path);
    if (sparse == nullptr && queries <= FEW && problem.row_sum.data == nullptr) return run_few(problem, tables.rows(), path);
    const int64_t threads = useful_threads(problem);
    const int64_t each = stretch(problem, threads), parts = (queries + each - 1) / each;
    const auto floats = sparse == nullptr ? path.forward_floats : path.sparse_forward_floats;
    const Workspace memory(threads, floats(problem, each < queries ? each : queries));
    for_each_task(launch, heads * parts, threads, [&](int64_t task, int64_t thread) {
        const int64_t part = parts - 1 - task / heads, head = task % heads;  // the longest of a causal read first
        const int64_t begin = part * each, end = begin + each < queries ? begin + each : queries;
        const int64_t b = head / problem.heads, h = head % problem.heads;
        if (sparse == nullptr) {
            path.forward(problem, tables.rows(), memory.of(thread), b, h, begin, end);
        } else {
            path.sparse_forward(problem, tables.rows(), *sparse, memory.of(thread), b, h, begin, end);
        }
    });
}

// Gradients of slots that nobody sees, which no task writes.
void clear_hidden(const Gradient& gradient) {
    const Problem& problem = gradient.forward;
    if (problem.key_mask == nullptr && problem.queries > 0) return;
    for (int64_t b = 0; b < problem.batches; ++b)
        for (int64_t j = 0; j < problem.slots; ++j) {
            if (problem.queries > 0 && problem.key_mask[b * problem.mask_batch + j]) continue;
            for (int64_t h = 0; h < problem.heads; ++h) {
                std::memset(gradient.d_k.at(b, h, j), 0, sizeof(float) * problem.width);
                std::memset(gradient.d_v.at(b, h, j), 0, sizeof(float) * problem.value_width);
                if (gradient.d_key_bias.data != nullptr) gradient.d_key_bias.at(b, h)[j] = 0;
            }
        }
}

// Into how many stretches the keys of a head are divided. It decides in which order shares are added up, so it
// depends on the shape alone, never on the number of threads.
int64_t key_parts(const Problem& problem) {
    const int64_t heads = problem.batches * problem.heads, tasks = 8, shortest = heads == 1 ? 384 : 768;
    const int64_t wanted = (tasks + heads - 1) / heads, most = problem.slots / shortest;
    return wanted < most ? wanted : (most > 1 ? most : 1);
}

// Where a part begins: at a tile of the list of nonzero pairs.
int32_t key_part(int64_t all, int64_t part, int64_t parts) {
    return static_cast<int32_t>(part == parts ? all : all * part / parts / PAIR_SLOTS * PAIR_SLOTS);
}

// The bias of a capped row is the cap less the score of its best slot: the gradient of the one is that of the other.
void move_to_best(const Gradient& gradient, int64_t b, int64_t h, int64_t i) {
    const Problem& problem = gradient.forward;
    const int64_t best = problem.best[problem.row(b, h, i)] - 1;
    const float d = gradient.d_row_bias.at(b, h)[i], scaled = d * static_cast<float>(problem.scale);
    const float *q = problem.q.at(b, h, i), *k = problem.k.at(b, h, best);
    float *d_q = gradient.d_q.at(b, h, i), *d_k = gradient.d_k.at(b, h, best);
    for (int64_t c = 0; c < problem.width; ++c) {
        d_q[c] -= scaled * k[c];
        d_k[c] -= scaled * q[c];
    }
    if (gradient.d_key_bias.data != nullptr) gradient.d_key_bias.at(b, h)[best] -= d;
    gradient.d_row_bias.at(b, h)[i] = 0.0f;
}

// sparse: null where all rows are read densely.
void run_backward(const Gradient& gradient, const SparseRun* sparse) {
    const Problem& problem = gradient.forward;
    const int64_t heads = problem.batches * problem.heads;
    if (heads == 0) return;
    const RowTables tables(problem);
    const Rows& rows = tables.rows();
    clear_hidden(gradient);
    if (problem.queries == 0) return;
    const PathTable& path = table(problem.path);
    const int64_t threads = useful_threads(problem);
    const int64_t parts = key_parts(problem), share = path.query_gradient_floats(problem) + problem.queries;
    const Workspace memory(threads, (sparse == nullptr ? path.backward_floats : path.sparse_backward_floats)(problem));
    // With one part a thread keeps the share of the head that it works on; else all shares are kept.
    const Workspace shares(parts == 1 ? threads : heads * parts, share);
    std::vector<std::atomic<int64_t>> finished(heads);
    for_each_task(launch, heads * parts, threads, [&](int64_t task, int64_t thread) {
        const int64_t head = task / parts, part = task % parts, b = head / problem.heads, h = head % problem.heads;
        const int64_t all = rows.visible(b, problem.queries - 1);
        float* own = shares.of(parts == 1 ? thread : task);
        float* own_row_bias = own + path.query_gradient_floats(problem);
        std::memset(own_row_bias, 0, sizeof(float) * problem.queries);
        const int32_t begin = key_part(all, part, parts), end = key_part(all, part + 1, parts);
        if (sparse == nullptr) {
            path.backward(gradient, rows, memory.of(thread), own, own_row_bias, b, h, begin, end);
        } else {
            path.sparse_backward(gradient, rows, *sparse, memory.of(thread), own, own_row_bias, b, h, begin, end);
        }
        if (finished[head].fetch_add(1) + 1 < parts) return;
        const float* first = parts == 1 ? own : shares.of(head * parts);
        path.finish_query_gradient(gradient, first, shares.step(), parts, b, h);
        if (gradient.d_row_bias.data == nullptr) return;
        for (int64_t i = 0; i < problem.queries; ++i) {
            float sum = 0;
            for (int64_t p = 0; p < parts; ++p) sum += first[p * shares.step() + path.query_gradient_floats(problem) + i];
            gradient.d_row_bias.at(b, h)[i] = sum;
            if (rows.capped(b, h, i)) move_to_best(gradient, b, h, i);
        }
    });
}

// The gradient where one is asked for, else the moments.
void run_moments(const Moments& moments) {
    const int64_t heads = moments.batches * moments.heads;
    if (heads == 0 || moments.slots == 0 || moments.queries == 0) return;
    const PathTable& path = table(moments.path);
    const double products = 1.0 * heads * (moments.queries + moments.slots) * moments.width * moments.width;
    const int64_t threads = products < 1e6 ? 1 : moments.threads;
    const Workspace memory(threads, path.moment_floats(moments));
    const auto run = moments.backward() ? path.moments_backward : path.moments_forward;
    for_each_task(launch, heads, threads, [&](int64_t head, int64_t thread) {
        run(moments, memory.of(thread), head / moments.heads, head % moments.heads);
    });
}

// Whether a read may have sparse rows.
bool may_be_sparse(const Problem& problem, int64_t mode, int64_t sequence) {
    if (problem.activation == SIGMOID) return false;
    if (problem.capped()) return true;  // dense rows, too, as what is said there of caps is said nowhere else
    if (mode == DENSE) return false;
    return mode == SPARSE || sequence > FEW;
}

// A batch that shares one memory, as one long sequence. False where it is not laid out for that.
bool join_batch(Problem& problem) {
    const int64_t queries = problem.queries, items = problem.batches;
    const auto joined4 = [&](const Tensor4& tensor) { return items <= 1 || tensor.batch == queries * tensor.row; };
    const auto joined3 = [&](const Tensor3& tensor) {
        return items <= 1 || tensor.data == nullptr || tensor.batch == queries;
    };
    if (problem.heads != 1 || problem.causal || problem.key_mask != nullptr) return false;
    if (items > 1 && (problem.k.batch != 0 || problem.v.batch != 0)) return false;
    if (items > 1 && problem.key_bias.data != nullptr && problem.key_bias.batch != 0) return false;
    if (!joined4(problem.q) || !joined4(problem.out)) return false;
    for (const Tensor3* rows : {&problem.row_bias, &problem.sum, &problem.mean_log, &problem.row_sum, &problem.entropy,
                                &problem.zero_fraction})
        if (!joined3(*rows)) return false;
    problem.queries *= items;
    problem.batches = 1;
    return true;
}

bool join_batch(Gradient& gradient) {
    const int64_t queries = gradient.forward.queries, items = gradient.forward.batches;
    if (items > 1) {
        for (const Tensor4* rows : {&gradient.d_out, &gradient.d_q})
            if (rows->batch != queries * rows->row) return false;
        for (const Tensor3* rows : {&gradient.d_row_sum, &gradient.d_entropy, &gradient.d_row_bias})
            if (rows->data != nullptr && rows->batch != queries) return false;
        if (gradient.d_k.batch != 0 || gradient.d_v.batch != 0) return false;
        if (gradient.d_key_bias.data != nullptr && gradient.d_key_bias.batch != 0) return false;
    }
    return join_batch(gradient.forward);
}

// False where the layout does not fit the mode.
bool run_sparse_forward(Problem problem, const Sparse& sparse) {
    const int64_t mode = sparse.mode & ~SHARED, sequence = problem.queries;
    if ((sparse.mode & SHARED) && !join_batch(problem)) return false;
    SparseReport report{};
    const SparseRun run{mode, sequence, PairList(problem, sparse), &report};
    run.list.clear();
    if (problem.capped())
        for (int64_t row = 0; row < problem.batches * problem.heads * problem.queries; ++row)
            problem.best[row] = 0, problem.capped_bias[row] = 0.0f;
    run_forward(problem, may_be_sparse(problem, mode, sequence) ? &run : nullptr);
    report.needed += run.list.index_bytes();
    report.used = run.list.used_bytes();
    if (sparse.report != nullptr) *sparse.report = report;
    return true;
}

bool run_sparse_backward(Gradient gradient, const Sparse& sparse) {
    const int64_t mode = sparse.mode & ~SHARED, sequence = gradient.forward.queries;
    if ((sparse.mode & SHARED) && !join_batch(gradient)) return false;
    SparseReport report{};
    const SparseRun run{mode, sequence, PairList(gradient.forward, sparse), &report};
    run_backward(gradient, may_be_sparse(gradient.forward, mode, sequence) ? &run : nullptr);
    return true;
}

// 0, or 1 where memory ran out.
template <class Run>
int64_t guarded(const Run& run) {
    try {
        run();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // namespace

Launch launcher() { return launch; }

const PathTable& path_table(int64_t path) { return table(path); }

EXPORT int64_t reluformer_abi() { return RELUFORMER_ABI; }

EXPORT const char* reluformer_source_hash() { return RELUFORMER_SOURCE_HASH; }

EXPORT void reluformer_set_launch(Launch function) { launch = function; }

// The best path that this processor can run.
EXPORT int64_t reluformer_best_path() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt"))
        return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return PORTABLE;
}

EXPORT int64_t reluformer_forward(const Problem* problem) {
    return guarded([&] { run_forward(*problem, nullptr); });
}

EXPORT int64_t reluformer_backward(const Gradient* gradient) {
    return guarded([&] { run_backward(*gradient, nullptr); });
}

// The same with sparse rows. The caller keeps the list until the backward pass. 2: the layout does not fit the mode.
EXPORT int64_t reluformer_sparse_forward(const Problem* problem, const Sparse* sparse) {
    bool fits = true;
    const int64_t status = guarded([&] { fits = run_sparse_forward(*problem, *sparse); });
    return fits ? status : 2;
}

EXPORT int64_t reluformer_sparse_backward(const Gradient* gradient, const Sparse* sparse) {
    bool fits = true;
    const int64_t status = guarded([&] { fits = run_sparse_backward(*gradient, *sparse); });
    return fits ? status : 2;
}

EXPORT int64_t reluformer_moments(const Moments* moments) {
    return guarded([&] { run_moments(*moments); });
}

// rows of weights (rows, slots) and values (slots, width), all contiguous.
EXPORT void reluformer_weigh_values(int64_t path, float* out, const float* weights, int64_t rows, int64_t slots,
                                    const float* values, int64_t width) {
    for (int64_t i = 0; i < rows; ++i)
        table(path).weigh_values(out + i * width, weights + i * slots, slots, values, width, width);
}

EXPORT int64_t reluformer_problem_size() { return sizeof(Problem); }

EXPORT int64_t reluformer_moments_size() { return sizeof(Moments); }

EXPORT int64_t reluformer_gradient_size() { return sizeof(Gradient); }

EXPORT int64_t reluformer_sparse_size() { return sizeof(Sparse); }
