// Buffers of one thread, carved out of one allocation that is made before any thread starts.
#pragma once

#include <cstdint>

class Scratch {
  public:
    // Without memory it only counts.
    explicit Scratch(float* memory = nullptr) : memory_(memory) {}

    // A buffer of `count` floats that starts on a cache line.
    float* take(int64_t count) {
        float* taken = memory_ == nullptr ? nullptr : memory_ + used_;
        used_ += (count + 15) / 16 * 16;
        return taken;
    }
    int64_t used() const { return used_; }

  private:
    float* memory_;
    int64_t used_ = 0;
};
