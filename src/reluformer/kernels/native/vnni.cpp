#include "vnni.h"

#include "pair_list.h"

namespace {
enum Allowed { NOTHING, FINDING, EVERYTHING };
int64_t allowed = EVERYTHING;
}  // namespace

bool vnni_allowed() { return allowed != NOTHING; }

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define VNNI __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512vnni")))
#define VBMI2 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,popcnt,bmi2")))

namespace {

constexpr int32_t ROWS = 6, WIDTH = 32, WORDS = PAIR_SLOTS / 64;  // as in product.h with sixteen lanes

VNNI void find(uint64_t* bits, const int32_t* rows, const int32_t* slots, int64_t quanta, int32_t slack,
               const int32_t* most, int32_t groups, int32_t panels) {
    for (int32_t i = 0; i < groups * ROWS * WORDS; ++i) bits[i] = 0;
    for (int32_t panel = 0; panel < panels; ++panel)
        for (int32_t group = 0; group < groups; ++group) {
            if (most[group] <= panel * WIDTH) continue;
            __m512i sums[ROWS][2];
#pragma GCC unroll 6
            for (int r = 0; r < ROWS; ++r) sums[r][0] = sums[r][1] = _mm512_set1_epi32(slack);
            const int32_t* a = rows + group * ROWS * quanta;
            const int32_t* b = slots + panel * WIDTH * quanta;
#pragma GCC unroll 4
            for (int64_t p = 0; p < quanta; ++p, ++a, b += WIDTH) {
                const __m512i left = _mm512_loadu_si512(b), right = _mm512_loadu_si512(b + 16);
#pragma GCC unroll 6
                for (int r = 0; r < ROWS; ++r) {
                    const __m512i x = _mm512_set1_epi32(a[r * quanta]);
                    sums[r][0] = _mm512_dpwssd_epi32(sums[r][0], x, left);
                    sums[r][1] = _mm512_dpwssd_epi32(sums[r][1], x, right);
                }
            }
            const int32_t word = panel * WIDTH / 64, shift = panel * WIDTH % 64;
#pragma GCC unroll 6
            for (int r = 0; r < ROWS; ++r) {
                const uint32_t low = _mm512_movepi32_mask(sums[r][0]), high = _mm512_movepi32_mask(sums[r][1]);
                bits[(group * ROWS + r) * WORDS + word] |= static_cast<uint64_t>(~(low | high << 16)) << shift;
            }
        }
}

VBMI2 int32_t list(int32_t* start, uint8_t* place, const uint64_t* bits, const int32_t* seen, int32_t count) {
    alignas(64) uint8_t numbers[64];
    for (int i = 0; i < 64; ++i) numbers[i] = static_cast<uint8_t>(i);
    int32_t found = 0;
    for (int32_t i = 0; i < count; ++i) {
        start[i] = found;
        __m512i places = _mm512_load_si512(numbers);
        for (int32_t word = 0; word < WORDS; ++word) {
            const int32_t left = seen[i] - word * 64;
            const uint64_t here = left <= 0 ? 0 : _bzhi_u64(bits[i * WORDS + word], left < 64 ? left : 64);
            _mm512_storeu_si512(place + found, _mm512_maskz_compress_epi8(here, places));
            found += static_cast<int32_t>(_mm_popcnt_u64(here));
            places = _mm512_add_epi8(places, _mm512_set1_epi8(64));
        }
    }
    start[count] = found;
    _mm512_storeu_si512(place + found, _mm512_setzero_si512());
    return found;
}

}  // namespace

FindCandidates vnni_find() {
    static const bool supported = [] {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx512vnni") != 0;
    }();
    return supported && allowed >= FINDING ? find : nullptr;
}

ListCandidates vbmi_list() {
    static const bool supported = [] {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
               __builtin_cpu_supports("bmi2");
    }();
    return supported && allowed == EVERYTHING ? list : nullptr;
}

bool has_avx_vnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
}
#else
FindCandidates vnni_find() { return nullptr; }

ListCandidates vbmi_list() { return nullptr; }

bool has_avx_vnni() { return false; }
#endif

// For tests: 0 allows neither VNNI nor VBMI2, 1 VNNI alone, 2 both.
extern "C" __attribute__((visibility("default"))) void reluformer_allow_vnni(int64_t allow) { allowed = allow; }
