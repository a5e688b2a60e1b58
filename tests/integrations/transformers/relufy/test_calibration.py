"""The fit of scales, offsets and centres to the reads of a teacher."""

from __future__ import annotations

import math

import pytest
import torch

from reluformer import rules
from reluformer.integrations.transformers.relufy.calibration import (
    FINE,
    HeadFit,
    HeadScores,
    ReadSample,
    calibrate,
    relu_rule,
)

LENGTHS = torch.tensor([9, 6, 3])


def sample(rule: str, seed: int = 0, padding: float = 0.0, **changes: object) -> ReadSample:
    """Three texts of different lengths; keys that share a constant part, so that rows have different means."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    centre = 1.5 * torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(99))
    tokens = torch.arange(9) < LENGTHS[:, None]
    q, k, v = 1.5 * normal(3, 2, 9, 8), normal(3, 2, 9, 8) + centre, normal(3, 2, 9, 8) + 0.5
    hidden = ~tokens[:, None, :, None]
    q, k, v = (part + padding * hidden for part in (q, k, v))
    given = ReadSample(q, k, v, tokens[:, None, None, :], tokens, 8**-0.5, rules.get(rule))
    return given._replace(**changes)


def read_error(given: ReadSample, fit: HeadFit, rule: str) -> torch.Tensor:
    """Of each head, through `HeadScores` and the rule itself."""
    scores = HeadScores(2, 8)
    with torch.no_grad():
        for name in ("log_scale", "offset", "centre"):
            getattr(scores, name).copy_(getattr(fit, name))
        q, bias = scores(given.q, given.scale)
    student = given._replace(q=q, bias=bias, rule=rules.get(rule))
    rows = given.rows[:, None, :, None]
    wanted, got = ((one.weights() @ one.v) * rows for one in (given, student))
    return (wanted - got).square().sum((0, 2, 3)) / wanted.square().sum((0, 2, 3))


@pytest.mark.parametrize("rule", ["relu", "relu_seqlen", "relu2", "relu_norm"])
def test_it_lowers_the_error_of_the_reads_and_says_by_how_much(rule: str) -> None:
    given = [sample("softmax", seed) for seed in range(4)]
    fit = calibrate(lambda: ({"one": one} for one in given), rules.get(rule))["one"]
    neutral = HeadFit(torch.zeros(2), torch.zeros(2), torch.zeros(2, 8), torch.zeros(2))
    before, after = (torch.stack([read_error(one, fits, rule) for one in given]) for fits in (neutral, fit))
    assert (after.mean(0) < 0.5 * before.mean(0)).all()
    together = ReadSample(*(torch.cat(parts) for parts in list(zip(*given, strict=True))[:5]), *given[0][5:])
    torch.testing.assert_close(fit.error, read_error(together, fit, rule), rtol=1e-3, atol=1e-5)


def test_centres_follow_the_queries_where_an_offset_cannot() -> None:
    given = [sample("softmax", seed) for seed in range(8)]

    def passes() -> list[dict[str, ReadSample]]:
        return [{"one": one} for one in given]

    with_centre = calibrate(passes, rules.get("relu"))["one"]
    without = calibrate(passes, rules.get("relu"), lambda name: False)["one"]
    assert (with_centre.error < without.error).all()
    assert not without.centre.any()


@pytest.mark.parametrize(("rule", "power"), [("relu", 1), ("relu2", 2)])
def test_a_teacher_that_is_relu_already_is_found_exactly(rule: str, power: int) -> None:
    factors = torch.tensor([0.4, 3.0]).view(2, 1, 1)
    given = sample(rule)

    class Scaled(type(rules.get(rule))):
        """The rule of the teacher, with a factor for each head."""

        def weights(self, scores, n, visible):
            return super().weights(scores, n, visible) * factors

    fit = calibrate(lambda: [{"one": given._replace(rule=Scaled())}], rules.get(rule))["one"]
    assert (fit.error < 1e-6).all()
    torch.testing.assert_close(fit.log_scale * power, factors.flatten().log(), rtol=1e-4, atol=1e-4)
    assert not fit.offset.any() and not fit.centre.any()


def test_a_teacher_that_divides_by_its_row_sum_is_found_exactly() -> None:
    fit = calibrate(lambda: [{"one": sample("relu_norm")}], rules.get("relu_norm"))["one"]
    assert (fit.error < 1e-10).all() and not fit.log_scale.any()


def test_centred_scores_need_a_scale_alone() -> None:
    given = [sample("softmax", seed) for seed in range(4)]
    passes = []

    def read() -> list[dict[str, ReadSample]]:
        passes.append(1)
        return [{"one": one} for one in given]

    fit = calibrate(read, rules.get("relu_exp"))["one"]
    assert len(passes) == 2 and not fit.offset.any() and not fit.centre.any()
    together = ReadSample(*(torch.cat(parts) for parts in list(zip(*given, strict=True))[:5]), *given[0][5:])
    torch.testing.assert_close(fit.error, read_error(together, fit, "relu_exp"), rtol=1e-3, atol=1e-5)
    neutral = HeadFit(torch.zeros(2), torch.zeros(2), torch.zeros(2, 8), torch.zeros(2))
    assert (fit.error < read_error(together, neutral, "relu_exp")).all()


def test_a_teacher_of_centred_scores_is_found_exactly() -> None:
    fit = calibrate(lambda: [{"one": sample("relu_exp")}], rules.get("relu_exp"))["one"]
    assert (fit.error < 1e-10).all() and not fit.log_scale.any()


def test_the_offset_of_a_relu_teacher_is_found_to_the_grain_of_the_search() -> None:
    given = sample("relu", bias=torch.tensor(0.6))
    fit = calibrate(lambda: [{"one": given._replace(bias=None, rule=_Shifted())}], rules.get("relu"))["one"]
    plain = calibrate(lambda: [{"one": given._replace(bias=None)}], rules.get("relu"))["one"]
    assert (fit.error < 0.02).all()
    assert (fit.offset - plain.offset > 0.6 - FINE.diff().max()).all()


class _Shifted(rules.Relu):
    """ReLU(s + 0.6): an offset that the calibration is not told of."""

    def weights(self, scores, n, visible):
        return super().weights(scores + 0.6, n, visible)


@pytest.mark.parametrize("rule", ["relu", "relu_norm"])
def test_padding_does_not_count(rule: str) -> None:
    fits = [
        calibrate(lambda: [{"one": sample("softmax", padding=padding)}], rules.get(rule))["one"]  # noqa: B023
        for padding in (0.0, 7.0)
    ]
    for clean, padded in zip(*fits, strict=True):
        torch.testing.assert_close(clean, padded)


def test_reads_that_are_nothing_or_point_the_other_way_give_finite_fits() -> None:
    given = sample("softmax")
    for values in (torch.zeros_like(given.v), torch.tensor([1.0, -1.0] * 4).expand_as(given.v)):
        fit = calibrate(lambda: [{"one": given._replace(v=values)}], rules.get("relu"))["one"]  # noqa: B023
        assert all(torch.isfinite(part).all() for part in fit)


def test_neutral_scores_are_the_read_as_it_was() -> None:
    given = sample("relu")
    fit = HeadFit(torch.zeros(2), torch.zeros(2), torch.zeros(2, 8), torch.zeros(2))
    assert (read_error(given, fit, "relu") < 1e-12).all()


def test_scale_offset_and_centre_act_on_scores_as_documented() -> None:
    scores = HeadScores(2, 8)
    with torch.no_grad():
        scores.log_scale.copy_(torch.tensor([math.log(2), 0.0]))
        scores.offset.copy_(torch.tensor([0.5, -1.0]))
        scores.centre.normal_(generator=torch.Generator().manual_seed(5))
    given = sample("relu")
    q, bias = scores(given.q, given.scale)
    expected = given._replace(k=given.k - scores.centre[:, None]).scores() + scores.offset[:, None, None]
    expected = expected * torch.tensor([2.0, 1.0]).view(2, 1, 1)
    torch.testing.assert_close(given._replace(q=q, bias=bias).scores(), expected)


def test_a_scale_alone_leaves_no_bias() -> None:
    scores = HeadScores(2, 8, shifts=False)
    given = sample("relu_exp")
    q, bias = scores(given.q, given.scale)
    assert bias is None and torch.equal(q, given.q)
    assert [name for name, _ in scores.named_parameters()] == ["log_scale"]


@pytest.mark.parametrize("rule", ["softmax", "rela", "sigmoid", "entmax15"])
def test_rules_that_are_not_of_the_family_are_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=f"rule '{rule}': relufy fits rules of the ReLU family.*relu, relu_seqlen"):
        relu_rule(rule)
