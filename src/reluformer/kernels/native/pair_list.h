// The list of nonzero pairs that a forward pass keeps for the backward pass, in memory of the caller.
//
//   int64 used | int64 offset of each tile | records
//
// A tile is PAIR_ROWS queries x PAIR_SLOTS visible slots of one head. Its record holds the number of pairs of each row
// (uint8), what the backward pass needs of each pair (float32), and the pair's slot within the tile (uint8): five bytes
// a pair. A tile that did not fit has offset -1: the backward pass computes the same pairs again. Where records lie
// depends on which thread was first; what they hold does not.
#pragma once

#include <cstdint>

#include "problem.h"

constexpr int32_t PAIR_ROWS = 192;   // at most 255, as counts are bytes
constexpr int32_t PAIR_SLOTS = 192;  // at most 256, as slots are bytes
constexpr int32_t PAIRS = PAIR_ROWS * PAIR_SLOTS;

class PairList {
  public:
    PairList(const Problem& problem, const Sparse& sparse)
        : row_tiles_((problem.queries + PAIR_ROWS - 1) / PAIR_ROWS),
          slot_tiles_((problem.slots + PAIR_SLOTS - 1) / PAIR_SLOTS),
          tiles_(problem.batches * problem.heads * row_tiles_ * slot_tiles_),
          heads_(problem.heads),
          memory_(sparse.list),
          bytes_(sparse.bytes) {
        if (memory_ == nullptr || bytes_ < index_bytes()) memory_ = nullptr;
    }

    int64_t index_bytes() const { return 8 * (tiles_ + 1); }
    static int64_t record_bytes(int64_t pairs) { return (PAIR_ROWS + 5 * pairs + 7) / 8 * 8; }

    // Whether there is a list at all, as there is where a backward pass follows.
    bool kept() const { return memory_ != nullptr; }

    // Before a forward pass: nothing is kept.
    void clear() const {
        if (memory_ == nullptr) return;
        *used() = index_bytes();
        for (int64_t tile = 0; tile < tiles_; ++tile) offsets()[tile] = -1;
    }

    // Room for the record of a tile; null where there is none.
    uint8_t* reserve(int64_t b, int64_t h, int64_t row, int64_t slot, int64_t pairs) const {
        if (memory_ == nullptr) return nullptr;
        const int64_t size = record_bytes(pairs);
        int64_t at = __atomic_load_n(used(), __ATOMIC_RELAXED);
        do {
            if (at + size > bytes_) return nullptr;
        } while (!__atomic_compare_exchange_n(used(), &at, at + size, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        offsets()[tile(b, h, row, slot)] = at;
        return memory_ + at;
    }

    // The record of the tile that begins at this query and visible slot; null where it was not kept.
    const uint8_t* find(int64_t b, int64_t h, int64_t row, int64_t slot) const {
        if (memory_ == nullptr) return nullptr;
        const int64_t offset = offsets()[tile(b, h, row, slot)];
        return offset < 0 ? nullptr : memory_ + offset;
    }

    int64_t used_bytes() const { return memory_ == nullptr ? 0 : *used(); }

  private:
    int64_t* used() const { return reinterpret_cast<int64_t*>(memory_); }
    int64_t* offsets() const { return used() + 1; }
    int64_t tile(int64_t b, int64_t h, int64_t row, int64_t slot) const {
        return ((b * heads_ + h) * row_tiles_ + row / PAIR_ROWS) * slot_tiles_ + slot / PAIR_SLOTS;
    }

    int64_t row_tiles_, slot_tiles_, tiles_, heads_;
    uint8_t* memory_;
    int64_t bytes_;
};

// One read with sparse rows: what was asked for, the list, and what all tasks add up.
struct SparseRun {
    int64_t mode;
    int64_t sequence;  // queries of one sequence; a head may hold several, one after the other
    PairList list;
    SparseReport* report;  // never null

    void add(int64_t SparseReport::*what, int64_t count) const {
        __atomic_fetch_add(&(report->*what), count, __ATOMIC_RELAXED);
    }
};
