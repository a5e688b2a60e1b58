// Memory for the tasks of one call. Fresh memory costs a page fault every 4 kB, so some of it is kept for the next call.
#pragma once

#include <cstdint>

class Workspace {
  public:
    // `count` stretches of `floats` floats, each on a cache line of its own. Throws std::bad_alloc.
    Workspace(int64_t count, int64_t floats);
    ~Workspace();
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;

    int64_t step() const { return floats_; }
    float* of(int64_t i) const { return memory_ + i * floats_; }

  private:
    int64_t floats_, size_;
    float* memory_;
};
