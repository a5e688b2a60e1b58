"""Bounds of reads: exact where they say so, sound for every rule and in every type, and clear errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import reluformer as rf
from reluformer import bounding, rules
from reluformer.bounding import read_range
from reluformer.errors import ArgumentError
from reluformer.memory import RuleSpec
from reluformer.rules import RowNormalized, Rule

RATIOS: list[RuleSpec] = ["softmax", "softmax_ln", "scalable_softmax", "softmax1", "relu_norm"]
POINTWISE: list[RuleSpec] = [
    *("relu", "relu_plain", "relu_seqlen", "relu2", "rela", "sigmoid", "tra", "polynomial"),
    {"name": "tra", "p": 3, "beta": 0.5},
    {"name": "polynomial", "p": 2},
    {"name": "pointwise_seqlen", "h": "gelu"},
    {"name": "pointwise_seqlen", "h": "identity", "alpha": 0.5},
    {"name": "pointwise_seqlen", "h": "relu6", "alpha": 0.0},
]
CENTRED: list[RuleSpec] = [
    *("relu_exp", "relu_chance", "relu_rest"),
    {"name": "relu_exp", "cap": 0.5, "spread": -0.5},
]


def name_of(rule: RuleSpec) -> str:
    return str(rule)


every = pytest.mark.parametrize("rule", [*RATIOS, *POINTWISE, *CENTRED], ids=name_of)
exact_ones = pytest.mark.parametrize("rule", [*RATIOS, *POINTWISE], ids=name_of)


def box(seed: int, rows: int, slots: int, width: int, size: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return intervals of scores and of values; the first slot is known exactly."""
    draw = torch.Generator().manual_seed(seed)
    middle = 2 * torch.randn(rows, slots, generator=draw, dtype=torch.float64)
    radius = size * torch.rand(rows, slots, generator=draw, dtype=torch.float64)
    radius[:, 0] = 0
    values = torch.randn(slots, width, generator=draw, dtype=torch.float64)
    spread = 0.3 * torch.rand(slots, width, generator=draw, dtype=torch.float64)
    return middle - radius, middle + radius, values - spread, values + spread


def read(rule: Rule, scores: Tensor, values: Tensor, visible: Tensor | None = None) -> Tensor:
    """Read with the weights that the rule itself computes: the specification."""
    n = torch.full_like(scores[..., :1], scores.size(-1)) if visible is None else visible.sum(-1, keepdim=True)
    return rule.weights(scores, n.clamp_min(1).to(scores.dtype), visible) @ values


def extremes(rule: Rule, low: Tensor, high: Tensor, least: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and largest read over all vertices of scores, turning points and ends of values."""
    rows, slots = low.shape
    candidates = [low, high]
    for at in bounding.turning_points(rule) or ():
        candidates.append(torch.clamp(torch.full_like(low, at), low, high))
    lower = torch.full((rows, least.size(-1)), math.inf, dtype=torch.float64)
    upper = -lower
    for choice in product(candidates, repeat=slots):
        scores = torch.stack([ends[:, j] for j, ends in enumerate(choice)], dim=1)
        for ends in product((least, largest), repeat=slots):
            found = read(rule, scores, torch.stack([values[j] for j, values in enumerate(ends)]))
            lower, upper = torch.minimum(lower, found), torch.maximum(upper, found)
    return lower, upper


class TestExactness:
    @exact_ones
    def test_both_ends_are_those_of_all_vertices(self, rule: RuleSpec) -> None:
        low, high, least, largest = box(1, 3, 4, 2)
        found = rf.bounds(rule, low, high, (least, largest))
        lower, upper = extremes(rules.get(rule), low, high, least, largest)
        assert found.exact
        torch.testing.assert_close(found.lower, lower, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.upper, upper, rtol=1e-10, atol=1e-10)
        assert (found.lower <= lower).all()
        assert (found.upper >= upper).all()

    @exact_ones
    def test_more_slots_with_known_values(self, rule: RuleSpec) -> None:
        low, high, values, _ = box(2, 2, 7, 3)
        found = rf.bounds(rule, low, high, values)
        points = [torch.stack(choice, -1) for choice in product(*zip(low[0], high[0], strict=True))]
        for at in bounding.turning_points(rules.get(rule)) or ():
            points = [
                torch.stack(choice, -1)
                for choice in product(
                    *zip(low[0], high[0], torch.full_like(low[0], at).clamp(low[0], high[0]), strict=True)
                )
            ]
        reads = read(rules.get(rule), torch.stack(points), values)
        torch.testing.assert_close(found.lower[0], reads.amin(0), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.upper[0], reads.amax(0), rtol=1e-10, atol=1e-10)

    @exact_ones
    def test_a_point_has_a_range_of_nothing(self, rule: RuleSpec) -> None:
        scores, _, values, _ = box(3, 4, 30, 5)
        found = rf.bounds(rule, scores, scores, values)
        expected = read(rules.get(rule), scores, values)
        torch.testing.assert_close(found.lower, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.upper, expected, rtol=1e-9, atol=1e-9)

    def test_two_slots_by_hand(self) -> None:
        low, high = torch.tensor([[-1.0, 0.0]]).double(), torch.tensor([[1.0, 0.0]]).double()
        found = rf.bounds("softmax", low, high, torch.tensor([[1.0], [0.0]]).double())
        assert found.lower.item() == pytest.approx(1 / (1 + math.e))
        assert found.upper.item() == pytest.approx(math.e / (1 + math.e))

    def test_gelu_like_weights_are_least_between_the_ends(self) -> None:
        @dataclass(frozen=True)
        class Parabola(rules.Pointwise):
            turning: ClassVar[tuple[float, ...] | None] = (1.0,)

            def activate(self, scores: Tensor, n: Tensor) -> Tensor:
                return (scores - 1) ** 2

        ends = torch.tensor([[0.0]]).double(), torch.tensor([[3.0]]).double()
        found = rf.bounds(Parabola(), *ends, torch.ones(1, 1).double())
        assert found.lower.item() == pytest.approx(0, abs=1e-10)
        assert found.upper.item() == pytest.approx(4)

        @dataclass(frozen=True)
        class Divided(RowNormalized):
            inner: ClassVar[rules.Pointwise] = Parabola()

        found = rf.bounds(Divided(), *ends, torch.ones(1, 1).double())
        assert found.lower.item() == pytest.approx(0, abs=1e-10)
        assert found.upper.item() == pytest.approx(0.8)

    def test_weights_and_values_of_both_signs(self) -> None:
        ends = torch.tensor([[-1.0]]).double(), torch.tensor([[2.0]]).double()
        values = torch.tensor([[-3.0]]).double(), torch.tensor([[5.0]]).double()
        found = rf.bounds({"name": "polynomial", "p": 1}, *ends, values)
        assert found.lower.item() == pytest.approx(-6)
        assert found.upper.item() == pytest.approx(10)

    def test_a_registered_rule_of_ones_own_is_known_by_its_formula(self) -> None:
        @dataclass(frozen=True)
        class Own(rules.Formulated):
            c: float = 0.43

            def formula(self) -> rules.Formula:
                return rules.Formula("exp", delta=0.0, log_factor=self.c)

        rules.register("own_scalable_softmax")(Own)
        try:
            low, high, least, largest = box(1, 3, 4, 2)
            for options in ({}, {"c": 2.0}):
                own, known = (
                    rf.bounds({"name": name, **options}, low, high, (least, largest))
                    for name in ("own_scalable_softmax", "scalable_softmax")
                )
                assert own.exact and torch.equal(own.lower, known.lower) and torch.equal(own.upper, known.upper)
            lower, upper = extremes(Own(-0.5), low, high, least, largest)
            torch.testing.assert_close(rf.bounds(Own(-0.5), low, high, (least, largest)).lower, lower)
            torch.testing.assert_close(rf.bounds(Own(-0.5), low, high, (least, largest)).upper, upper)
        finally:
            rules.unregister("own_scalable_softmax")

    def test_a_function_in_a_formula_says_where_it_turns(self) -> None:
        @dataclass(frozen=True)
        class Silent(rules.Formulated):
            def formula(self) -> rules.Formula:
                return rules.Formula("other", function=lambda scores, n: scores**2)

        @dataclass(frozen=True)
        class Square(Silent):
            turning: ClassVar[tuple[float, ...] | None] = (0.0,)

        ends = torch.tensor([[-1.0]]).double(), torch.tensor([[2.0]]).double()
        found = rf.bounds(Square(), *ends, torch.ones(1, 1).double())
        assert found.lower.item() == pytest.approx(0, abs=1e-10)
        assert found.upper.item() == pytest.approx(4)
        with pytest.raises(ArgumentError, match="does not say where its weights turn"):
            rf.bounds(Silent(), *ends, torch.ones(1, 1).double())


class TestSoundness:
    @every
    @pytest.mark.parametrize("size", [0.01, 1.0, 5.0])
    def test_no_read_of_a_random_search_leaves_the_range(self, rule: RuleSpec, size: float) -> None:
        low, high, least, largest = box(4, 6, 20, 4, size)
        visible = torch.rand(6, 20, generator=torch.Generator().manual_seed(5)) < 0.7
        visible[0] = False
        visible[1] = torch.arange(20) == 3
        found = rf.bounds(rule, low, high, (least, largest), visible=visible)
        assert found.exact == (rule not in CENTRED)
        draw = torch.Generator().manual_seed(6)
        for i in range(300):
            share = torch.rand(6, 20, generator=draw, dtype=torch.float64)
            of_values = torch.rand(20, 4, generator=draw, dtype=torch.float64)
            if i % 2:  # vertices
                share, of_values = share.round(), of_values.round()
            scores = low + share * (high - low)
            out = read(rules.get(rule), scores, least + of_values * (largest - least), visible)
            assert (found.lower <= out).all()
            assert (out <= found.upper).all()
        assert (found.lower[0] == 0).all()
        assert (found.upper[0] == 0).all()

    @every
    def test_float32_holds_what_float64_reads(self, rule: RuleSpec) -> None:
        """Of known scores, where the range is but rounding, and of intervals at their own vertices."""
        for seed in range(20):
            low, high, values, _ = (x.float() for x in box(seed, 8, 100, 3, 0.0 if seed % 2 else 0.5))
            found = rf.bounds(rule, low, high, values)
            assert found.lower.dtype == torch.float32
            for scores in (low, high):
                out = read(rules.get(rule), scores.double(), values.double())
                assert (found.lower.double() <= out).all()
                assert (out <= found.upper.double()).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("rule", ["softmax", "softmax1"])
    def test_huge_scores(self, rule: str, dtype: torch.dtype) -> None:
        middle = torch.tensor([[5000.0, 4990.0, -3000.0, 0.0]], dtype=dtype)
        values = torch.tensor([[3.0], [-2.0], [7.0], [1.0]], dtype=dtype)
        found = rf.bounds(rule, middle - 0.5, middle + 0.5, values)
        out = read(rules.get(rule), middle.double(), values.double())
        assert (found.lower <= out).all()
        assert (out <= found.upper).all()
        assert (found.upper - found.lower).item() < 1e-2
        wide = rf.bounds(rule, middle - 9000, middle + 9000, values)
        assert wide.lower.item() == pytest.approx(-2)
        assert wide.upper.item() == pytest.approx(7)

    @pytest.mark.parametrize("rule", CENTRED, ids=name_of)
    def test_ranges_of_centred_rules_shrink_with_the_box(self, rule: RuleSpec) -> None:
        """Sound is not enough: at a point the range is nearly nothing, and it grows with the box."""
        widths = []
        for size in (0.0, 0.01, 0.1):
            low, high, values, _ = box(7, 5, 40, 3, size)
            found = rf.bounds(rule, low, high, values)
            widths.append((found.upper - found.lower).mean().item())
        assert widths[0] < 1e-4
        assert widths[0] < widths[1] < widths[2] < 1


class TestRounding:
    """Sound where rounding shows: against the exact weight, and against what the library itself reads."""

    @pytest.mark.parametrize("high", [20.000000001, 40.0, 40.000000001, 60.0])
    def test_softplus_has_no_step(self, high: float) -> None:
        rule = {"name": "pointwise_seqlen", "h": "softplus", "alpha": 0.0}
        low, one = torch.tensor([[19.9]]).double(), torch.ones(1, 1).double()
        found = rf.bounds(rule, low, torch.full_like(low, high), one)
        scores = torch.linspace(19.9, high, 1001).double()[:, None]
        weights = read(rules.get(rule), torch.cat([scores, scores.new_full((1, 1), 20.0)]), one)
        assert (found.lower <= weights).all() and (weights <= found.upper).all()
        exact = high + math.log1p(math.exp(-high))
        assert exact <= found.upper.item() <= exact * (1 + 1e-11)

    @pytest.mark.parametrize("size", [1.0, 1e6])
    @pytest.mark.parametrize("score", [-8.5, -8.0, -6.0, -5.0, -1.0])
    def test_gelu_far_below_zero(self, score: float, size: float) -> None:
        rule = {"name": "pointwise_seqlen", "h": "gelu", "alpha": 0.0}
        scores = torch.full((1, 64), score, dtype=torch.float64)
        values = torch.full((64, 1), size, dtype=torch.float64)
        found = rf.bounds(rule, scores, scores, values)
        exact = 64 * size * score / 2 * math.erfc(-score / math.sqrt(2))
        one_by_one = sum(read(rules.get(rule), scores[:, :1], values[:1]).item() for _ in range(64))
        for out in (exact, one_by_one, read(rules.get(rule), scores, values).item()):
            assert found.lower.item() <= out <= found.upper.item()
        assert (found.upper - found.lower).item() < 1e-10 * size

    def test_sums_that_vanish_are_not_called_exact(self) -> None:
        """Scores that span more than e^500: each range is sound, and one that is called exact is reached."""
        exact = 0
        for seed in range(200):
            draw = torch.Generator().manual_seed(seed)
            middle = 600 * torch.randn(4, generator=draw, dtype=torch.float64)
            radius = 300 * torch.rand(4, generator=draw, dtype=torch.float64)
            values = torch.randn(4, 1, generator=draw, dtype=torch.float64)
            low, high = middle - radius, middle + radius
            found = rf.bounds("softmax", low[None], high[None], values)
            corners = torch.stack([torch.stack(ends) for ends in product(*zip(low, high, strict=True))])
            out = read(rules.get("softmax"), corners, values)
            assert found.lower <= out.min() and out.max() <= found.upper
            exact += found.exact
            if found.exact:
                assert out.min() - found.lower < 1e-9 and found.upper - out.max() < 1e-9
        assert 0 < exact < 200


class TestBaseline:
    @every
    def test_each_weight_alone_is_sound_and_never_tighter(self, rule: RuleSpec) -> None:
        low, high, least, largest = box(11, 5, 12, 3)
        found = rf.bounds(rule, low, high, (least, largest))
        alone = rf.bounds(rule, low, high, (least, largest), elementwise=True)
        assert (alone.lower <= found.lower + 1e-9).all()
        assert (alone.upper >= found.upper - 1e-9).all()
        divided = rule in (*RATIOS, *CENTRED)
        assert alone.exact == (not divided)
        if rule in RATIOS:
            assert (alone.upper - alone.lower).mean() > 1.2 * (found.upper - found.lower).mean()

    def test_softmax_by_hand(self) -> None:
        """A weight is largest where its own score is high and the other low, and both may be so at once."""
        low, high = torch.tensor([[-1.0, -1.0]]).double(), torch.tensor([[1.0, 1.0]]).double()
        found = rf.bounds("softmax", low, high, torch.tensor([[1.0], [1.0]]).double(), elementwise=True)
        share = 1 / (1 + math.exp(-2))
        assert found.upper.item() == pytest.approx(2 * share)
        assert found.lower.item() == pytest.approx(2 * (1 - share))


class TestForm:
    @every
    def test_batches_and_heads_are_read_like_one_row(self, rule: RuleSpec, monkeypatch: pytest.MonkeyPatch) -> None:
        low, high, least, largest = box(8, 24, 11, 4)
        shaped = [x.reshape(2, 3, 4, 11) for x in (low, high)]
        whole = rf.bounds(rule, *shaped, (least, largest))
        assert whole.lower.shape == (2, 3, 4, 4)
        monkeypatch.setattr(read_range, "AT_ONCE", 100)
        pieces = rf.bounds(rule, low, high, (least, largest))
        torch.testing.assert_close(whole.lower.reshape(24, 4), pieces.lower)
        torch.testing.assert_close(whole.upper.reshape(24, 4), pieces.upper)

    @every
    def test_gradients_are_those_of_finite_differences(self, rule: RuleSpec) -> None:
        low, high, least, largest = box(9, 2, 5, 2)
        low, high, least, largest = (x.requires_grad_() for x in (low - 0.01, high, least - 0.01, largest))

        def both(*given: Tensor) -> tuple[Tensor, Tensor]:
            found = rf.bounds(rule, given[0], given[1], (given[2], given[3]))
            return found.lower, found.upper

        assert torch.autograd.gradcheck(both, (low, high, least, largest))

    @every
    def test_a_hidden_slot_changes_nothing(self, rule: RuleSpec) -> None:
        low, high, values, _ = box(10, 3, 6, 2)
        visible = torch.arange(6) != 2
        kept = [0, 1, 3, 4, 5]
        expected = rf.bounds(rule, low[:, kept], high[:, kept], values[kept])
        low[:, 2], high[:, 2] = math.nan, -math.inf
        found = rf.bounds(rule, low, high, values, visible=visible)
        torch.testing.assert_close(found.lower, expected.lower)
        torch.testing.assert_close(found.upper, expected.upper)

    def test_no_slot_reads_zero(self) -> None:
        found = rf.bounds("softmax", torch.zeros(2, 0), torch.zeros(2, 0), torch.zeros(0, 3))
        assert found.lower.shape == (2, 3)
        assert (found.lower == 0).all()
        assert (found.upper == 0).all()


LOW, HIGH, VALUES = torch.zeros(2, 3), torch.ones(2, 3), torch.ones(3, 4)


@pytest.mark.parametrize(
    ("rule", "arguments", "message"),
    [
        ("softmax", (HIGH, LOW, VALUES), r"low is above high at \[0, 0\]: 1.0 > 0.0"),
        ("softmax", (LOW * math.nan, HIGH, VALUES), r"low\[0, 0\] is nan; every number must be finite"),
        ("softmax", (LOW, HIGH + math.inf, VALUES), r"high\[0, 0\] is inf"),
        ("relu", (LOW, HIGH, VALUES * math.nan), r"values\[0, 0\] is nan"),
        ("relu", (LOW, HIGH, (VALUES + 1, VALUES)), "the least values is above the largest values"),
        ("relu", (LOW, HIGH[:1], VALUES), r"low has shape \(2, 3\) and high \(1, 3\); they must agree"),
        ("relu", (LOW, HIGH, VALUES[:2]), "3 slots have scores and 2 have values"),
        ("relu", (LOW, HIGH, (VALUES, VALUES[:2])), "the least values have shape"),
        ("relu", (LOW[None].expand(2, 2, 3), HIGH[None].expand(2, 2, 3), VALUES[None].expand(3, 3, 4)), "broadcast"),
        ("relu", (LOW.int(), HIGH, VALUES), "low must be a floating-point tensor"),
        ("relu", (LOW, HIGH, (VALUES,)), "values is a tuple of 1; pass one tensor, or a pair"),
        ("relu", (LOW, HIGH, (VALUES, VALUES, VALUES)), "values is a tuple of 3"),
        ("relu", (LOW, HIGH, [1.0]), "values must be a floating-point tensor.*got list"),
        ("sparsemax", (LOW, HIGH, VALUES), "rule 'sparsemax' is neither pointwise nor"),
        ("entmax15", (LOW, HIGH, VALUES), "rule 'entmax15' is neither"),
        ("softpick", (LOW, HIGH, VALUES), "rule 'softpick' is neither"),
        ({"name": "relu_rest", "threshold": 1.0}, (LOW, HIGH, VALUES), "threshold or growth above 0"),
    ],
)
def test_bad_input_names_what_is_wrong(rule: Any, arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        rf.bounds(rule, *arguments)


def test_bad_visibility() -> None:
    for given, shown in ((LOW, "torch.float32 of shape"), ([True], "list")):
        with pytest.raises(ArgumentError, match=f"visible must be a boolean tensor, True = visible; got {shown}"):
            rf.bounds("relu", LOW, HIGH, VALUES, visible=given)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="does not broadcast to"):
        rf.bounds("relu", LOW, HIGH, VALUES, visible=torch.ones(4, dtype=torch.bool))


def test_a_rule_of_ones_own_states_its_turning_points() -> None:
    @dataclass(frozen=True)
    class Changed(rules.Polynomial):
        """Inherits turning points that are not its own."""

        def activate(self, scores: Tensor, n: Tensor) -> Tensor:
            return scores.cos()

    with pytest.raises(ArgumentError, match="does not say where its weights turn"):
        rf.bounds(Changed(), LOW, HIGH, VALUES)


def test_numbers_beyond_the_largest() -> None:
    """In float32 the inner end is its largest number and the outer one infinite; beyond float64 is an error."""
    low, high = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 2.0]])
    found = rf.bounds("relu_plain", low, high, torch.tensor([[3e38, -3e38], [3e38, -3e38]]))
    largest = torch.finfo(torch.float32).max
    assert found.upper[0, 0] == torch.inf and found.lower[0, 1] == -torch.inf
    assert largest * (1 - 1e-6) < found.lower[0, 0] <= largest and -largest <= found.upper[0, 1] < -largest * (1 - 1e-6)
    with pytest.raises(ArgumentError, match="overflows the numbers of float64"):
        rf.bounds("relu_plain", low.double(), high.double(), torch.full((2, 1), 1e308, dtype=torch.float64))
