#include "bytes.h"

#include <cstring>

#include "problem.h"
#include "vnni.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#define INLINE inline __attribute__((always_inline))

namespace {

// Four lanes of the compiler's own vectors: what every processor has. The emulated sixteen lanes are the same.
namespace byte_portable {
#define LANES 4
using Integers = int32_t __attribute__((vector_size(4 * LANES)));
#include "bytes_plain.h"
#include "bytes_body.h"
#undef LANES
constexpr ByteCode CODE{product, sparse_product};
}  // namespace byte_portable

#if defined(RELUFORMER_EMULATE)
namespace byte_emulated {
#define LANES 16
using Integers = int32_t __attribute__((vector_size(4 * LANES)));
#include "bytes_plain.h"
#include "bytes_body.h"
#undef LANES
constexpr ByteCode CODE{product, sparse_product};
}  // namespace byte_emulated
#endif

#if defined(__x86_64__)
#define BYTES_AVX2 1
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace byte_avx2 {
#define LANES 8
using Integers = int32_t __attribute__((vector_size(4 * LANES)));
#include "bytes_avx2.h"
#include "bytes_body.h"
#undef LANES
constexpr ByteCode CODE{product, sparse_product};
}  // namespace byte_avx2
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma,avxvnni"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,avxvnni")
#endif
namespace byte_avx_vnni {
#define LANES 8
#define BYTES_DOT 1
using Integers = int32_t __attribute__((vector_size(4 * LANES)));
#include "bytes_avx2.h"
#include "bytes_body.h"
#undef BYTES_DOT
#undef LANES
constexpr ByteCode CODE{product, sparse_product};
}  // namespace byte_avx_vnni
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,avx2,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,avx2,fma")
#endif
namespace byte_vnni {
#define LANES 16
using Integers = int32_t __attribute__((vector_size(4 * LANES)));
#include "bytes_vnni.h"
#include "bytes_body.h"
#undef LANES
constexpr ByteCode CODE{product, sparse_product};
}  // namespace byte_vnni
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

}  // namespace

const ByteCode& byte_code(int64_t path) {
#if defined(BYTES_AVX2)
    static const bool wide = [] {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl");
    }();
    static const bool narrow = has_avx_vnni();
    if (path == AVX512 && wide && vnni_allowed()) return byte_vnni::CODE;
#if defined(RELUFORMER_EMULATE)
    if (path == AVX512) return byte_emulated::CODE;
#endif
    if (path >= AVX2) return narrow && vnni_allowed() ? byte_avx_vnni::CODE : byte_avx2::CODE;
#endif
    return byte_portable::CODE;
}
