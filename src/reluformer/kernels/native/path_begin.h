// Everything from outside comes before a path chooses its instructions, so that no shared inline
// function is compiled with instructions that the machine may not have.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "bytes.h"
#include "pair_list.h"
#include "paths.h"
#include "problem.h"
#include "rows.h"
#include "scratch.h"
#include "vnni.h"
