// The C interface that native/library.py loads, and how a read is divided into tasks.
#include <cstdlib>
#include <memory>
#include <new>

#include "parallel.h"
#include "paths.h"
#include "problem.h"
#include "rows.h"

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

// One stretch of memory for every thread, aligned to cache lines.
class ThreadMemory {
  public:
    ThreadMemory(int64_t threads, int64_t floats)
        : floats_((floats + 15) / 16 * 16),
          memory_(static_cast<float*>(::operator new(sizeof(float) * threads * floats_, std::align_val_t(64)))) {}
    float* of(int64_t thread) const { return memory_.get() + thread * floats_; }

  private:
    struct Release {
        void operator()(float* memory) const { ::operator delete(memory, std::align_val_t(64)); }
    };
    int64_t floats_;
    std::unique_ptr<float, Release> memory_;
};

// How many queries a forward task takes: enough tasks that every thread finds work, but long ones, as each
// task packs the keys that it reads. The division does not change any result.
int64_t stretch(const Problem& problem) {
    const int64_t heads = problem.batches * problem.heads, shortest = 192;
    const int64_t parts = problem.threads == 1 ? 1 : (2 * problem.threads + heads - 1) / heads;
    const int64_t even = (problem.queries + parts - 1) / parts;
    return (even + shortest - 1) / shortest * shortest;
}

void run_forward(const Problem& problem) {
    const int64_t heads = problem.batches * problem.heads, queries = problem.queries;
    if (heads == 0 || queries == 0) return;
    const RowTables tables(problem);
    const PathTable& path = table(problem.path);
    const int64_t each = stretch(problem), parts = (queries + each - 1) / each;
    const ThreadMemory memory(problem.threads, path.forward_floats(problem, each < queries ? each : queries));
    for_each_task(launch, heads * parts, problem.threads, [&](int64_t task, int64_t thread) {
        const int64_t part = parts - 1 - task / heads, head = task % heads;  // the longest of a causal read first
        const int64_t begin = part * each, end = begin + each < queries ? begin + each : queries;
        path.forward(problem, tables.rows(), memory.of(thread), head / problem.heads, head % problem.heads, begin, end);
    });
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

EXPORT int64_t reluformer_abi() { return RELUFORMER_ABI; }

EXPORT const char* reluformer_source_hash() { return RELUFORMER_SOURCE_HASH; }

EXPORT void reluformer_set_launch(Launch function) { launch = function; }

// The best path that this processor can run.
EXPORT int64_t reluformer_best_path() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return PORTABLE;
}

EXPORT int64_t reluformer_forward(const Problem* problem) {
    return guarded([&] { run_forward(*problem); });
}
