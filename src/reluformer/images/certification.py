"""Certification: a proof that no small change of an image changes its class.

Each pixel of an image may change by at most epsilon, within 0 and 1. The whole model is run on the set of all such
images, and the least margin of the right class over each other class is bounded from below. If all are above zero, no
attack of this size exists.

Domain. `interval` keeps an interval for each value. `linear` keeps an affine function of the pixels and an interval
around it (`AffineForm`), so that the residual stream and linear layers lose nothing.

Reads. The scores of a row lie in a box, and the values of the slots in another. With f(s) = sum_j w_j(s) v_j at the
middle of the values,

    exact        f lies in `rf.bounds`, the exact range over the box
    elementwise  f lies in the range with each weight alone: the usual baseline
    lse          each weight of softmax has a linear upper and lower bound, by chords and tangents of exponentials and
                 of the logarithm of their sum (after Wei et al., 2023): the baseline of linear relaxations
    mixed        of softmax, the narrower of `exact` and of lines like those of `lse`, read by read
    best         the model is run with `exact`, `lse` and `mixed`; the largest margin counts, class by class

In the linear domain f is taken to first order in the scores. For softmax df/ds_j = w_j (v_j - f), and the range of that
over the box bounds the rest by the mean value theorem; for ReLU each weight has a strip of its own. The range of f goes
on beside this form as the box of the read, so what reads have in common is never dropped.

Everything is computed in float64, and a margin counts as positive from 1e-6 on. Models need `norm: affine` and no norm
of queries and keys, as these divide by what an attacker moves.

Shapes: T tokens, D width, H heads, d = D / H, K classes.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluformer import bounding, rules
from reluformer.errors import ArgumentError
from reluformer.images.affine import AffineForm, relu_strip
from reluformer.images.attack import check_epsilon, check_labels
from reluformer.images.dataset import LabelledImages
from reluformer.layers import AffineNorm, Attention, FeedForward, Sublayer
from reluformer.models.image_model import ImageModel
from reluformer.rules import Formula, Rule

Domain = Literal["interval", "linear"]
Reads = Literal["exact", "elementwise", "lse", "mixed", "best"]
LEAST_MARGIN = 1e-6
"""A margin below it is not counted; rounding in float64 is far smaller."""


@dataclass(frozen=True)
class Certification:
    """What is known about a model at one epsilon."""

    epsilon: float
    domain: Domain
    reads: Reads
    images: int
    accuracy: float
    """Share of images that are classified right as they are."""
    certified: float
    """Share of images that are classified right whatever an attacker of this size does."""
    mean_margin: float
    """Mean over the right images of the least margin that is proved, in units of logits."""
    seconds: float
    """For each image."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures as plain data."""
        return asdict(self)


def certify(
    model: ImageModel,
    split: LabelledImages,
    epsilon: float,
    *,
    domain: Domain = "linear",
    reads: Reads = "exact",
) -> Certification:
    """Certify the images of a split one by one.

    Args:
        model: a model with `norm: affine` and without `qk_norm` and `output_gate`.
        split: images and their classes.
        epsilon: the largest change of a pixel, from 0 to 1.
        domain: "interval" or "linear".
        reads: how the reads of attention are bounded: "exact", "elementwise", "lse", "mixed" or "best".

    Raises:
        ArgumentError: epsilon is out of range, the labels do not fit the images or the model, or no bound of this model
            is known.

    Example:
        >>> from reluformer.models.config import ImageConfig
        >>> model = ImageModel(ImageConfig(width=16, heads=2, layers=1, patch=14, norm="affine", qk_norm=False))
        >>> split = LabelledImages(torch.zeros(1, 1, 28, 28, dtype=torch.uint8), torch.tensor([0]))
        >>> certify(model, split, 1 / 255).images
        1
    """
    verifier = Verifier(model, domain, reads)
    check_epsilon("certify", epsilon)
    images = verifier.model.pixels(split.images)
    check_labels("certify", images, split.labels, verifier.model.config.classes)
    right, certified, margins = 0, 0, []
    began = time.perf_counter()
    for image, label in zip(images, split.labels.tolist(), strict=True):
        with torch.no_grad():
            is_right = int(verifier.model(image[None]).logits.argmax()) == label
        right += is_right
        if is_right:
            margin = float(verifier.margins(image, label, epsilon).min())
            certified += margin > LEAST_MARGIN
            margins.append(margin)
    count = len(split.labels)
    seconds = (time.perf_counter() - began) / count
    mean = sum(margins) / len(margins) if margins else math.nan
    return Certification(epsilon, domain, reads, count, right / count, certified / count, mean, seconds)


class Verifier:
    """Runs a model on all images within epsilon of one.

    Args:
        model: the model; a copy in float64 is used.
        domain: "interval" or "linear".
        reads: "exact", "elementwise", "lse", "mixed" or "best".

    Raises:
        ArgumentError: a part of the model has no known bound.
    """

    def __init__(self, model: ImageModel, domain: Domain = "linear", reads: Reads = "exact") -> None:
        for name, given, valid in (("domain", domain, ("interval", "linear")), ("reads", reads, _READS)):
            if given not in valid:
                raise ArgumentError(f"certify: {name} is {given!r}; valid: {', '.join(valid)}")
        _check_model(model, domain, reads)
        self.model = copy.deepcopy(model).double().eval()
        self.domain, self.reads = domain, reads

    @torch.no_grad()
    def margins(self, image: Tensor, label: int, epsilon: float) -> Tensor:
        """Returns a lower bound of the margin of the right class over each other class, (K - 1,).

        Args:
            image: (C, S, S), from 0 to 1.
            label: the right class.
            epsilon: the largest change of a pixel.
        """
        check_epsilon("certify", epsilon)
        image = self.model.pixels(image[None])[0]
        classes = self.model.config.classes
        if not 0 <= label < classes:
            raise ArgumentError(f"certify: label {label} is no class of the model, which has {classes}")
        found = [self._margins(image, label, epsilon, relaxation) for relaxation in self._relaxations()]
        return torch.stack(found).amax(0)

    def _relaxations(self) -> tuple[str, ...]:
        """Returns the ways to bound a read that the model is run with, one after the other."""
        if self.reads != "best":
            return (self.reads,)
        formula = rules.formula_of(self.model.config.attention)
        is_softmax = formula is not None and formula.is_softmax
        return ("exact", "lse", "mixed") if is_softmax and self.domain == "linear" else ("exact",)

    def _margins(self, image: Tensor, label: int, epsilon: float, relaxation: str) -> Tensor:
        """Returns the least margins (K - 1,) with one way to bound the reads."""
        low, high = (image - epsilon).clamp_min(0), (image + epsilon).clamp_max(1)
        state = self._embedded(AffineForm.around(low, high, linear=self.domain == "linear"))
        for block in self.model.encoder:
            for sublayer in (block.attention, block.ffn):
                assert isinstance(sublayer, Sublayer)
                state = state + self._sublayer(state, sublayer, relaxation)
        pooled = state[0] if self.model.config.pooling == "class" else state.mean(0)
        weight = self.model.output.weight
        others = torch.arange(weight.size(0)) != label
        difference = weight[label] - weight[others]
        return pooled.linear(*_after_norm(self.model.encoder_norm, difference, None)).low

    def _embedded(self, pixels: AffineForm) -> AffineForm:
        """Returns the tokens (T, D) of pixels (C, S, S), as `ImageModel.embed` does."""
        config = self.model.config
        p, across = config.patch, config.image_size // config.patch
        cut = (
            pixels.view(config.channels, across, p, across, p)
            .permute(1, 3, 0, 2, 4)
            .view(across**2, config.channels * p * p)
        )
        weight = self.model.patch.weight / config.pixel_deviation
        tokens = cut.linear(weight, self.model.patch.bias - config.pixel_mean * weight.sum(1))
        if self.model.class_token is not None:
            token = self.model.class_token[None]
            tokens = AffineForm(
                torch.cat([token, tokens.center]),
                torch.cat(
                    [tokens.coefficients.new_zeros(len(tokens.coefficients), *token.shape), tokens.coefficients], 1
                ),
                torch.cat([torch.zeros_like(token), tokens.radius]),
            )
        return tokens + self.model.position

    def _sublayer(self, state: AffineForm, sublayer: Sublayer, relaxation: str) -> AffineForm:
        """Returns what a memory adds to the residual stream (T, D)."""
        if isinstance(sublayer.layer, Attention):
            return self._attention(state, sublayer.norm, sublayer.layer, relaxation)
        return self._feed_forward(state, sublayer.norm, sublayer.layer)

    def _feed_forward(self, state: AffineForm, norm: nn.LayerNorm, layer: FeedForward) -> AffineForm:
        """Returns what a ReLU memory reads for each token."""
        scores = state.linear(*_after_norm(norm, layer.keys.weight, layer.keys.bias))
        return scores.relu().linear(layer.values.weight, layer.values.bias)

    def _attention(self, state: AffineForm, norm: nn.LayerNorm, layer: Attention, relaxation: str) -> AffineForm:
        """Returns what attention reads for each token (T, D)."""
        tokens, width = state.center.shape
        own = width // layer.heads
        query = state.linear(*_after_norm(norm, layer.query.weight, layer.query.bias))
        both = state.linear(*_after_norm(norm, layer.key_value.weight, layer.key_value.bias))
        queries = query.view(tokens, layer.heads, own).permute(1, 0, 2)
        keys, values = (both.view(tokens, 2, layer.heads, own).permute(1, 2, 0, 3)[i] for i in (0, 1))
        scores = queries.products(keys, own**-0.5)
        if layer.read.offset is not None:
            scores = scores + layer.read.offset[:, None, None]
        if layer.log_gamma is not None:  # a factor on the queries
            scores = scores.scaled(layer.inverse_gamma())
        read = self._read(layer.read.rule, scores, values, relaxation)
        return read.permute(1, 0, 2).view(tokens, width).linear(layer.output.weight, layer.output.bias)

    def _read(self, rule: Rule, scores: AffineForm, values: AffineForm, relaxation: str) -> AffineForm:
        """Returns the read (H, T, d) for scores (H, T, T) and values (H, T, d)."""
        elementwise = relaxation in ("elementwise", "lse")
        box = bounding.bounds(rule, *scores.ends, values.ends, elementwise=elementwise)
        if self.domain == "interval":
            none = box.lower.new_zeros(0, *box.lower.shape)
            return AffineForm((box.lower + box.upper) / 2, none, (box.upper - box.lower) / 2)
        formula = rules.formula_of(rule)
        if formula is not None and formula.is_softmax:
            if relaxation == "lse":
                moved, weights = _softmax_by_lines(scores, values.center, torch.zeros_like(values.center))
            else:
                moved, weights = _softmax_by_means(rule, scores, values.center, elementwise)
            if relaxation == "mixed":
                origin = torch.softmax(scores.center, -1) @ values.center
                moved = _narrower(moved, _softmax_by_lines(scores, values.center, origin)[0])
        elif formula is not None and formula.is_relu:
            moved, weights = _relu_by_strips(formula, scores, values.center)
        else:
            none = torch.zeros_like(values.coefficients)
            return AffineForm((box.lower + box.upper) / 2, none, (box.upper - box.lower) / 2)
        least, largest = weights
        middle, spread = (least + largest) / 2, (largest - least) / 2
        # sum_j w_j (v_j - its middle), with w_j taken at the middle of its range
        by_values = AffineForm(
            torch.zeros_like(values.center),
            middle @ values.coefficients,
            middle.abs() @ values.radius + spread @ values.reach,
        )
        return (moved + by_values).within(box.lower, box.upper)


_READS = ("exact", "elementwise", "lse", "mixed", "best")
Weights = tuple[Tensor, Tensor]
"""The least and the largest weights, (H, T, T)."""


def _check_model(model: ImageModel, domain: Domain, reads: Reads) -> None:
    config = model.config
    if config.norm != "affine":
        raise ArgumentError(
            f"certify: the model has norm={config.norm}, which divides by the deviation of a token; train one with "
            "model.norm=affine"
        )
    for name in ("qk_norm", "output_gate"):
        if getattr(config, name):
            raise ArgumentError(f"certify: no bound is known for {name}; train a model with model.{name}=false")
    if config.ffn.output_norm is not None or rules.formula_of(config.ffn) != Formula("relu"):
        raise ArgumentError(f"certify: the feed-forward rule is '{config.ffn.name}'; only relu_plain has a bound here")
    if config.attention.output_norm is not None:
        raise ArgumentError(f"certify: rule '{config.attention.name}' norms its read, and no bound of that is known")
    formula = rules.formula_of(config.attention)
    if reads in ("lse", "mixed") and not (domain == "linear" and formula is not None and formula.is_softmax):
        raise ArgumentError(f"certify: reads={reads} has lines for the weights of softmax; use it with domain=linear")


def _after_norm(norm: nn.Module, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns weight and bias of an affine norm followed by a linear layer, as one affine map."""
    assert isinstance(norm, AffineNorm)
    joined = weight * norm.weight
    moved = weight @ norm.bias
    return joined - joined.mean(1, keepdim=True), moved if bias is None else moved + bias


def _relu_by_strips(formula: Formula, scores: AffineForm, values: Tensor) -> tuple[AffineForm, Weights]:
    """Returns sum_j w_j v_j of known values with a strip around each weight, and the range of the weights."""
    factor = formula.row_factor(torch.tensor(float(values.size(1)), dtype=torch.float64))
    low, high = scores.ends
    slope, offset = (factor * part for part in relu_strip(low, high))
    moved = AffineForm(
        (slope * scores.center + offset) @ values,
        (slope * scores.coefficients) @ values,
        (slope * scores.radius + offset) @ values.abs(),
    )
    return moved, (factor * torch.relu(low), factor * torch.relu(high))


def _softmax_range(low: Tensor, high: Tensor) -> Weights:
    """Returns the range of each weight of softmax over a box of scores; a hair wider than it is, for rounding."""
    least, largest = (torch.exp(x) for x in _log_softmax_range(low, high))
    return least * (1 - 1e-9), (largest * (1 + 1e-9)).clamp_max(1)


def _log_softmax_range(low: Tensor, high: Tensor) -> Weights:
    """Returns the range of log w_j: s_j against the logarithm of the sum of the others' exponentials."""
    own = torch.eye(low.size(-1), dtype=torch.bool)
    if low.size(-1) == 1:
        return torch.zeros_like(low), torch.zeros_like(low)
    others = [x[..., None, :].masked_fill(own, -torch.inf).logsumexp(-1) for x in (high, low)]
    return F.logsigmoid(low - others[0]), F.logsigmoid(high - others[1])


def _softmax_by_means(rule: Rule, scores: AffineForm, values: Tensor, elementwise: bool) -> tuple[AffineForm, Weights]:
    """Returns sum_j w_j v_j of known values to first order in the scores, and the range of the weights.

    df / ds_j = w_j (v_j - f) lies between the products of the ranges of both factors.
    """
    low, high = scores.ends
    point = scores.center.clamp(low, high)
    least, largest = _softmax_range(low, high)
    read = bounding.bounds(rule, low, high, values, elementwise=elementwise)
    # (H, T, T, d): the value of a slot less the read of a query
    away_low = values[:, None] - read.upper[:, :, None]
    away_high = values[:, None] - read.lower[:, :, None]
    slopes = [weight[..., None] * away for weight in (least, largest) for away in (away_low, away_high)]
    slope_low, slope_high = torch.stack(slopes).aminmax(dim=0)
    slope, spread = (slope_low + slope_high) / 2, (slope_high - slope_low) / 2
    center = torch.softmax(point, -1) @ values + torch.einsum("hqk,hqkd->hqd", scores.center - point, slope)
    off_line = torch.einsum("hqk,hqkd->hqd", scores.reach_from(point), spread)
    moved = AffineForm(
        center,
        torch.einsum("ehqk,hqkd->ehqd", scores.coefficients, slope),
        torch.einsum("hqk,hqkd->hqd", scores.radius, slope.abs()) + off_line,
    )
    return moved, (least, largest)


def _softmax_by_lines(scores: AffineForm, values: Tensor, origin: Tensor) -> tuple[AffineForm, Weights]:
    """Returns sum_j w_j v_j of known values with a linear upper and lower bound of each weight, and their range.

    With y_j = s_j - lse(s), w_j = e^y_j lies below its chord and above its tangent in y_j. y_j is concave, so it lies
    below its tangent; and lse lies below the tangent of log sum chord(e^s), which is concave, too.

    As the weights sum to 1, the read is the origin (H, T, d) plus sum_j w_j (v_j - origin). An origin amid the values
    leaves less to the weights; 0 is the plain relaxation.
    """
    low, high = scores.ends
    point = scores.center.clamp(low, high)
    least, largest = _softmax_range(low, high)
    weight, y = torch.softmax(point, -1), torch.log_softmax(point, -1)
    y_low, y_high = _log_softmax_range(low, high)
    flat = y_high - y_low < 1e-9
    chord = torch.where(flat, largest, (largest - least) / torch.where(flat, torch.ones_like(y), y_high - y_low))
    own = torch.eye(values.size(1), dtype=values.dtype)
    # upper: least + chord (y - y_low), and y <= y(point) + (own - weight) (s - point)
    upper = torch.where(flat, largest, least + chord * (y - y_low))
    upper_slope = torch.where(flat[..., None], 0.0, chord[..., None] * (own - weight[..., None, :]))
    # lower: e^z (1 + y - z) at a point z, and y >= s_j - log sum chord at the point - its gradient (s - point)
    best = high.amax(-1, keepdim=True)
    ends = [torch.exp(x - best) for x in (low, high)]
    span = torch.where(high > low, high - low, torch.ones_like(low))
    rise = (ends[1] - ends[0]) / span
    chords = torch.where(high > low, ends[0] + rise * (point - low), ends[1])
    total = chords.sum(-1, keepdim=True)
    y_below = point - best - torch.log(total)  # a lower bound of y at the point
    gradient = rise / total
    lower = torch.exp(y_below)
    lower_slope = lower[..., None] * (own - gradient[..., None, :])
    slope, half = (upper_slope + lower_slope) / 2, (upper_slope - lower_slope) / 2
    center, rest = (upper + lower) / 2, (upper - lower) / 2
    away = values[:, None] - origin[:, :, None]  # (H, T, T, d)
    by_score = torch.einsum("hqjk,hqjd->hqkd", slope, away)
    # half of the distance between the lines is linear in the scores, too: its largest value over box and form
    half_by_score = torch.einsum("hqjk,hqjd->hqkd", half, away.abs())
    off_center = scores.center - point
    over_box = torch.einsum("hqk,hqkd->hqd", scores.reach_from(point), half_by_score.abs())
    over_form = (
        torch.einsum("hqk,hqkd->hqd", off_center, half_by_score)
        + torch.einsum("ehqk,hqkd->ehqd", scores.coefficients, half_by_score).abs().sum(0)
        + torch.einsum("hqk,hqkd->hqd", scores.radius, half_by_score.abs())
    )
    moved = AffineForm(
        origin + torch.einsum("hqj,hqjd->hqd", center, away) + torch.einsum("hqk,hqkd->hqd", off_center, by_score),
        torch.einsum("ehqk,hqkd->ehqd", scores.coefficients, by_score),
        torch.einsum("hqk,hqkd->hqd", scores.radius, by_score.abs())
        + torch.einsum("hqj,hqjd->hqd", rest, away.abs())
        + torch.minimum(over_box, over_form),
    )
    return moved, (least, largest)


def _narrower(first: AffineForm, second: AffineForm) -> AffineForm:
    """Returns for each value the form that reaches less far from its center."""
    better = second.own_reach < first.own_reach
    return AffineForm(
        torch.where(better, second.center, first.center),
        torch.where(better, second.coefficients, first.coefficients),
        torch.where(better, second.radius, first.radius),
    )
