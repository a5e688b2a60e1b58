"""Fitting the heads of a ReLU rule to the reads of a teacher, without any gradient.

For softmax, log w_ij = s_ij - L_i with L_i the logarithm of the row's sum. Where L_i is
about linear in the query, L_i = c . q_i / sqrt(d) + m, subtracting c from every key and m
from every score leaves scores whose exponential is the weight; a soft threshold shortly
below zero is then in the right place for every row. So c and m come from least squares,
the offset beyond m from a search in one dimension, coarse and then fine, and the scale for
each offset in closed form: the one with the least squared error of what is read. Rules
that divide by the row sum have no such form, and a few scales are tried instead; for
rules of centred scores, to which neither c nor an offset matters, nothing but scales.

Scores as they are, with an offset of zero, are among the candidates, so calibration never
does worse than the best scale alone, and a teacher that is ReLU already is found exactly.

Shapes: B batch, H heads, Tq queries, Tk slots, d head width, C candidates, L scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from reluformer.integrations.transformers.relufy.heads import homogeneity, shifts_matter
from reluformer.rules import Pointwise, RowCentered, RowNormalized, Rule

COARSE = torch.arange(-2.0, 10.1, 0.75)
FINE = torch.arange(-0.5, 0.51, 0.25)
"""Offsets that are tried: beyond the fitted m, then beyond the best of those."""
LOG_SCALES = torch.arange(-4.0, 6.1, 1.0)
FINE_LOG_SCALES = torch.arange(-0.75, 0.76, 0.25)
"""Likewise for the scale of a rule that divides by its row sum."""
NEAR_LOG_SCALES = torch.arange(-0.75, 0.76, 0.25)
NEARER_LOG_SCALES = torch.arange(-0.1875, 0.188, 0.0625)
"""And for a rule of centred scores, whose scale is about the teacher's."""
RIDGE = 1e-3
"""Of the least squares, relative to the mean square of a coordinate."""


class ReadSample(NamedTuple):
    """One read of the teacher: its arguments, and which of its queries are tokens and not padding."""

    q: Tensor  # (B, H, Tq, d)
    k: Tensor  # (B, H, Tk, d)
    v: Tensor  # (B, H, Tk, dv)
    visible: Tensor  # broadcasts to (B, H, Tq, Tk)
    rows: Tensor  # (B, Tq)
    scale: float
    rule: Rule
    bias: Tensor | None = None  # broadcasts to (B, H, Tq, Tk)

    def in_float32(self) -> ReadSample:
        """Whatever the model computes in: fits are searched in one precision."""
        bias = None if self.bias is None else self.bias.float()
        return self._replace(q=self.q.float(), k=self.k.float(), v=self.v.float(), bias=bias)

    def scores(self) -> Tensor:
        """(B, H, Tq, Tk)."""
        scores = self.q @ self.k.transpose(-1, -2) * self.scale
        return scores if self.bias is None else scores + self.bias

    def n(self) -> Tensor:
        """Visible slots of each row, at least one, (..., Tq, 1)."""
        return self.visible.expand(*self.visible.shape[:-1], self.k.size(2)).sum(-1, keepdim=True).clamp_min(1).float()

    def weights(self) -> Tensor:
        """(B, H, Tq, Tk)."""
        return self.rule.weights(self.scores(), self.n(), self.visible)


class HeadFit(NamedTuple):
    """What was found for the heads of one attention."""

    log_scale: Tensor  # (H)
    offset: Tensor  # (H)
    centre: Tensor  # (H, d)
    error: Tensor  # (H): squared error of the reads over their squares


Passes = Callable[[], Iterable[Mapping[str, ReadSample]]]
"""Each call reads the calibration texts anew: by name the reads of one batch after the other."""


@torch.no_grad()
def calibrate(passes: Passes, rule: Rule, centred: Callable[[str], bool] = lambda name: True) -> dict[str, HeadFit]:
    """The best fit of every head of every attention; two or three passes over the texts.

    `centred` says whether the keys of an attention can be shifted.
    """
    if not shifts_matter(rule):
        scales = _search(passes, lambda name, sample: _unshifted(rule, sample))
        return _search(passes, lambda name, sample: _nearer(scales[name], rule))
    rows: dict[str, RowSums] = {}
    for reads in passes():
        for name, sample in reads.items():
            rows.setdefault(name, RowSums(sample, centred(name))).add(sample)
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


class RowSums:
    """Least squares of the logarithm of each row's sum on its query and a constant."""

    def __init__(self, sample: ReadSample, centred: bool) -> None:
        _, heads, _, width = sample.q.shape
        self.centred = centred
        self.width = width
        size = width + 1 if centred else 1
        self.products = torch.zeros(heads, size, size, dtype=torch.float64)
        self.targets = torch.zeros(heads, size, 1, dtype=torch.float64)

    def add(self, sample: ReadSample) -> None:
        """Count the tokens of one batch."""
        hidden = ~sample.visible
        sums = sample.scores().masked_fill(hidden, torch.finfo(sample.q.dtype).min).logsumexp(-1)  # (B, H, Tq)
        target = _by_head(sums.unsqueeze(-1), sample.rows)
        inputs = torch.ones_like(target)
        if self.centred:
            inputs = torch.cat([_by_head(sample.q * sample.scale, sample.rows), inputs], -1)
        self.products += inputs.transpose(1, 2) @ inputs
        self.targets += inputs.transpose(1, 2) @ target

    def solve(self) -> tuple[Tensor, Tensor]:
        """The centre (H, d) and the constant (H)."""
        diagonal = self.products.diagonal(dim1=1, dim2=2)
        ridge = torch.diag_embed(RIDGE * diagonal.mean(-1, keepdim=True).expand_as(diagonal))
        found = torch.linalg.solve(self.products + ridge, self.targets).squeeze(-1).float()
        centre = found[:, :-1] if self.centred else found.new_zeros(found.size(0), self.width)
        return centre.contiguous(), found[:, -1]


def _by_head(values: Tensor, rows: Tensor) -> Tensor:
    """(B, H, Tq, x) -> (H, tokens, x) in double precision, padding left out."""
    return values.transpose(1, 2)[rows].transpose(0, 1).double()


class Candidate(NamedTuple):
    """One thing to try, for each head."""

    centre: Tensor  # (H, d)
    offset: Tensor  # (H)


def _coarse(sums: RowSums, rule: Rule) -> OffsetSearch:
    centre, constant = sums.solve()
    plain = Candidate(torch.zeros_like(centre), torch.zeros_like(constant))
    tried = [plain, *(Candidate(centre, offset - constant) for offset in COARSE)]
    return OffsetSearch(rule, tried, LOG_SCALES[:, None].expand(-1, constant.numel()))


def _fine(fit: HeadFit, rule: Rule) -> OffsetSearch:
    tried = [Candidate(fit.centre, fit.offset + offset) for offset in FINE]
    return OffsetSearch(rule, tried, fit.log_scale + FINE_LOG_SCALES[:, None])


def _unshifted(rule: Rule, sample: ReadSample) -> OffsetSearch:
    """Scores as they are, at the scales around the teacher's."""
    _, heads, _, width = sample.q.shape
    plain = Candidate(sample.q.new_zeros(heads, width), sample.q.new_zeros(heads))
    return OffsetSearch(rule, [plain], NEAR_LOG_SCALES[:, None].expand(-1, heads))


def _nearer(fit: HeadFit, rule: Rule) -> OffsetSearch:
    return OffsetSearch(rule, [Candidate(fit.centre, fit.offset)], fit.log_scale + NEARER_LOG_SCALES[:, None])


class OffsetSearch:
    """The squared error of what is read, of every candidate with its best scale."""

    def __init__(self, rule: Rule, candidates: list[Candidate], log_scales: Tensor) -> None:
        self.rule = rule
        self.candidates = candidates
        self.log_scales = log_scales  # (L, H)
        heads = log_scales.size(1)
        self.total = torch.zeros(heads, dtype=torch.float64)
        self.agreement = torch.zeros(len(candidates), heads, dtype=torch.float64)  # <student, teacher>
        self.power = torch.zeros(len(candidates), heads, dtype=torch.float64)  # <student, student>
        self.errors = torch.zeros(len(candidates), *log_scales.shape, dtype=torch.float64)

    def add(self, sample: ReadSample) -> None:
        """Try every candidate on the tokens of one batch."""
        tokens = sample.rows[:, None, :, None]
        teacher = (sample.weights() @ sample.v) * tokens
        self.total += _by_heads(teacher, teacher)
        scores = sample.scores()
        for i, (centre, offset) in enumerate(self.candidates):
            shift = offset[:, None] - sample.scale * torch.einsum("bhtd,hd->bht", sample.q, centre)
            shifted = scores + shift.unsqueeze(-1)
            if isinstance(self.rule, RowNormalized):
                self.errors[i] += self._divided_errors(self.rule, shifted, sample, teacher)
            elif isinstance(self.rule, RowCentered):
                self.errors[i] += self._scaled_errors(shifted, sample, teacher)
            else:
                student = (self.rule.weights(shifted, sample.n(), sample.visible) @ sample.v) * tokens
                self.agreement[i] += _by_heads(student, teacher)
                self.power[i] += _by_heads(student, student)

    def _divided_errors(self, rule: RowNormalized, scores: Tensor, sample: ReadSample, teacher: Tensor) -> Tensor:
        """Of each scale, (L, H): w / (delta + sum w) with w scaled by c is w / (delta / c + sum w)."""
        weights = rule.inner.weights(scores, sample.n(), sample.visible)
        read, sums = weights @ sample.v, weights.sum(-1, keepdim=True)
        errors = []
        for log_scale in self.log_scales:
            delta = rule.delta * torch.exp(-log_scale * (homogeneity(rule) or 1))[:, None, None]
            difference = (read / (delta + sums) - teacher) * sample.rows[:, None, :, None]
            errors.append(_by_heads(difference, difference))
        return torch.stack(errors)

    def _scaled_errors(self, scores: Tensor, sample: ReadSample, teacher: Tensor) -> Tensor:
        """Of each scale, (L, H)."""
        errors = []
        for scale in self.log_scales.exp():
            weights = self.rule.weights(scores * scale[:, None, None], sample.n(), sample.visible)
            difference = (weights @ sample.v - teacher) * sample.rows[:, None, :, None]
            errors.append(_by_heads(difference, difference))
        return torch.stack(errors)

    def best(self) -> HeadFit:
        """The best candidate and scale of each head."""
        errors, log_scales = self._least_errors()
        error, place = errors.min(0)
        heads = torch.arange(place.numel())
        centres, offsets = (torch.stack(part) for part in zip(*self.candidates, strict=True))
        return HeadFit(log_scales[place, heads], offsets[place, heads], centres[place, heads], error.float())

    def _least_errors(self) -> tuple[Tensor, Tensor]:
        """The relative error of each candidate with its best scale, and that scale, (C, H) each."""
        total = self.total.clamp_min(torch.finfo(torch.float64).tiny)
        if not isinstance(self.rule, Pointwise):
            least, place = self.errors.min(1)
            return least / total, self.log_scales.gather(0, place)
        reads = (self.agreement > 0) & (self.power > 0)  # a head whose reads point the other way is not scaled
        factor = torch.where(reads, self.agreement / self.power, 1.0)
        errors = (self.total - 2 * factor * self.agreement + factor**2 * self.power) / total
        return errors.clamp_min(0), (factor.log() / (homogeneity(self.rule) or 1)).float()


def _by_heads(a: Tensor, b: Tensor) -> Tensor:
    """The products of two reads (B, H, Tq, dv), summed up for each head."""
    return (a * b).sum((0, 2, 3), dtype=torch.float64)
