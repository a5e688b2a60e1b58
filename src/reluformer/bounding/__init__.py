"""The exact range of a read when each score lies in an interval.

The scores of a row lie in a box, low_j <= s_j <= high_j, and each value c_j is known or lies in an interval of its own.
`bounds` returns the least and the largest read, one dimension of the values at a time.

Rules whose weights are divided by their row sum. With phi_j = phi(s_j) >= 0 and delta >= 0 the read is

    f(s) = sum_j phi_j c_j / (delta + sum_j phi_j)

For a fixed sum in the denominator it is linear in each phi_j, so both ends lie at a vertex of the box. At the minimum m
a slot with c_j < m has its largest phi and the others their least. After sorting c the minimum is therefore

    min over k = 0 ... n of   (sum_{j<=k} phi_j^max c_j + sum_{j>k} phi_j^min c_j)
                            / (delta + sum_{j<=k} phi_j^max + sum_{j>k} phi_j^min)

which prefix sums give in O(n log n). Softmax is phi = e^s and delta = 0, where it was first shown (Vertex-Softmax,
arXiv 2605.10974). As phi >= 0, an interval for a value counts with its lower end at the minimum.

Pointwise rules are separable: each term w_j c_j lies between the least and the largest of four products, and the sum
of these is exact. A weight is least at one end of its interval or at a turning point of the rule, as that of GELU at
-0.75.

Rules of centred scores (`relu_exp`) move their level with the scores. Each score less its level then lies in an
interval that follows from intervals for mean and deviation of the row. The formulas above, applied to these intervals,
are sound and not exact.

All sums are computed in float64. What rounding may do to them is taken off the lower end and added to the upper one.
"""

from __future__ import annotations

from reluformer.bounding.read_range import ReadBounds, bounds
from reluformer.bounding.weight_intervals import turning_points

__all__ = ["ReadBounds", "bounds", "turning_points"]
