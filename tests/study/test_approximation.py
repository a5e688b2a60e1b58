"""Indicator functions from ReLU slots: theory beside measurement, exclusive regions, and learning them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.rules import Formula
from reluformer.study import approximation, measures
from reluformer.study.plan import Run, make_plan
from reluformer.study.trainings import Context

OUTPUTS = ("softmax", "sparsemax", {"name": "relu_norm", "delta": 0.01})
every_output = pytest.mark.parametrize("output", OUTPUTS, ids=["softmax", "sparsemax", "relu_norm"])
REGIONS: dict[str, Any] = {
    "study": 1,
    "kind": "regions",
    "regions": {"dimensions": 2, "cells": 6, "classes": 3},
    "output": "softmax",
    "slots": [4, 64],
    "pictures": [64],
    "training": {"updates": 150, "warmup": 10, "points": 256, "seed": 0},
    "search": {"lr": [1e-2, 5e-2], "updates": 20},
    "test_points": 2048,
}


def interval(**changes: Any) -> Run:
    content = {"ramps": "centred", "output": "softmax", "width": 0.1, "widths": [0.1, 0.01], "seed": 3, **changes}
    return Run({"study": 1, "kind": "interval", **content})


@pytest.mark.parametrize(("ramps", "share"), [("outside", 1.0), ("centred", 0.5)])
def test_four_relus_have_the_errors_of_theory(ramps: str, share: float, context: Context) -> None:
    """The grid has 5,000 points on a ramp of width 0.01, so the largest error is seen up to 0.0002."""
    points = approximation.run_interval(interval(ramps=ramps), context)["widths"]
    assert [point["width"] for point in points] == [0.1, 0.01]
    for point in points:
        assert point["l1"] == pytest.approx(share * point["width"], rel=1e-3)
        assert point["largest"] == pytest.approx(share, abs=5e-4)


def test_outside_its_ramps_a_trapezoid_is_zero_and_inside_one() -> None:
    x = torch.tensor([[0.0], [0.1999], [0.3], [0.7], [0.8001], [1.0]], dtype=torch.float64)
    read = approximation.trapezoid(0.25, 0.75, 0.05, centred=False)(x)[0][:, 0]
    assert read.tolist() == pytest.approx([0, 0, 1, 1, 0, 0], abs=1e-12)


@every_output
def test_outputs_have_the_errors_of_theory(output: Any, context: Context) -> None:
    result = approximation.run_interval(interval(output=output, widths=[], scales=[0.5, 1, 4, 64]), context)
    for point in result["scales"]:
        assert point["l1"] == pytest.approx(point["l1_theory"], rel=2e-3)
    zeros = {point["scale"]: point["zeros"] for point in result["scales"]}
    assert (zeros[64] == 0) == (output == "softmax")


def test_classes_are_exclusive_and_weights_of_an_output_sum_to_one() -> None:
    regions = approximation.Regions(4, cells=16, classes=4, seed=1)
    points, answers = regions.draw(512, torch.Generator().manual_seed(0))
    assert points.shape == (512, 4) and set(answers.tolist()) == {0, 1, 2, 3}
    scores = approximation.RegionModel(4, 4, 32)(points)
    for output in ("softmax", "sparsemax"):
        assert torch.allclose(approximation.classify(scores, output).sum(-1), torch.ones(512), atol=1e-5)


@every_output
def test_more_slots_learn_regions_better(output: Any, context: Context) -> None:
    result = approximation.run_regions(Run({**REGIONS, "output": output}), context)
    results = {"regions": result}
    assert measures.value("error_left", results) < 0.9
    assert (measures.value("class_zeros@64", results) > 0.2) == (output != "softmax")
    assert set(result["rates"].values()) <= {1e-2, 5e-2}
    pixels = torch.tensor(result["pictures"]["64"])
    assert pixels.shape == (approximation.PICTURE, approximation.PICTURE, 3)
    assert pixels.min() >= 0 and pixels.max() <= 255


def test_the_gradient_is_that_of_the_cross_entropy() -> None:
    scores = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    answers = torch.tensor([0, 1, 2, 1, 0])
    torch.nn.functional.cross_entropy(scores, answers).backward()
    weights = approximation.classify(scores.detach(), "softmax")
    ours = (weights - torch.nn.functional.one_hot(answers, 3)) / 5
    assert torch.allclose(scores.grad, ours)


def test_every_seed_has_regions_of_its_own() -> None:
    first, second = (approximation.Regions(2, 16, 4, seed).centres for seed in (0, 1))
    assert not torch.equal(first, second)
    plan = make_plan(["approximation"], "small", None)
    assert {run.kind for run in plan.runs.values()} == {"interval", "regions"}
    assert len(plan.runs) == 3 * (2 + 3 + 9)


def test_theory_knows_three_outputs() -> None:
    for name in ("entmax15", "scalable_softmax"):
        with pytest.raises(ArgumentError, match=rf"output '{name}': theory knows softmax, sparsemax and relu_norm"):
            approximation.output_error(name, 0.1, 1.0)


def test_theory_knows_a_rule_of_ones_own_by_its_formula() -> None:
    @dataclass(frozen=True)
    class Own(rules.Formulated):
        activation: str = "exp"
        delta: float = 0.0

        def formula(self) -> Formula:
            return Formula(self.activation, delta=self.delta)  # type: ignore[arg-type]

    rules.register("own_output")(Own)
    try:
        for own, known in (
            ("own_output", "softmax"),
            ({"name": "own_output", "activation": "relu", "delta": 0.5}, {"name": "relu_norm", "delta": 0.5}),
        ):
            assert approximation.output_error(own, 0.1, 3.0) == approximation.output_error(known, 0.1, 3.0)
        with pytest.raises(ArgumentError, match="output 'own_output': theory knows"):
            approximation.output_error({"name": "own_output", "delta": 1.0}, 0.1, 1.0)
    finally:
        rules.unregister("own_output")
