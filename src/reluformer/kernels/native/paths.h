// What the code for one vector width offers. A task writes what no other task writes.
#pragma once

#include "problem.h"
#include "rows.h"

struct PathTable {
    // Floats of scratch memory for a forward task of so many queries.
    int64_t (*forward_floats)(const Problem&, int64_t queries);
    // The read of queries begin .. end of one head.
    void (*forward)(const Problem&, const Rows&, float* scratch, int64_t b, int64_t h, int64_t begin, int64_t end);
};

extern const PathTable PORTABLE_PATH;
#if defined(__x86_64__)
extern const PathTable AVX2_PATH, AVX512_PATH;
#endif
