// Candidates: a cheap product of small integers finds the pairs of a tile that may have a positive score.
//
// A row is (scale q_i, row bias, 1), a slot (k_j, 1, key bias), so that the score is their product and only its sign
// matters. Each of them is scaled to a length of LENGTH and cut to whole numbers of 16 bits, which a processor multiplies
// twice as fast as floats. Both together are off by less than `slack`, so what comes out below -slack is not positive,
// in float32 either; all other pairs are candidates, whose scores are then computed in float32. What is not finite, or
// too large or too small to be scaled, is cut to zeros: a candidate. So a poor guess costs time and changes no result.
//
// Without such instructions the numbers remain floats of length 1.
#pragma once

#if defined(HAS_AVX512) || defined(HAS_AVX2)
#define SHORT_CANDIDATES 1
using Quantum = int32_t;  // two numbers of 16 bits
constexpr int64_t NUMBERS = 2;
constexpr float LENGTH = 32000.0f;
#else
#define SHORT_CANDIDATES 0
using Quantum = float;
constexpr int64_t NUMBERS = 1;
constexpr float LENGTH = 1.0f;
#endif

// Of one read: how long rows and slots are, and by what their biases are divided to be no longer than the rest of them.
struct CandidateScale {
    int64_t width, quanta;
    bool biased;
    float row_bias, key_bias;  // the numbers that stand for 1 in a slot and in a row

    CandidateScale(int64_t width_, bool biased_, float keys, float queries)
        : width(width_), quanta((width_ + (biased_ ? 2 : 0) + NUMBERS - 1) / NUMBERS), biased(biased_),
          row_bias(keys > 1e-6f && keys < 1e6f ? keys : 1.0f),
          key_bias(queries > 1e-6f && queries < 1e6f ? queries : 1.0f) {}

    // Cut numbers are off by up to 1 (1.1 with the rounding of their scale), and float32 sums by 2^-24 a step.
    float slack() const {
        const float numbers = static_cast<float>(width + 2);
        const float sums = (numbers + 10.0f) * 1.3e-7f * LENGTH * LENGTH;
        return SHORT_CANDIDATES ? 2.25f * LENGTH * std::sqrt(numbers) + 2.0f * numbers + sums : 4.0f * sums;
    }
};

// One row or slot, `times` its `width` numbers and two more, at `to`, which has room for `quanta`.
inline void quantize(Quantum* to, const float* from, float times, float first, float second, const CandidateScale& scale) {
    int64_t c = 0;
    float sum = times * times * dot(from, from, scale.width);
    if (scale.biased) sum += first * first + second * second;
    const float length = sum > 1e-30f && sum < 1e30f ? LENGTH / std::sqrt(sum) : 0.0f, factor = times * length;
#if SHORT_CANDIDATES
    using Number = int16_t;
    using Shorts = int16_t __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
    Number* numbers = reinterpret_cast<Number*>(to);
    const auto put = [&](int64_t at, float x) { numbers[at] = static_cast<Number>(x); };
#else
    float* numbers = to;
    const auto put = [&](int64_t at, float x) { numbers[at] = x; };
#endif
    std::memset(to, 0, sizeof(Quantum) * scale.quanta);
    if (!(length > 0.0f)) return;
#if SHORT_CANDIDATES
    for (c = 0; c + LANES <= scale.width; c += LANES)
        *reinterpret_cast<Shorts*>(numbers + c) =
            __builtin_convertvector(__builtin_convertvector(load(from + c) * factor, Integers), Shorts);
#else
    for (c = 0; c + LANES <= scale.width; c += LANES) store(numbers + c, load(from + c) * factor);
#endif
    for (; c < scale.width; ++c) put(c, from[c] * factor);
    if (scale.biased) put(scale.width, first * length), put(scale.width + 1, second * length);
}

// Slots as panels: [panel of WIDTH slots][quantum][WIDTH], zeros past the last slot.
inline void quantize_slots(Quantum* to, Quantum* one, const Tensor4& keys, const float* key_bias, int64_t b, int64_t h,
                           const int32_t* slots, int32_t count, const CandidateScale& scale) {
    std::memset(to, 0, sizeof(Quantum) * round_up(count, WIDTH) * scale.quanta);
    for (int32_t j = 0; j < count; ++j) {
        const float bias = key_bias == nullptr ? 0.0f : key_bias[slots[j]] / scale.key_bias;
        quantize(one, keys.at(b, h, slots[j]), 1.0f, scale.row_bias, bias, scale);
        Quantum* column = to + j / WIDTH * WIDTH * scale.quanta + j % WIDTH;
        for (int64_t p = 0; p < scale.quanta; ++p) column[p * WIDTH] = one[p];
    }
}

// Sums of a block of products that start at `slack`: negative where a pair is no candidate.
struct CandidateBlock {
#if SHORT_CANDIDATES
    Integers at[ROWS][2];
    static INLINE Integers start(float slack) { return static_cast<int32_t>(slack) - Integers{}; }
#if LANES == 16
    using Wide = __m512i;
    static INLINE Integers products(Integers a, Integers b) {
        return reinterpret_cast<Integers>(_mm512_madd_epi16(reinterpret_cast<Wide>(a), reinterpret_cast<Wide>(b)));
    }
    static INLINE uint32_t positive(Integers x) { return ~_mm512_movepi32_mask(reinterpret_cast<Wide>(x)) & 0xffffu; }
#else
    using Wide = __m256i;
    static INLINE Integers products(Integers a, Integers b) {
        return reinterpret_cast<Integers>(_mm256_madd_epi16(reinterpret_cast<Wide>(a), reinterpret_cast<Wide>(b)));
    }
    static INLINE uint32_t positive(Integers x) { return ~_mm256_movemask_ps(reinterpret_cast<__m256>(x)) & 0xffu; }
#endif
    static INLINE Integers load_quanta(const Quantum* from) {
        using LooseIntegers = int32_t __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
        return *reinterpret_cast<const LooseIntegers*>(from);
    }
#else
    Vector at[ROWS][2];
    static INLINE Vector start(float slack) { return filled(slack); }
    static INLINE Vector products(Vector a, Vector b) { return a * b; }
    static INLINE uint32_t positive(Vector x) {
        uint32_t bits = 0;
        for (int lane = 0; lane < LANES; ++lane) bits |= static_cast<uint32_t>(!(x[lane] < 0.0f)) << lane;
        return bits;
    }
    static INLINE Vector load_quanta(const Quantum* from) { return load(from); }
#endif
};

constexpr int32_t BIT_WORDS = PAIR_SLOTS / 64;

// Bits of the candidates of a tile: BIT_WORDS words a row. Blocks that no row sees are left out; `most` is the number
// of slots that any row of a group of ROWS sees.
inline void find_candidates(uint64_t* bits, const Quantum* rows, const Quantum* slots, int64_t quanta, float slack,
                            const int32_t* most, int32_t groups, int32_t panels) {
#if defined(HAS_AVX512)
    if (const FindCandidates find = vnni_find())
        return find(bits, rows, slots, quanta, static_cast<int32_t>(slack), most, groups, panels);
#endif
    std::memset(bits, 0, sizeof(uint64_t) * BIT_WORDS * groups * ROWS);
    for (int32_t panel = 0; panel < panels; ++panel)
        for (int32_t group = 0; group < groups; ++group) {
            if (most[group] <= panel * WIDTH) continue;
            CandidateBlock block;
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; ++r) block.at[r][0] = block.at[r][1] = CandidateBlock::start(slack);
            const Quantum* a = rows + group * ROWS * quanta;
            const Quantum* b = slots + panel * WIDTH * quanta;
#pragma GCC unroll 4
            for (int64_t p = 0; p < quanta; ++p, ++a, b += WIDTH) {
                const auto left = CandidateBlock::load_quanta(b), right = CandidateBlock::load_quanta(b + LANES);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r) {
                    const auto x = a[r * quanta] - decltype(left){};
                    block.at[r][0] += CandidateBlock::products(x, left);
                    block.at[r][1] += CandidateBlock::products(x, right);
                }
            }
            const int32_t word = panel * WIDTH / 64, shift = panel * WIDTH % 64;
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; ++r) {
                const uint64_t found = CandidateBlock::positive(block.at[r][0]) |
                                       static_cast<uint64_t>(CandidateBlock::positive(block.at[r][1])) << LANES;
                bits[(group * ROWS + r) * BIT_WORDS + word] |= found << shift;
            }
        }
}

// The same candidates as a list by row, of the slots that each row sees; 64 more places are zero. How many they are.
inline int32_t list_candidates(int32_t* start, uint8_t* place, const uint64_t* bits, const int32_t* seen, int32_t count) {
#if defined(HAS_AVX512)
    if (const ListCandidates list = vbmi_list()) return list(start, place, bits, seen, count);
#endif
    int32_t found = 0;
    for (int32_t i = 0; i < count; ++i, bits += BIT_WORDS) {
        start[i] = found;
        for (int32_t word = 0; word * 64 < seen[i]; ++word) {
            const int32_t left = seen[i] - word * 64;
            uint64_t rest = left < 64 ? bits[word] & ((uint64_t{1} << left) - 1) : bits[word];
            const int32_t here = __builtin_popcountll(rest);
            // Eight at a time, so that a processor foresees the end; what is too much is overwritten.
            for (int32_t first = 0; first < here; first += 8)
#pragma GCC unroll 8
                for (int32_t e = first; e < first + 8; ++e, rest &= rest - 1)
                    place[found + e] = static_cast<uint8_t>(word * 64 + __builtin_ctzll(rest | uint64_t{1} << 63));
            found += here;
        }
    }
    start[count] = found;
    std::memset(place + found, 0, 64);
    return found;
}
