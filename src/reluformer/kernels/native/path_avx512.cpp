// Sixteen lanes. With RELUFORMER_EMULATE the compiler makes them of shorter ones, so that any processor can test them.
#include "path_begin.h"
#if defined(__x86_64__)
#if defined(RELUFORMER_EMULATE)
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,bmi,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,bmi,bmi2,popcnt")
#endif
#define LANES 16
#if !defined(RELUFORMER_EMULATE)
#define HAS_AVX512 1  // said here, as not every compiler defines __AVX512F__ after a pragma
#endif
#define RELUFORMER_PATH path_avx512
#define RELUFORMER_TABLE AVX512_PATH
#include "path_body.h"
#if defined(__clang__) && !defined(RELUFORMER_EMULATE)
#pragma clang attribute pop
#endif
#endif
