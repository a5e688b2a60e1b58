"""Rules: how the scores of one query become weights over the slots it may see.

A rule is frozen data. A *pointwise* rule looks at one score at a time (and at n, the
number of visible slots); a *row-wise* rule looks at the whole row.

    rule          weight of slot j                        output norm
    softmax       exp(s_j) / sum_l exp(s_l)
    softmax_ln    as softmax                              LayerNorm
    relu          ReLU(s_j) / (gamma * sqrt(n / 2))
    relu_plain    ReLU(s_j)
    relu_seqlen   ReLU(s_j) / n^alpha
    pointwise_seqlen   h(s_j) / n^alpha, h one of relu, relu2, gelu, softplus, identity, relu6, sigmoid
    relu2         ReLU(s_j)^2 / (gamma * sqrt(3 n / 2))
    rela          as relu_plain                           gated RMS norm
    sigmoid       sigmoid(s_j - log n)
    relu_norm     ReLU(s_j) / (delta + sum_l ReLU(s_l))
    relu_exp      ReLU(e^x_j - 1) / (delta + sum_l ReLU(e^x_l - 1)), x_j = s_j - level of the row
    relu_chance   as relu_exp, with the level at a share of what the best of n chance scores reaches
    relu_rest     (ReLU(e^x_j - 1) + rest / n) / (rest + sum_l ReLU(e^x_l - 1)), rest ~ sum_l min(e^x_l, 1)
    softpick      ReLU(e^s_j - 1) / (epsilon + sum_l |e^s_l - 1|)
    scalable_softmax   exp(c log n s_j) / sum_l exp(c log n s_l)
    softmax1      exp(s_j) / (1 + sum_l exp(s_l)), or exp(sink of the head) instead of 1
    tra           ReLU(s_j - beta sqrt(2 log n))^p / d^(p/2), s_j = sqrt(d) cos(q, k_j)
    polynomial    s_j^p / sqrt(n)
    sparsemax     Euclidean projection of s onto the simplex
    entmax15      1.5-entmax of s

The output norm is only a name here: the layer owns its parameters and applies it over
the concatenated heads. A rule of your own is one function, and its default arguments are options of the rule:

    @rules.register("gelu_mean")
    def gelu_mean(scores, n, power=1.0):
        return torch.nn.functional.gelu(scores) / n**power

    rf.read(q, k, v, rule={"name": "gelu_mean", "power": 0.5})

A rule that states its formula is read by every kernel that knows it (`rules.Formula`):

    @rules.register("relu_07")
    @dataclass(frozen=True)
    class Relu07(rules.Formulated):
        def formula(self):
            return rules.Formula("relu", factor=1 / 3, exponent=0.7)
"""

from __future__ import annotations

from reluformer.rules.base import (
    Formulated,
    OutputNorm,
    Pointwise,
    RowCentered,
    RowNormalized,
    Rowwise,
    Rule,
    formula_of,
)
from reluformer.rules.builtin import (
    Entmax15,
    PointwiseSeqlen,
    Polynomial,
    RectifiedExp,
    Rela,
    Relu,
    Relu2,
    ReluChance,
    ReluExp,
    ReluNorm,
    ReluPlain,
    ReluRest,
    ReluSeqlen,
    ScalableSoftmax,
    Sigmoid,
    Softmax,
    Softmax1,
    SoftmaxLN,
    Softpick,
    Sparsemax,
    ThresholdRectified,
)
from reluformer.rules.formula import Activation, Formula, Level, rest_mass
from reluformer.rules.registry import ENTRY_POINT_GROUP, get, load_plugin, names, register, spec, unregister

__all__ = [
    "ENTRY_POINT_GROUP",
    "Activation",
    "Entmax15",
    "Formula",
    "Formulated",
    "Level",
    "OutputNorm",
    "Pointwise",
    "PointwiseSeqlen",
    "Polynomial",
    "RectifiedExp",
    "Rela",
    "Relu",
    "Relu2",
    "ReluChance",
    "ReluExp",
    "ReluNorm",
    "ReluPlain",
    "ReluRest",
    "ReluSeqlen",
    "RowCentered",
    "RowNormalized",
    "Rowwise",
    "Rule",
    "ScalableSoftmax",
    "Sigmoid",
    "Softmax",
    "Softmax1",
    "SoftmaxLN",
    "Softpick",
    "Sparsemax",
    "ThresholdRectified",
    "formula_of",
    "get",
    "load_plugin",
    "names",
    "register",
    "rest_mass",
    "spec",
    "unregister",
]
