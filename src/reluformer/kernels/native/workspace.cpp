#include "workspace.h"

#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace {

constexpr int64_t KEPT_FLOATS = 4 << 20;  // at most 16 MB in each of
constexpr size_t KEPT_BLOCKS = 4;         // so many blocks

struct Block {
    float* memory;
    int64_t size;
};

std::mutex guard;
std::vector<Block> kept;

}  // namespace

Workspace::Workspace(int64_t count, int64_t floats) : floats_((floats + 15) / 16 * 16), size_(count * floats_) {
    {
        const std::lock_guard<std::mutex> lock(guard);
        for (Block& block : kept)
            if (block.size >= size_ && block.size <= 4 * size_) {
                memory_ = block.memory;
                size_ = block.size;
                std::swap(block, kept.back());
                kept.pop_back();
                return;
            }
    }
    memory_ = static_cast<float*>(::operator new(sizeof(float) * size_, std::align_val_t(64)));
}

Workspace::~Workspace() {
    if (size_ <= KEPT_FLOATS) {
        const std::lock_guard<std::mutex> lock(guard);
        if (kept.size() == KEPT_BLOCKS) {
            ::operator delete(kept.front().memory, std::align_val_t(64));
            kept.erase(kept.begin());
        }
        kept.push_back({memory_, size_});
        return;
    }
    ::operator delete(memory_, std::align_val_t(64));
}
