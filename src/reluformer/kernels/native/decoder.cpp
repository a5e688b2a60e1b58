// The C interface of decoding: weights laid out once, one position of all beams, the best of what may follow.
#include <new>

#include "decoder.h"
#include "parallel.h"
#include "paths.h"
#include "workspace.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int64_t reluformer_panel_floats(int64_t path, int64_t in, int64_t out) {
    return path_table(path).panel_floats(in, out);
}

EXPORT void reluformer_pack_linear(int64_t path, float* to, const float* weight, int64_t in, int64_t out) {
    path_table(path).pack_linear(to, weight, in, out);
}

// Threads divide the sources among themselves: one parallel region a position, and nobody waits within it.
// 0, or 1 where memory ran out.
EXPORT int64_t reluformer_decode(const Decoder* decoder, const Position* position) {
    const PathTable& path = path_table(decoder->path);
    const int64_t batch = position->batch, parts = batch < position->threads ? batch : position->threads;
    if (parts == 0) return 0;
    try {
        const Workspace memory(parts, path.decode_floats(*decoder, *position, (batch + parts - 1) / parts));
        for_each_task(launcher(), parts, parts, [&](int64_t part, int64_t thread) {
            path.decode(*decoder, *position, memory.of(thread), part * batch / parts, (part + 1) * batch / parts);
        });
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

EXPORT int64_t reluformer_decoder_size() { return sizeof(Decoder); }

EXPORT int64_t reluformer_position_size() { return sizeof(Position); }

// values, places: (count, k), of each of the `count` rows of `size` numbers.
EXPORT void reluformer_best(int64_t path, const float* rows, int64_t count, int64_t size, int64_t k, float* values,
                            int64_t* places, int64_t threads) {
    const int64_t few = 1 << 19;  // numbers that are looked at before a second thread could wake up
    const int64_t parts = count * size < few ? 1 : threads;
    for_each_task(launcher(), parts, parts, [&](int64_t part, int64_t) {
        for (int64_t row = part * count / parts; row < (part + 1) * count / parts; ++row)
            path_table(path).best_of_row(rows + row * size, size, k, values + row * k, places + row * k);
    });
}
