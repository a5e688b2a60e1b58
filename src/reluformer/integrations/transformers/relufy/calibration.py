"""Fits the heads of a ReLU rule to the reads of a teacher, without any gradient.

A converted head changes its scores before the rule sees them:

    weight_j = rule(exp(log_scale) * (s_j - centre . q / sqrt(d) + offset))

Softmax ignores what is common to a row of scores; ReLU does not. The offset moves the
head's threshold. The centre, which is subtracted from every key, moves it along with the
query. The scale is a factor on the queries and the rest is one number a row, so every
implementation of `memory.read` supports it. A rule of centred scores (`relu_exp`) ignores
offset and centre as softmax does, so its heads have a scale alone.

For softmax, log w_ij = s_ij - L_i with L_i the logarithm of the row's sum. Where L_i is
about linear in the query, L_i = c . q_i / sqrt(d) + m, subtracting c from every key and m
from every score leaves scores whose exponential is the weight. A soft threshold shortly
below zero then suits every row. So c and m come from least squares. The offset beyond m
comes from a search in one dimension, coarse and then fine. The scale for each offset is
the one with the least squared error of what is read, in closed form. Rules that divide by
the row sum have no such form, so a few scales are tried instead. For rules of centred
scores only scales are tried.

Unchanged scores, with an offset of zero, are among the candidates. So calibration is never
worse than the best scale alone, and it reproduces a teacher that is ReLU already.

Shapes: B batch, H heads, Tq queries, Tk slots, d head width, C candidates, L scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.rules import Formula, Rule

COARSE = torch.arange(-2.0, 10.1, 0.75)
FINE = torch.arange(-0.5, 0.51, 0.25)
"""The offsets to try: relative to the fitted m, then relative to the best of those."""
LOG_SCALES = torch.arange(-4.0, 6.1, 1.0)
FINE_LOG_SCALES = torch.arange(-0.75, 0.76, 0.25)
"""The scales to try for a rule that divides by its row sum."""
NEAR_LOG_SCALES = torch.arange(-0.75, 0.76, 0.25)
NEARER_LOG_SCALES = torch.arange(-0.1875, 0.188, 0.0625)
"""The scales to try for a rule of centred scores, whose scale is close to the teacher's."""
RIDGE = 1e-3
"""The ridge of the least squares, relative to the mean square of a coordinate."""


class HeadScores(nn.Module):
    """Scale, offset and centre of all heads of an attention, or the scale alone; neutral at first.

    Args:
        heads: H.
        width: d.
        shifts: False for a rule of centred scores, which needs neither offset nor centre.
    """

    def __init__(self, heads: int, width: int, shifts: bool = True) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.log_scale = nn.Parameter(torch.zeros(heads))
        self.offset = nn.Parameter(torch.zeros(heads)) if shifts else None
        self.centre = nn.Parameter(torch.zeros(heads, width)) if shifts else None

    def scale(self, like: Tensor) -> Tensor:
        """Returns the scale (H, 1, 1), in the dtype of `like`."""
        return self.log_scale.exp().to(like.dtype)[:, None, None]

    def forward(self, query: Tensor, scaling: float) -> tuple[Tensor, Tensor | None]:
        """Returns scaled queries (B, H, Tq, d), and the bias (B, H, Tq, 1) of their scores."""
        scale = self.scale(query)
        if self.centre is None or self.offset is None:
            return query * scale, None
        centre, offset = self.centre.to(query.dtype), self.offset.to(query.dtype)
        threshold = offset[:, None] - scaling * torch.einsum("bhtd,hd->bht", query, centre)
        return query * scale, threshold.unsqueeze(-1) * scale


def relu_rule(rule: str | Rule) -> Rule:
    """Returns the rule if its heads can be fitted.

    Raises:
        ArgumentError: The rule is neither of the ReLU family nor of centred scores.

    Example:
        >>> relu_rule("relu").name
        'relu'
    """
    chosen = rules.get(rule)
    if _can_be_fitted(chosen):
        return chosen
    able = [name for name in rules.names() if _can_be_fitted(rules.get(name))]
    raise ArgumentError(
        f"rule '{chosen.name}': relufy fits rules of the ReLU family, without an output norm; valid: {', '.join(able)}"
    )


def _can_be_fitted(rule: Rule) -> bool:
    return rule.output_norm is None and (rule.homogeneity is not None or not shifts_matter(rule))


def shifts_matter(rule: Rule) -> bool:
    """Returns True if adding a number to all scores of a row changes the weights."""
    formula = rules.formula_of(rule)
    return formula is None or not formula.centred


class ReadSample(NamedTuple):
    """One read of a model: its arguments, and which of its queries are tokens and not padding."""

    q: Tensor  # (B, H, Tq, d)
    k: Tensor  # (B, H, Tk, d)
    v: Tensor  # (B, H, Tk, dv)
    visible: Tensor  # broadcasts to (B, H, Tq, Tk)
    rows: Tensor  # (B, Tq)
    scale: float
    rule: Rule
    bias: Tensor | None = None  # broadcasts to (B, H, Tq, Tk)

    def in_float32(self) -> ReadSample:
        """Returns the sample in float32, in which all heads are fitted."""
        bias = None if self.bias is None else self.bias.float()
        return self._replace(q=self.q.float(), k=self.k.float(), v=self.v.float(), bias=bias)

    def scores(self) -> Tensor:
        """Returns the scores (B, H, Tq, Tk)."""
        scores = self.q @ self.k.transpose(-1, -2) * self.scale
        return scores if self.bias is None else scores + self.bias

    def n(self) -> Tensor:
        """Returns the number of visible slots of each row, at least one, (..., Tq, 1)."""
        return self.visible.expand(*self.visible.shape[:-1], self.k.size(2)).sum(-1, keepdim=True).clamp_min(1).float()

    def weights(self) -> Tensor:
        """Returns the weights (B, H, Tq, Tk)."""
        return self.rule.weights(self.scores(), self.n(), self.visible)

    def zeros(self) -> Tensor:
        """Returns which slots weigh nothing, or nothing but their share of a rest, (B, H, Tq, Tk)."""
        unread = self.rule.unread(self.scores(), self.n(), self.visible)
        return self.weights() == 0 if unread is None else unread


class HeadFit(NamedTuple):
    """The fit of all heads of one attention."""

    log_scale: Tensor  # (H)
    offset: Tensor  # (H)
    centre: Tensor  # (H, d)
    error: Tensor  # (H): squared error of the reads over their squares


Passes = Callable[[], Iterable[Mapping[str, ReadSample]]]
"""Each call starts a new pass over the calibration texts; it yields the reads of each batch by name."""


@torch.no_grad()
def calibrate(passes: Passes, rule: Rule, centred: Callable[[str], bool] = lambda name: True) -> dict[str, HeadFit]:
    """Finds the best fit of every head of every attention.

    Args:
        passes: A function that starts a pass over the texts; it is called two or three times.
        rule: The rule of the student.
        centred: Returns True if the keys of the attention of this name can be shifted.

    Returns:
        The fit of each attention by its name.
    """
    if not shifts_matter(rule):
        scales = _search(passes, lambda name, sample: _unshifted(rule, sample))
        return _search(passes, lambda name, sample: _nearer(scales[name], rule))
    rows: dict[str, RowSumRegression] = {}
    for reads in passes():
        for name, sample in reads.items():
            rows.setdefault(name, RowSumRegression(sample, centred(name))).add(sample)
    fits = _search(passes, lambda name, sample: _coarse(rows[name], rule))
    return _search(passes, lambda name, sample: _fine(fits[name], rule))


def _search(passes: Passes, search: Callable[[str, ReadSample], OffsetSearch]) -> dict[str, HeadFit]:
    searches: dict[str, OffsetSearch] = {}
    for reads in passes():
        for name, sample in reads.items():
            if name not in searches:
                searches[name] = search(name, sample)
            searches[name].add(sample)
    return {name: found.best() for name, found in searches.items()}


class RowSumRegression:
    """Least squares of the logarithm of each row's sum on its query and a constant."""

    def __init__(self, sample: ReadSample, centred: bool) -> None:
        _, heads, _, width = sample.q.shape
        self.centred = centred
        self.width = width
        size = width + 1 if centred else 1
        self.products = torch.zeros(heads, size, size, dtype=torch.float64)
        self.targets = torch.zeros(heads, size, 1, dtype=torch.float64)

    def add(self, sample: ReadSample) -> None:
        """Adds the tokens of one batch."""
        hidden = ~sample.visible
        sums = sample.scores().masked_fill(hidden, torch.finfo(sample.q.dtype).min).logsumexp(-1)  # (B, H, Tq)
        target = _by_head(sums.unsqueeze(-1), sample.rows)
        inputs = torch.ones_like(target)
        if self.centred:
            inputs = torch.cat([_by_head(sample.q * sample.scale, sample.rows), inputs], -1)
        self.products += inputs.transpose(1, 2) @ inputs
        self.targets += inputs.transpose(1, 2) @ target

    def solve(self) -> tuple[Tensor, Tensor]:
        """Returns the centre (H, d) and the constant (H)."""
        diagonal = self.products.diagonal(dim1=1, dim2=2)
        ridge = torch.diag_embed(RIDGE * diagonal.mean(-1, keepdim=True).expand_as(diagonal))
        found = torch.linalg.solve(self.products + ridge, self.targets).squeeze(-1).float()
        centre = found[:, :-1] if self.centred else found.new_zeros(found.size(0), self.width)
        return centre.contiguous(), found[:, -1]


def _by_head(values: Tensor, rows: Tensor) -> Tensor:
    """Returns (B, H, Tq, x) as (H, tokens, x) in double precision, without padding."""
    return values.transpose(1, 2)[rows].transpose(0, 1).double()


class FitCandidate(NamedTuple):
    """A centre and an offset to try, for each head."""

    centre: Tensor  # (H, d)
    offset: Tensor  # (H)


def _coarse(sums: RowSumRegression, rule: Rule) -> OffsetSearch:
    centre, constant = sums.solve()
    plain = FitCandidate(torch.zeros_like(centre), torch.zeros_like(constant))
    tried = [plain, *(FitCandidate(centre, offset - constant) for offset in COARSE)]
    return OffsetSearch(rule, tried, LOG_SCALES[:, None].expand(-1, constant.numel()))


def _fine(fit: HeadFit, rule: Rule) -> OffsetSearch:
    tried = [FitCandidate(fit.centre, fit.offset + offset) for offset in FINE]
    return OffsetSearch(rule, tried, fit.log_scale + FINE_LOG_SCALES[:, None])


def _unshifted(rule: Rule, sample: ReadSample) -> OffsetSearch:
    """Returns a search over scales alone, with unchanged scores."""
    _, heads, _, width = sample.q.shape
    plain = FitCandidate(sample.q.new_zeros(heads, width), sample.q.new_zeros(heads))
    return OffsetSearch(rule, [plain], NEAR_LOG_SCALES[:, None].expand(-1, heads))


def _nearer(fit: HeadFit, rule: Rule) -> OffsetSearch:
    return OffsetSearch(rule, [FitCandidate(fit.centre, fit.offset)], fit.log_scale + NEARER_LOG_SCALES[:, None])


class OffsetSearch:
    """The squared error of what is read, for every candidate with its best scale."""

    def __init__(self, rule: Rule, candidates: list[FitCandidate], log_scales: Tensor) -> None:
        self.rule = rule
        self.formula = rules.formula_of(rule)
        self.candidates = candidates
        self.log_scales = log_scales  # (L, H)
        heads = log_scales.size(1)
        self.total = torch.zeros(heads, dtype=torch.float64)
        self.agreement = torch.zeros(len(candidates), heads, dtype=torch.float64)  # <student, teacher>
        self.power = torch.zeros(len(candidates), heads, dtype=torch.float64)  # <student, student>
        self.errors = torch.zeros(len(candidates), *log_scales.shape, dtype=torch.float64)

    def add(self, sample: ReadSample) -> None:
        """Tries every candidate on the tokens of one batch."""
        tokens = sample.rows[:, None, :, None]
        teacher = (sample.weights() @ sample.v) * tokens
        self.total += _by_heads(teacher, teacher)
        scores = sample.scores()
        for i, (centre, offset) in enumerate(self.candidates):
            shift = offset[:, None] - sample.scale * torch.einsum("bhtd,hd->bht", sample.q, centre)
            shifted = scores + shift.unsqueeze(-1)
            if self.formula is not None and self.formula.centred:
                self.errors[i] += self._scaled_errors(shifted, sample, teacher)
            elif self.formula is not None and self.formula.delta is not None:
                self.errors[i] += self._divided_errors(self.formula, self.formula.delta, shifted, sample, teacher)
            else:
                student = (self.rule.weights(shifted, sample.n(), sample.visible) @ sample.v) * tokens
                self.agreement[i] += _by_heads(student, teacher)
                self.power[i] += _by_heads(student, student)

    def _divided_errors(
        self, formula: Formula, delta: float, scores: Tensor, sample: ReadSample, teacher: Tensor
    ) -> Tensor:
        """Returns the error of each scale (L, H): c w / (delta + sum c w) = w / (delta / c + sum w)."""
        weights = formula.terms().weights(scores, sample.n(), sample.visible)
        read, sums = weights @ sample.v, weights.sum(-1, keepdim=True)
        errors = []
        for log_scale in self.log_scales:
            scaled = delta * torch.exp(-log_scale * (self.rule.homogeneity or 1))[:, None, None]
            difference = (read / (scaled + sums) - teacher) * sample.rows[:, None, :, None]
            errors.append(_by_heads(difference, difference))
        return torch.stack(errors)

    def _scaled_errors(self, scores: Tensor, sample: ReadSample, teacher: Tensor) -> Tensor:
        """Returns the error of each scale (L, H)."""
        errors = []
        for scale in self.log_scales.exp():
            weights = self.rule.weights(scores * scale[:, None, None], sample.n(), sample.visible)
            difference = (weights @ sample.v - teacher) * sample.rows[:, None, :, None]
            errors.append(_by_heads(difference, difference))
        return torch.stack(errors)

    def best(self) -> HeadFit:
        """Returns the best candidate and scale of each head."""
        errors, log_scales = self._least_errors()
        error, place = errors.min(0)
        heads = torch.arange(place.numel())
        centres, offsets = (torch.stack(part) for part in zip(*self.candidates, strict=True))
        return HeadFit(log_scales[place, heads], offsets[place, heads], centres[place, heads], error.float())

    def _least_errors(self) -> tuple[Tensor, Tensor]:
        """Returns the relative error of each candidate with its best scale, and that scale, (C, H) each."""
        total = self.total.clamp_min(torch.finfo(torch.float64).tiny)
        if self.formula is not None and (self.formula.centred or self.formula.delta is not None):
            least, place = self.errors.min(1)
            return least / total, self.log_scales.gather(0, place)
        reads = (self.agreement > 0) & (self.power > 0)  # a head whose reads point the other way is not scaled
        factor = torch.where(reads, self.agreement / self.power, 1.0)
        errors = (self.total - 2 * factor * self.agreement + factor**2 * self.power) / total
        return errors.clamp_min(0), (factor.log() / (self.rule.homogeneity or 1)).float()


def _by_heads(a: Tensor, b: Tensor) -> Tensor:
    """Sums the products of two reads (B, H, Tq, dv) for each head."""
    return (a * b).sum((0, 2, 3), dtype=torch.float64)
