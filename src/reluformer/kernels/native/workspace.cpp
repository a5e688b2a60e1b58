#include "workspace.h"

#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace {

constexpr int64_t KEPT_FLOATS = 4 << 20;  // at most 16 MB in each of
constexpr size_t KEPT_BLOCKS = 4;         // so many blocks

void release(float* memory) { ::operator delete(memory, std::align_val_t(64)); }

struct Kept {
    struct Block {
        float* memory;
        int64_t size;
    };
    std::mutex guard;
    std::vector<Block> blocks;

    // A block that is large enough and not far too large; null where there is none.
    float* take(int64_t& size) {
        const std::lock_guard<std::mutex> lock(guard);
        for (Block& block : blocks)
            if (block.size >= size && block.size <= 4 * size) {
                float* memory = block.memory;
                size = block.size;
                std::swap(block, blocks.back());
                blocks.pop_back();
                return memory;
            }
        return nullptr;
    }

    void give(float* memory, int64_t size) {
        const std::lock_guard<std::mutex> lock(guard);
        if (blocks.size() == KEPT_BLOCKS) {
            release(blocks.front().memory);
            blocks.erase(blocks.begin());
        }
        blocks.push_back({memory, size});
    }

    ~Kept() {
        for (const Block& block : blocks) release(block.memory);
    }
} kept;

}  // namespace

Workspace::Workspace(int64_t count, int64_t floats)
    : floats_((floats + 15) / 16 * 16), size_(count * floats_), memory_(kept.take(size_)) {
    if (memory_ == nullptr)
        memory_ = static_cast<float*>(::operator new(sizeof(float) * size_, std::align_val_t(64)));
}

Workspace::~Workspace() {
    if (size_ <= KEPT_FLOATS) {
        kept.give(memory_, size_);
    } else {
        release(memory_);
    }
}
