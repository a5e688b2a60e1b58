"""Metrics and series of a finished cell of the grid: single numbers to judge, and several numbers to draw.

A name may carry arguments after `@`: `accuracy@1024` is the accuracy at 1024 slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from reluformer.errors import UnknownNameError, nearest

EVALUATION = "examination"
"""The kind of a run that evaluates a trained model. The word is part of the address of every such run, so it stays."""
ResultsOfRuns = Mapping[str, Mapping[str, Any]]
"""The results of a cell by kind of run."""
Points = list[tuple[float | str, float]]
FFN_TELEMETRY = ("output_variance", "residual_variance")
LAST_FFN_TELEMETRY = ("top_mass", "anisotropy", "entropy")
ATTENTION_TELEMETRY = (
    *("read_variance", "row_sum", "zero_fraction", "dead", "margin_active"),
    *("query_gradient", "value_gradient"),
)
"""The telemetry that metrics and series read; LAST_FFN_TELEMETRY only of the last snapshot. No other is published."""


@dataclass(frozen=True)
class Measure:
    """One number of a cell; its value is None if it was not measured.

    The quality of a training that diverged is infinitely bad, and its telemetry does not count.
    """

    label: str
    value: Callable[..., float | None]
    better: Literal["lower", "higher"] = "higher"
    margin: float = 0.02
    """The difference up to which two values count as equivalent."""
    relative: bool = False
    """Whether the margin is a percentage of the value that is compared with."""
    digits: int = 3
    beside: str = ""
    """A metric that is reported with it where it exists, and decides nothing."""


@dataclass(frozen=True)
class Series:
    """Several numbers of a cell along an axis."""

    label: str
    along: str
    points: Callable[[ResultsOfRuns], Points]
    ceiling: Callable[[ResultsOfRuns], Points] | None = None
    """The best possible values, which are the same for all cells of a panel."""
    theory: Callable[[ResultsOfRuns], Points] | None = None
    """The line of theory."""


def value(name: str, results: ResultsOfRuns) -> float | None:
    """Returns the metric called `name`, or None if it was not measured."""
    return measure(name).value(results, *name.split("@")[1:])


def measure(name: str) -> Measure:
    """Returns how the metric called `name` is measured and judged.

    Raises:
        UnknownNameError: There is no such metric.
    """
    first = name.partition("@")[0]
    if first not in MEASURES:
        raise UnknownNameError(f"unknown metric '{first}'; {nearest(first, MEASURES)}")
    return MEASURES[first]


def label(metric: str) -> str:
    """Returns the heading of a column.

    Example:
        >>> label("accuracy@1024")
        'share of right answers at 1024'
    """
    return _with_arguments(measure(metric).label, metric)


def name(metric: str) -> str:
    """Returns the label without its unit, for a sentence."""
    return _with_arguments(measure(metric).label.partition(",")[0], metric)


def _with_arguments(text: str, metric: str) -> str:
    arguments = metric.split("@")[1:]
    return text + {0: "", 1: " at ", 2: ", "}[len(arguments)] + " over ".join(arguments)


def series(name: str) -> Series:
    """Returns the series called `name`.

    Raises:
        UnknownNameError: There is no such series.
    """
    if name not in SERIES:
        raise UnknownNameError(f"unknown series '{name}'; {nearest(name, SERIES)}")
    return SERIES[name]


# ------------------------------------------------------------------ single numbers


def _own(results: ResultsOfRuns) -> Mapping[str, Any]:
    """Returns the result of the run itself, not of its evaluation."""
    return next((result for kind, result in results.items() if kind != EVALUATION), {})


def _loss(results: ResultsOfRuns) -> float | None:
    own = _own(results)
    return math.inf if own.get("status") == "diverged" else own.get("loss")


def _accuracy(results: ResultsOfRuns, slots: str) -> float | None:
    own = _own(results)
    return -math.inf if own.get("status") == "diverged" else own.get("accuracy", {}).get(slots)


def _translated(key: str) -> Callable[[ResultsOfRuns], float | None]:
    def of(results: ResultsOfRuns) -> float | None:
        examined = results.get(EVALUATION, {})
        if examined.get("status") == "diverged":
            return -math.inf
        found: float | None = examined.get("translations", {}).get(key)
        return found

    return of


def _examined(measure: str, key: str, worst: float = math.nan) -> Callable[[ResultsOfRuns], float | None]:
    """Returns a number of one measure of the evaluation; `worst` for a training that diverged, unless it is NaN."""

    def of(results: ResultsOfRuns) -> float | None:
        examined = results.get(EVALUATION, {})
        if examined.get("status") == "diverged":
            return None if math.isnan(worst) else worst
        found: float | None = examined.get(measure, {}).get(key)
        return found

    return of


def _of_context(key: str, worst: float = math.nan) -> Callable[..., float | None]:
    """Returns a number of a language model on rows of one length; `worst` if it diverged, unless that is NaN."""

    def of(results: ResultsOfRuns, context: str) -> float | None:
        own = _own(results)
        if own.get("status") == "diverged":
            return None if math.isnan(worst) else worst
        found: float | None = own.get("contexts", {}).get(context, {}).get(key)
        return found

    return of


def _of_rows(key: str) -> Callable[..., float | None]:
    """Returns a mean over the rows of a recall model, at one number of slots tested on."""

    def of(results: ResultsOfRuns, slots: str) -> float | None:
        own = _own(results)
        found: float | None = own.get(key, {}).get(slots)
        return None if own.get("status") == "diverged" else found

    return of


def _reads(snapshot: Mapping[str, Any], ffn: bool) -> dict[str, Mapping[str, Any]]:
    return {name: read for name, read in snapshot["reads"].items() if name.endswith("ffn") == ffn}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else None


def _snapshots(results: ResultsOfRuns) -> list[Any]:
    """Returns the telemetry of a training, none if it diverged."""
    own = _own(results)
    return [] if own.get("status") == "diverged" else list(own.get("telemetry", []))


def _telemetry(key: str, ffn: bool, last: bool = False) -> Callable[[ResultsOfRuns], float | None]:
    """Returns a mean over memories, over all snapshots of the training or of the last one."""

    def of(results: ResultsOfRuns) -> float | None:
        snapshots = _snapshots(results)[-1 if last else 0 :]
        return _mean(read.get(key) for snapshot in snapshots for read in _reads(snapshot, ffn).values())

    return of


def _ratio(read: Mapping[str, Any]) -> float | None:
    output, residual = read.get("output_variance"), read.get("residual_variance")
    return output / residual if output and residual else None


def _log_ffn_variance(results: ResultsOfRuns) -> float | None:
    snapshots = _snapshots(results)
    mean = _mean(_ratio(read) for snapshot in snapshots for read in _reads(snapshot, True).values())
    return math.log10(mean) if mean else None


def _variance_slope(results: ResultsOfRuns) -> float | None:
    """Returns the slope of log variance against log n for uncorrelated values, by least squares."""
    points = [p for p in _own(results).get("points", []) if p["correlation"] == 0]
    x, y = [math.log(p["slots"]) for p in points], [math.log(p["measured"]) for p in points]
    if len(x) < 2:
        return None
    middle = sum(x) / len(x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def _speed(results: ResultsOfRuns, rule: str, other: str) -> float | None:
    """Returns how many times as fast one rule trains as another: eager, mean over lengths."""
    cells = [cell for place, cell in _own(results).get("training", {}).items() if place.startswith("eager")]
    return _mean(cell[rule]["ratio"] / cell[other]["ratio"] for cell in cells)


def _mapped(*keys: str) -> Callable[[ResultsOfRuns], float | None]:
    """Returns the sum of these shares, as a mean over the heads of the encoder's attention."""

    def of(results: ResultsOfRuns) -> float | None:
        reads = results.get(EVALUATION, {}).get("maps", {}).get("reads", {})
        encoder = [read for name, read in reads.items() if name.startswith("encoder")]
        return _mean(sum(heads) for read in encoder for heads in zip(*(read[key] for key in keys), strict=True))

    return of


def _of_test(key: str) -> Callable[[ResultsOfRuns], float | None]:
    """Returns a number of an image model on the test images; the accuracy of one that diverged is infinitely bad."""

    def of(results: ResultsOfRuns) -> float | None:
        own = _own(results)
        if own.get("status") == "diverged":
            return -math.inf if key == "accuracy" else None
        found: float | None = own.get("test", {}).get(key)
        return found

    return of


def _accuracy_by_step(results: ResultsOfRuns) -> Points:
    return [(point["step"], point["accuracy"]) for point in _own(results).get("valid", []) if "accuracy" in point]


def _of_points(kind: str, x: str, y: str) -> Callable[[ResultsOfRuns], Points]:
    """Returns one column of the measured points of an interval against another."""
    return lambda results: [(point[x], point[y]) for point in _own(results).get(kind, [])]


def _beside_theory(kind: str, key: str) -> Callable[[ResultsOfRuns], float | None]:
    """Returns the largest difference between measurement and theory, as a share of theory."""

    def of(results: ResultsOfRuns) -> float | None:
        points = _own(results).get(kind, [])
        return max((abs(p[key] / p[f"{key}_theory"] - 1) for p in points), default=None)

    return of


def _at_scale(key: str) -> Callable[..., float | None]:
    """Returns a number of an output at one scale of its scores."""
    return lambda results, scale: next(
        (p[key] for p in _own(results).get("scales", []) if p["scale"] == float(scale)), None
    )


def _by_size(key: str) -> Callable[..., float | None]:
    """Returns a number of regions learned by so many slots."""
    return lambda results, slots: _own(results).get(key, {}).get(slots)


def _error_left(results: ResultsOfRuns) -> float | None:
    """Returns the error of the largest memory as a share of that of the smallest."""
    errors = _own(results).get("errors", {})
    sizes = sorted(errors, key=int)
    return errors[sizes[-1]] / errors[sizes[0]] if sizes else None


MEASURES: dict[str, Measure] = {
    "loss": Measure("validation cross-entropy, nats a token", _loss, "lower", 1.0, relative=True, beside="bleu"),
    "bleu": Measure("BLEU", _translated("bleu"), margin=0.5, digits=2),
    "d_bleu": Measure("d-BLEU", _translated("d_bleu"), margin=0.5, digits=2),
    "accuracy": Measure("share of right answers", _accuracy),
    "log_ffn_variance": Measure(
        "log10 of FFN output variance / residual variance, mean over training and layers", _log_ffn_variance, digits=2
    ),
    "ffn_top_mass": Measure("mass on the top 0.2 % of the slots", _telemetry("top_mass", ffn=True, last=True)),
    "ffn_anisotropy": Measure("mean cosine of two values", _telemetry("anisotropy", ffn=True, last=True)),
    "ffn_entropy": Measure("entropy of a row, nats", _telemetry("entropy", ffn=True, last=True)),
    "margin_active": Measure("share of rows beyond the entropy margin", _telemetry("margin_active", ffn=False)),
    "attention_zeros": Measure("zero attention weights, share", _telemetry("zero_fraction", ffn=False, last=True)),
    "variance_slope": Measure("slope of log variance against log n", _variance_slope),
    "speed": Measure("times as fast in training", _speed, digits=2),
    "attention_distance": Measure("distance of a read, tokens", _mapped("distance"), digits=1),
    "weight_on_function_words": Measure(
        "weight on punctuation and function words", _mapped("punctuation", "function_words")
    ),
    "zeros": Measure("zeros among all visible pairs of the validation set, share", _examined("zeros", "zeros")),
    "dead_rows": Measure("rows that read nothing, share", _examined("zeros", "dead"), "lower", digits=4),
    "zeros_by_slots": Measure("zero weights, share", _of_rows("zeros")),
    "dead_by_slots": Measure("rows that read nothing, share", _of_rows("dead"), "lower", digits=4),
    "bleu_alone": Measure("BLEU of captions one by one", _examined("joined", "bleu_alone"), margin=0.5, digits=2),
    "joined_bleu": Measure("BLEU of joined captions", _examined("joined", "bleu", -math.inf), margin=0.5, digits=2),
    "length_cost": Measure(
        "cost of length, BLEU", _examined("joined", "cost", math.inf), "lower", margin=0.5, digits=2
    ),
    "neighbour_slips": Measure(
        "captions that slipped to a neighbour, share", _examined("joined", "slips", math.inf), "lower"
    ),
    "joined_loss": Measure(
        "test cross-entropy of joined captions, nats a token",
        _examined("joined", "loss", math.inf),
        "lower",
        1.0,
        relative=True,
        beside="joined_bleu",
    ),
    "terms": Measure("right terms, share", _translated("term_accuracy")),
    "pronouns": Measure("right pronouns, share", _translated("pronoun_accuracy")),
    "pronouns_far": Measure("right pronouns far from their antecedent, share", _translated("pronoun_accuracy_far")),
    "context_loss": Measure(
        "test cross-entropy, nats a token", _of_context("loss", math.inf), "lower", 1.0, relative=True
    ),
    "needles_found": Measure("needles found, share", _of_context("needle", -math.inf)),
    "context_zeros": Measure("zero weights, share", _of_context("zeros")),
    "pairs_skipped": Measure("pairs skipped, share", _of_context("skipped")),
    "test_accuracy": Measure("accuracy on the test images", _of_test("accuracy"), margin=0.01, digits=4),
    "image_zeros": Measure("zero attention weights, share", _of_test("zero_fraction")),
    "l1_beside_theory": Measure("L1 error away from theory, share", _beside_theory("widths", "l1"), "lower"),
    "largest_beside_theory": Measure(
        "largest error away from theory, share", _beside_theory("widths", "largest"), "lower"
    ),
    "scale_beside_theory": Measure("L1 error away from theory, share", _beside_theory("scales", "l1"), "lower"),
    "zeros_at_scale": Measure("zeros among the weights of the classes, share", _at_scale("zeros")),
    "l1_error": Measure("L1 error", _by_size("errors"), "lower", margin=0.01, digits=4),
    "class_zeros": Measure("zeros among the weights of the classes, share", _by_size("zeros")),
    "error_left": Measure("L1 error of the largest memory / of the smallest", _error_left, "lower"),
    "map_zeros": Measure("weights that are exactly zero", _mapped("zero_fraction")),
}


# ------------------------------------------------------------------ series


def _loss_by_step(results: ResultsOfRuns) -> Points:
    return [(point["step"], point["loss"]) for point in _own(results).get("valid", []) if point["loss"] is not None]


def _by_step(ffn: bool, of: Callable[[Mapping[str, Any]], float | None]) -> Callable[[ResultsOfRuns], Points]:
    def points(results: ResultsOfRuns) -> Points:
        snapshots = _own(results).get("telemetry", [])
        means = ((s["step"], _mean(of(read) for read in _reads(s, ffn).values())) for s in snapshots)
        return [(step, mean) for step, mean in means if mean is not None]

    return points


def _by_layer(ffn: bool, of: Callable[[Mapping[str, Any]], float | None]) -> Callable[[ResultsOfRuns], Points]:
    """Returns the values of the last snapshot, memory by memory in the order of the forward pass."""

    def points(results: ResultsOfRuns) -> Points:
        snapshots = _own(results).get("telemetry", [])
        reads = _reads(snapshots[-1], ffn) if snapshots else {}
        values = ((_short(name), of(read)) for name, read in reads.items())
        return [(name, value) for name, value in values if value is not None]

    return points


def _short(name: str) -> str:
    """Returns a short name of a read: encoder.0.attention is e0 self."""
    side, layer, kind = name.split(".")
    return f"{side[0]}{layer}" + {"attention": " self", "cross": " cross"}.get(kind, "")


def _read(key: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda read: read.get(key)


def _numbers(found: Mapping[str, Any]) -> Iterator[tuple[float | str, float]]:
    """Yields points; their x are numbers if all keys are numbers."""
    numeric = all(x.isdigit() for x in found)
    for x, y in found.items():
        if y is not None:
            yield (int(x) if numeric else x), y


def _losses(results: ResultsOfRuns) -> Mapping[str, Any]:
    found: Mapping[str, Any] = results.get(EVALUATION, {}).get("losses", {})
    return found


def _loss_by_position(results: ResultsOfRuns) -> Points:
    found = _losses(results)
    return list(_numbers(found[max(found, key=int)]["by_position"])) if found else []


def _loss_by_context_position(results: ResultsOfRuns) -> Points:
    """Returns the loss at each power of two of the longest rows, from "0-0" on."""
    contexts = _own(results).get("contexts") or {}
    found = contexts[max(contexts, key=int)]["by_position"] if contexts else {}
    return [(int(name.partition("-")[2]) + 1, loss) for name, loss in found.items() if loss is not None]


def _of_translations(key: str) -> Callable[[ResultsOfRuns], Points]:
    return lambda results: list(_numbers(results.get(EVALUATION, {}).get("translations", {}).get(key, {})))


def _tested(key: str) -> Callable[[ResultsOfRuns], Points]:
    return lambda results: list(_numbers(_own(results).get(key, {})))


SERIES: dict[str, Series] = {
    "loss_by_step": Series("validation cross-entropy", "update", _loss_by_step),
    "ffn_variance_by_step": Series("FFN output / residual variance", "update", _by_step(True, _ratio)),
    "ffn_variance_by_layer": Series("FFN output / residual variance", "layer", _by_layer(True, _ratio)),
    "read_variance_by_step": Series("variance of the read", "update", _by_step(False, _read("read_variance"))),
    "read_variance_by_layer": Series("variance of the read", "attention", _by_layer(False, _read("read_variance"))),
    "margin_active_by_step": Series("rows beyond the margin", "update", _by_step(False, _read("margin_active"))),
    "row_sum_by_step": Series("row sum", "update", _by_step(False, _read("row_sum"))),
    "zeros_by_step": Series("weights exactly zero", "update", _by_step(False, _read("zero_fraction"))),
    "dead_by_step": Series("rows without a weight", "update", _by_step(False, _read("dead"))),
    "query_gradient_by_step": Series("gradient into queries", "update", _by_step(False, _read("query_gradient"))),
    "value_gradient_by_step": Series("gradient into values", "update", _by_step(False, _read("value_gradient"))),
    "accuracy_by_slots": Series("share of right answers", "slots", _tested("accuracy"), _tested("ceiling")),
    "loss_by_length": Series(
        "cross-entropy", "tokens of a document", lambda r: [(int(n), f["loss"]) for n, f in _losses(r).items()]
    ),
    "loss_by_position": Series("cross-entropy", "position below", _loss_by_position),
    "loss_by_context_position": Series("cross-entropy", "position below", _loss_by_context_position),
    "d_bleu_by_length": Series("d-BLEU", "source tokens", _of_translations("d_bleu_by_length")),
    "terms_by_distance": Series("right terms", "sentences back", _of_translations("term_by_distance")),
    "accuracy_by_step": Series("accuracy on the validation images", "update", _accuracy_by_step),
    "l1_by_width": Series(
        "L1 error",
        "width of a ramp",
        _of_points("widths", "width", "l1"),
        theory=_of_points("widths", "width", "l1_theory"),
    ),
    "largest_by_width": Series(
        "largest error",
        "width of a ramp",
        _of_points("widths", "width", "largest"),
        theory=_of_points("widths", "width", "largest_theory"),
    ),
    "l1_by_scale": Series(
        "L1 error",
        "scale of the scores",
        _of_points("scales", "scale", "l1"),
        theory=_of_points("scales", "scale", "l1_theory"),
    ),
    "l1_by_slots": Series("L1 error", "slots", _tested("errors")),
    "class_zeros_by_slots": Series("weights exactly zero", "slots", _tested("zeros")),
    "pronouns_by_distance": Series("right pronouns", "sentences back", _of_translations("pronoun_by_distance")),
}
