// Eight lanes.
#include "path_begin.h"
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define LANES 8
#define HAS_AVX2 1  // said here, as not every compiler defines __AVX2__ after a pragma
#define RELUFORMER_PATH path_avx2
#define RELUFORMER_TABLE AVX2_PATH
#include "path_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
