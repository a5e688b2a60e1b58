// What the drivers share: threads as torch's runtime would give them, and numbers that are the same every time.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

inline void launch(void (*body)(void*), void* data, unsigned threads, unsigned) {
    std::vector<std::thread> running;
    for (unsigned i = 1; i < threads; ++i) running.emplace_back(body, data);
    body(data);
    for (std::thread& thread : running) thread.join();
}

inline float draw() {  // uniform in [-1, 1)
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
}
