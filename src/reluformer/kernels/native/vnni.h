// The search for candidates with AVX-512 VNNI and VBMI2, which some processors with AVX-512 have and others have not.
// Cascade Lake, for one, has the former alone.
#pragma once

#include <cstdint>

// `find_candidates` of candidates.h with AVX-512 VNNI, `list_candidates` with AVX-512 VBMI2. Null where the processor lacks
// the instructions, or a test turned them off.
using FindCandidates = void (*)(uint64_t* bits, const int32_t* rows, const int32_t* slots, int64_t quanta, int32_t slack,
                                const int32_t* most, int32_t groups, int32_t panels);
using ListCandidates = int32_t (*)(int32_t* start, uint8_t* place, const uint64_t* bits, const int32_t* seen, int32_t count);
FindCandidates vnni_find();
ListCandidates vbmi_list();

// Whether tests allow VNNI, and whether the processor has it for 256 bits.
bool vnni_allowed();
bool has_avx_vnni();
