"""Rules of centred scores, for implementations that never see a whole row of scores.

    s_ij - level_i  =  scale q_i . k_j + rows_i + keys_j        rows_i = -level_i - (what else is common to the row)

So the level of a row is a bias of the row, and what remains is a rule divided by its row sum.
"""

from __future__ import annotations

from torch import Tensor

from reluformer.kernels.bias import Bias, RowKeyBias, parts
from reluformer.kernels.moments import row_moments
from reluformer.kernels.visibility import Visibility
from reluformer.rules import RowCentered


def centring_bias(
    q: Tensor, k: Tensor, rule: RowCentered, visibility: Visibility, bias: Bias | None, scale: float
) -> Bias | None:
    """The bias with which `rule.core` reads as `rule` does.

    None where a dense mask or bias asks for dense scores, or the rule for weights of its own.
    """
    split = parts(bias, visibility.slots)
    if visibility.mask is not None or split is None or type(rule).weights is not RowCentered.weights:
        return None
    keys = split[1]
    mean, variance = row_moments(q, k, keys, visibility, scale, rule.spread != 0)
    rows = -rule.level(mean, variance, visibility.counts().clamp_min(1).to(mean.dtype))
    return rows.unsqueeze(-1) if keys is None else RowKeyBias(rows, keys)
