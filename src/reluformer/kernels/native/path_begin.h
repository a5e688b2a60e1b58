// Everything from outside comes before a path chooses its instructions, so that no shared inline
// function is compiled with instructions that the machine may not have.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>

#include "paths.h"
#include "problem.h"
#include "rows.h"
#include "scratch.h"
