// Four lanes: what every x86-64 and every 64-bit ARM processor has.
#include "path_begin.h"
#define LANES 4
#define RELUFORMER_PATH path_portable
#define RELUFORMER_TABLE PORTABLE_PATH
#include "path_body.h"
