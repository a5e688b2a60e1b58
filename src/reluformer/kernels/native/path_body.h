// The body of a path_*.cpp, after LANES, RELUFORMER_PATH and RELUFORMER_TABLE are set.
namespace RELUFORMER_PATH {
#include "vectors.h"
#include "product.h"
#include "activations.h"
#include "tiles.h"
#include "forward.h"
#include "values.h"
#include "few.h"
#include "backward.h"
#include "pairs.h"
#include "candidates.h"
#include "sparse_rows.h"
#include "capped_rows.h"
#include "sparse_forward.h"
#include "sparse_backward.h"
#include "moments.h"
#include "linear.h"
#include "beams.h"
#include "decode.h"
}  // namespace RELUFORMER_PATH

const PathTable RELUFORMER_TABLE = {
    RELUFORMER_PATH::forward_floats,  RELUFORMER_PATH::forward,
    RELUFORMER_PATH::few_floats,      RELUFORMER_PATH::few,
    RELUFORMER_PATH::weigh_values,
    RELUFORMER_PATH::backward_floats, RELUFORMER_PATH::query_gradient_floats,
    RELUFORMER_PATH::backward,        RELUFORMER_PATH::finish_query_gradient,
    RELUFORMER_PATH::sparse_forward_floats, RELUFORMER_PATH::sparse_forward,
    RELUFORMER_PATH::sparse_backward_floats, RELUFORMER_PATH::sparse_backward,
    RELUFORMER_PATH::moment_floats,   RELUFORMER_PATH::moments_forward,
    RELUFORMER_PATH::moments_backward,
    RELUFORMER_PATH::panel_floats,    RELUFORMER_PATH::pack_linear,
    RELUFORMER_PATH::pass_floats,     RELUFORMER_PATH::encode,
    RELUFORMER_PATH::source_slots,    RELUFORMER_PATH::decode,
    LANES,
};
