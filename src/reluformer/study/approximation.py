"""Indicator functions from a feed-forward memory: how near ReLUs and an output rule come to them (arXiv 2002.04060).

Interval. Four slots with the keys x - a etc. make the trapezoid f of an interval [a, b] with ramps of width w:

    f(x) = (ReLU(x - a + o) - ReLU(x - a + o - w) - ReLU(x - b - o + w) + ReLU(x - b - o)) / w

Ramps that lie outside of the interval (o = w) have the L1 error w and the largest error 1. Centred ramps (o = w/2)
have w/2 and 1/2.

Output. With p = weights((f, 1 - f), classes, scale=beta) the error of the right class, 1 - p, has a closed form for
centred ramps on a domain of length one. Per interval:

    softmax     (2 w / beta) (log 2 - log(1 + e^-beta)) + (1 - 2 w) / (1 + e^beta)
    sparsemax   w / (2 beta), for beta >= 1
    relu_norm   (delta + beta w / 2) / (delta + beta); no scale brings it below w / 2

Regions. Random centres divide the unit cube of d dimensions into cells, and each cell belongs to one of a few classes.
A memory reads the point, its read is the query, the classes are the slots, and the weights are the answer. Its L1 error
is the mean of 1 - p over the cube, with p the weight of the right class. Where weights sum to one, that is half of the
L1 errors of all classes together.

Every output is trained by the same gradient of its scores, p - y. For softmax that is the gradient of the
cross-entropy, for sparsemax that of the sparsemax loss.

Shapes: P points, d dimensions, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluformer import memory, rules
from reluformer.errors import ArgumentError
from reluformer.layers import FeedForward
from reluformer.memory import RuleSpec
from reluformer.rules import Formula
from reluformer.study.plan import Run
from reluformer.study.trainings import Context, rounded

POINTS = 2**19
"""Points of the grid on which an interval is measured."""
PICTURE = 48
"""Points along a side of the picture of a region in two dimensions."""
PALETTE = ((0.0, 0.45, 0.7), (0.9, 0.62, 0.0), (0.0, 0.62, 0.45), (0.8, 0.47, 0.65))
"""The colours of the classes, which a picture mixes by their weights."""
SEARCH_SEED = 100

# ------------------------------------------------------------------ one interval


def trapezoid(low: float, high: float, width: float, centred: bool) -> FeedForward:
    """Returns a memory of four slots that reads the indicator of an interval, with ramps instead of jumps.

    Args:
        low: the lower end of the interval.
        high: its upper end.
        width: the width of a ramp.
        centred: whether the ends lie in the middle of the ramps; otherwise the ramps lie outside of the interval.

    Example:
        >>> memory = trapezoid(0.25, 0.75, 0.125, centred=False)
        >>> memory(torch.tensor([[0.0], [0.5], [0.8125]], dtype=torch.float64))[0].squeeze(-1).tolist()
        [0.0, 1.0, 0.5]
    """
    found = FeedForward(1, 4, rules.get("relu_plain")).double().eval()
    outside = width / 2 if centred else width
    kinks = [low - outside, low - outside + width, high + outside - width, high + outside]
    with torch.no_grad():
        found.keys.weight.fill_(1.0)
        found.keys.bias.copy_(-torch.tensor(kinks, dtype=torch.float64))
        found.values.weight.copy_(torch.tensor([[1.0, -1.0, -1.0, 1.0]], dtype=torch.float64) / width)
        found.values.bias.zero_()
    return found


def classify(scores: Tensor, rule: RuleSpec, scale: float = 1.0) -> Tensor:
    """Returns the weights (P, C) of the classes for points with scores (P, C), under a rule as the output.

    Example:
        >>> classify(torch.tensor([[2.0, 1.0]]), "relu_norm").tolist()
        [[0.5, 0.25]]
    """
    classes = torch.eye(scores.size(-1), dtype=scores.dtype)
    found, _ = memory.weights(scores[None, None], classes[None, None], rule, scale=scale)
    return found[0, 0]


@torch.no_grad()
def run_interval(run: Run, context: Context) -> dict[str, Any]:
    """Measure the error of four ReLUs beside theory, by width of the ramps, and under an output rule by its scale."""
    content = run.content
    generator = torch.Generator().manual_seed(int(content["seed"]))
    low = 0.2 + 0.2 * float(torch.rand((), generator=generator))
    high = 0.6 + 0.2 * float(torch.rand((), generator=generator))
    x = (torch.arange(POINTS, dtype=torch.float64) + 0.5) / POINTS
    inside = ((x >= low) & (x <= high)).double()
    centred = content["ramps"] == "centred"
    widths, scales = content["widths"], content.get("scales", [])
    points = []
    for i, width in enumerate(widths):
        context.report(i / (len(widths) + len(scales)), f"width {width:g}")
        error = (trapezoid(low, high, width, centred)(x[:, None])[0][:, 0] - inside).abs()
        share = 0.5 if centred else 1.0
        measured = {"l1": float(error.mean()), "largest": float(error.max())}
        points.append({"width": width, **measured, "l1_theory": share * width, "largest_theory": share})
    outputs = []
    for i, scale in enumerate(scales):
        context.report((len(widths) + i) / (len(widths) + len(scales)), f"scale {scale:g}")
        width = float(content["width"])
        f = trapezoid(low, high, width, centred=True)(x[:, None])[0]
        found = classify(torch.cat([f, 1 - f], -1), content["output"], scale)
        error = float(torch.where(inside > 0, 1 - found[:, 0], 1 - found[:, 1]).mean())
        theory = output_error(content["output"], width, scale)
        outputs.append({"scale": scale, "l1": error, "l1_theory": theory, "zeros": float((found == 0).double().mean())})
    return {
        name: [_rounded(one) for one in found] for name, found in (("widths", points), ("scales", outputs)) if found
    }


def output_error(rule: RuleSpec, width: float, scale: float) -> float:
    """Returns the L1 error of theory for an interval with centred ramps under an output, on a domain of length one.

    Example:
        >>> output_error("sparsemax", 0.1, 8.0)
        0.00625

    Raises:
        ArgumentError: theory does not know the rule.
    """
    rule = rules.get(rule)
    formula = rules.formula_of(rule)
    if formula is not None and formula.is_softmax:
        ramps = 2 * width / scale * (math.log(2) - math.log1p(math.exp(-scale)))
        return ramps + (1 - 2 * width) / (1 + math.exp(scale))
    if isinstance(rule, rules.Sparsemax):  # a projection, which no formula describes
        flat = (1 - 2 * width) * max(0.0, 1 - scale) / 2
        return flat + (width / (2 * scale) if scale >= 1 else width * (1 - scale / 2))
    if formula is not None and formula.delta is not None and formula == Formula("relu", delta=formula.delta):
        return (formula.delta + scale * width / 2) / (formula.delta + scale)
    raise ArgumentError(f"output '{rule.name}': theory knows softmax, sparsemax and relu_norm; use one of these")


def _rounded(point: Mapping[str, Any]) -> dict[str, Any]:
    return {key: rounded(value) for key, value in point.items()}


# ------------------------------------------------------------------ regions


class Regions:
    """Random exclusive classes of the unit cube: the class of a point is that of the nearest of some random centres.

    Example:
        >>> regions = Regions(dimensions=2, cells=16, classes=4, seed=0)
        >>> points, answers = regions.draw(8, torch.Generator().manual_seed(0))
        >>> points.shape, answers.shape
        (torch.Size([8, 2]), torch.Size([8]))
    """

    def __init__(self, dimensions: int, cells: int, classes: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.dimensions, self.classes = dimensions, classes
        self.centres = torch.rand(cells, dimensions, generator=generator)
        self.class_of = torch.arange(cells) % classes

    def classify(self, points: Tensor) -> Tensor:
        """Returns the classes (P,) of points (P, d)."""
        return self.class_of[torch.cdist(points, self.centres).argmin(-1)]

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns uniform points (P, d) and their classes (P,)."""
        points = torch.rand(count, self.dimensions, generator=generator)
        return points, self.classify(points)


class RegionModel(nn.Module):
    """One memory of ReLU slots between a point and the scores of its classes.

    The kinks of the slots start at random points of the cube.
    """

    def __init__(self, dimensions: int, classes: int, slots: int) -> None:
        super().__init__()
        self.width = max(dimensions, classes)
        self.classes = classes
        self.memory = FeedForward(self.width, slots, rules.get("relu_plain"))
        with torch.no_grad():
            self.memory.keys.weight.mul_(4.0)
            kinks = F.pad(torch.rand(slots, dimensions), (0, self.width - dimensions))
            self.memory.keys.bias.copy_(-(self.memory.keys.weight * kinks).sum(-1))

    def forward(self, points: Tensor) -> Tensor:
        """Returns the scores (P, C) of points (P, d)."""
        tokens = F.pad(points, (0, self.width - points.size(-1)))
        scores: Tensor = self.memory(tokens[None, None])[0][0, 0]
        return scores[:, : self.classes]


def run_regions(run: Run, context: Context) -> dict[str, Any]:
    """Train a memory of each size on the regions of a seed, and measure its L1 error on new points."""
    content = run.content
    training, sizes = content["training"], content["slots"]
    seed, output = int(training["seed"]), content["output"]
    regions = Regions(**content["regions"], seed=seed)
    errors, zeros, pictures, rates = {}, {}, {}, {}
    for i, slots in enumerate(sizes):
        context.report(i / len(sizes), f"{slots} slots")
        lr = _chosen_rate(content, slots)
        model = _train(regions, slots, output, training, lr, seed)
        generator = torch.Generator().manual_seed(2**40 + seed)
        points, answers = regions.draw(int(content["test_points"]), generator)
        with torch.no_grad():
            found = classify(model(points), output)
        errors[str(slots)] = rounded(float(1 - found.gather(-1, answers[:, None]).mean()))
        zeros[str(slots)] = rounded(float((found == 0).float().mean()))
        rates[str(slots)] = lr
        if seed == 0 and regions.dimensions == 2 and slots in content.get("pictures", []):
            pictures[str(slots)] = _picture(model, output)
    return {
        "errors": errors,
        "zeros": zeros,
        "rates": rates,
        **({"pictures": pictures} if pictures else {}),
    }


def _chosen_rate(content: Mapping[str, Any], slots: int) -> float:
    """Returns the learning rate with the lower error after a short training with a seed that nothing else uses."""
    training, search = content["training"], content["search"]
    regions = Regions(**content["regions"], seed=SEARCH_SEED)
    points, answers = regions.draw(4096, torch.Generator().manual_seed(2**40 + SEARCH_SEED))
    errors = {}
    for lr in search["lr"]:
        model = _train(
            regions, slots, content["output"], {**training, "updates": search["updates"]}, float(lr), SEARCH_SEED
        )
        with torch.no_grad():
            found = classify(model(points), content["output"])
        errors[float(lr)] = float(1 - found.gather(-1, answers[:, None]).mean())
    return min(errors, key=lambda lr: errors[lr])


def _train(
    regions: Regions, slots: int, output: RuleSpec, training: Mapping[str, Any], lr: float, seed: int
) -> RegionModel:
    """Train a model by the gradient p - y of its scores, with fresh points at each update."""
    torch.manual_seed(seed)
    model = RegionModel(regions.dimensions, regions.classes, slots)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98))
    generator = torch.Generator().manual_seed(seed)
    updates, warmup = int(training["updates"]), int(training["warmup"])
    for update in range(1, updates + 1):
        rate = min(update / warmup, 0.5 * (1 + math.cos(math.pi * update / (updates + 1))))
        for group in optimizer.param_groups:
            group["lr"] = lr * rate
        points, answers = regions.draw(int(training["points"]), generator)
        scores = model(points)
        with torch.no_grad():
            gradient = (classify(scores, output) - F.one_hot(answers, regions.classes)) / len(points)
        optimizer.zero_grad(set_to_none=True)
        scores.backward(gradient)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def _picture(model: RegionModel, output: RuleSpec) -> list[list[list[int]]]:
    """Returns the unit square as rows of colours: those of the classes, mixed by their weights."""
    side = (torch.arange(PICTURE) + 0.5) / PICTURE
    points = torch.cartesian_prod(side, side)
    colours = torch.tensor(PALETTE)[torch.arange(model.classes) % len(PALETTE)]
    mixed = classify(model(points), output).clamp(0, 1) @ colours
    pixels: list[list[list[int]]] = (255 * mixed.clamp(0, 1)).round().int().view(PICTURE, PICTURE, 3).tolist()
    return pixels
