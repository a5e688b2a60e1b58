// The search for candidates with AVX-512 VNNI and VBMI2, which some processors with AVX-512 have and others have not.
#pragma once

#include <cstdint>

struct CandidateCode {
    // As `find_candidates` and `list_candidates` of candidates.h.
    void (*find)(uint64_t* bits, const int32_t* rows, const int32_t* slots, int64_t quanta, int32_t slack,
                 const int32_t* most, int32_t groups, int32_t panels);
    int32_t (*list)(int32_t* start, uint8_t* place, const uint64_t* bits, const int32_t* seen, int32_t count);
};

// Null where the processor lacks the instructions, or a test turned them off.
const CandidateCode* vnni_candidates();

// Whether tests allow these instructions, and whether the processor has VNNI for 256 bits.
bool vnni_allowed();
bool has_avx_vnni();
