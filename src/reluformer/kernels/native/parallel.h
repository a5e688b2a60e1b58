// Parallel loops on torch's own OpenMP runtime, handed over as a function pointer; one thread without it.
#pragma once

#include <atomic>
#include <cstdint>

// GOMP_parallel: runs body(data) on `threads` threads and waits for them.
using Launch = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

// What Python handed over, or null.
Launch launcher();

// Runs work(task, thread) for every task below `tasks`. A task must not depend on who runs it or when.
template <class Work>
void for_each_task(Launch launch, int64_t tasks, int64_t threads, const Work& work) {
    struct Shared {
        std::atomic<int64_t> task{0}, thread{0};
        int64_t tasks = 0;
        const Work* work = nullptr;
    } shared;
    shared.tasks = tasks;
    shared.work = &work;
    const auto body = [](void* data) {
        Shared& shared = *static_cast<Shared*>(data);
        const int64_t thread = shared.thread.fetch_add(1);
        for (int64_t task; (task = shared.task.fetch_add(1)) < shared.tasks;) (*shared.work)(task, thread);
    };
    if (launch != nullptr && threads > 1 && tasks > 1) {
        launch(body, &shared, static_cast<unsigned>(threads < tasks ? threads : tasks), 0);
    } else {
        body(&shared);
    }
}
