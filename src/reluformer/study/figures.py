"""Figures in two steps: the numbers as plain data, which is kept, and a picture drawn from nothing else.

Data is {"kind", "title", "caption", "panels"}; a panel of lines has series with x, y and the 95 %
interval over seeds (low, high), a panel of dots the same over labels, a panel of a map its weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reluformer.study import measures
from reluformer.study.experiment import Figure
from reluformer.study.measures import EVALUATION
from reluformer.study.results import Results
from reluformer.study.verdicts import interval

# Okabe and Ito's colours, told apart by everyone; dashes and markers tell them apart in black and white.
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = "sodv^DPX*<>"
NUMBERS = {
    "softmax": 0,
    "relu": 1,
    "reluformer": 2,
    "relu_seqlen": 3,
    "softmax_ln": 4,
    "relu_plain": 5,
    "sparsemax": 6,
    "rela": 8,
    "relu2": 10,
    "sigmoid": 53,
    "entmax15": 40,
    "relu_exp": 60,
    "relu_regularized": 2,
    "relu_chance": 65,
    "softpick": 22,
    "scalable_softmax": 23,
    "relu_norm": 31,
    "relu 1": 1,
    "relu 0": 3,
    "gelu": 2,
    "softplus": 7,
    "identity": 5,
    "relu6": 6,
    "softmax_sqrt": 13,
    "softmax_scaled": 19,
    "relu_ln": 17,
    "neither": 1,
    "both": 2,
    "entropy": 18,
    "normalization": 10,
}
"""The numbers of rules and terms, which look the same in every figure.

Modulo seven the number is the colour, modulo eleven the marker. Those that share a figure differ in
their marker, and in their colour as long as there are enough."""


def figure_data(figure: Figure, experiment: str, results: Results) -> dict[str, Any] | None:
    """Returns the data of a figure; None if nothing of it was measured.

    Args:
        figure: The figure as its experiment declares it.
        experiment: The name of the experiment.
        results: The results of a plan.
    """
    if figure.kind == "table":
        return None
    panels = _PANELS[figure.kind](figure, experiment, results)
    panels = [panel for panel in panels if panel.get("series") or panel.get("weights") or panel.get("pixels")]
    if not panels:
        return None
    shown = "dots" if figure.kind == "points" else "map" if figure.kind in ("map", "pictures") else "lines"
    log = {"log_x": "x" in figure.log, "log_y": "y" in figure.log}
    return {
        "kind": shown,
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        **log,
        "panels": panels,
    }


def _metrics(figure: Figure) -> list[str]:
    return [figure.metric] if isinstance(figure.metric, str) else figure.metric


def point(x: float | str, values: Sequence[float], log: bool = False) -> dict[str, Any]:
    """Returns mean and interval of the finite values; `diverged` counts the others.

    On a logarithmic axis the mean and interval are those of the logarithms that exist.

    Example:
        >>> found = point(128, [1.0, 3.0])
        >>> found["y"], found["seeds"], found["diverged"]
        (2.0, 2, 0)
    """
    finite = [value for value in values if math.isfinite(value)]
    summary: dict[str, Any] = {"x": x, "seeds": len(values), "diverged": len(values) - len(finite)}
    if finite:
        log = log and max(finite) > 0
        found = interval([math.log(value) for value in finite if value > 0] if log else finite)
        mean, low, high = (math.exp(min(y, 700.0)) if log else y for y in (found.mean, found.low, found.high))
        summary["y"], summary["values"] = mean, finite
        if len(finite) > 1:
            summary["low"], summary["high"] = low, high
    return summary


def _dots(figure: Figure, experiment: str, results: Results) -> list[dict[str, Any]]:
    panels = []
    for metric in _metrics(figure):
        points = []
        for place in results.places(experiment, figure.part):
            values = results.values(experiment, figure.part, place, metric)
            points.append(point(" ".join(place.values()), list(values.values())))
        series = [{"label": "", "points": points}] if any(p["seeds"] for p in points) else []
        panels.append({"title": "", "xlabel": measures.measure(metric).label, "series": series})
    return panels


def _lines(figure: Figure, experiment: str, results: Results) -> list[dict[str, Any]]:
    assert figure.x is not None
    panels = []
    for metric in _metrics(figure):
        series: dict[str, list[dict[str, Any]]] = {}
        for place in results.places(experiment, figure.part):
            values = results.values(experiment, figure.part, place, metric)
            label = " ".join(label for axis, label in place.items() if axis != figure.x)
            if values:
                found = point(float(place[figure.x]), list(values.values()), "y" in figure.log)
                series.setdefault(label, []).append(found)
        listed = [{"label": label, "points": points} for label, points in series.items()]
        panels.append({"title": "", "xlabel": figure.x, "ylabel": measures.measure(metric).label, "series": listed})
    return panels


def _curves(figure: Figure, experiment: str, results: Results) -> list[dict[str, Any]]:
    """Returns a panel for each metric and each place on the other axes, with one metric drawn against another.

    A line joins the labels of the first axis that begin with the same word: `relu_exp` and `relu_exp 0.5` are
    settings of one rule.
    """
    assert figure.x is not None
    panels: dict[tuple[str, str], dict[str, Any]] = {}
    for metric in _metrics(figure):
        for place in results.places(experiment, figure.part):
            label, *_ = place.values()
            title = ", ".join(f"{axis} {name}" for axis, name in list(place.items())[1:])
            labels = {"xlabel": measures.label(figure.x), "ylabel": measures.label(metric)}
            panel = panels.setdefault((metric, title), {"title": title, **labels, "series": []})
            along = results.values(experiment, figure.part, place, figure.x)
            values = results.values(experiment, figure.part, place, metric)
            if not along or not values:
                continue
            name = label.split()[0]
            if not any(series["label"] == name for series in panel["series"]):
                panel["series"].append({"label": name, "points": []})
            series = next(series for series in panel["series"] if series["label"] == name)
            series["points"].append(point(sum(along.values()) / len(along), list(values.values()), "y" in figure.log))
            series["points"].sort(key=lambda found: found["x"])
    return list(panels.values())


def _series(figure: Figure, experiment: str, results: Results) -> list[dict[str, Any]]:
    """Returns a panel for each metric and each place on the other axes; it has a line for each label of the first."""
    panels: dict[tuple[str, str], dict[str, Any]] = {}
    for metric in _metrics(figure):
        known = measures.series(metric)
        for place in results.places(experiment, figure.part):
            label = next(iter(place.values()))
            seeds = results.at(experiment, figure.part, place).values()
            by_x: dict[float | str, list[float]] = {}
            for found in seeds:
                for x, y in known.points(found):
                    by_x.setdefault(x, []).append(y)
            title = ", ".join(f"{axis} {name}" for axis, name in list(place.items())[1:])
            empty = {"title": title, "xlabel": known.along, "ylabel": known.label, "series": []}
            panel = panels.setdefault((metric, title), empty)
            if by_x:
                points = [point(x, values, "y" in figure.log) for x, values in by_x.items()]
                panel["series"].append({"label": label, "points": points})
            if by_x and known.theory is not None:
                panel["series"][-1]["theory"] = known.theory(next(iter(seeds)))
            if by_x and known.ceiling is not None:
                panel["ceiling"] = known.ceiling(next(iter(seeds)))
    return list(panels.values())


def _reads(figure: Figure, experiment: str, results: Results) -> list[dict[str, Any]]:
    """Returns a panel for each correlation of the values, with measured points and the line of theory."""
    panels: dict[float, dict[str, Any]] = {}
    for place in results.places(experiment, figure.part):
        found: dict[tuple[float, int], list[Mapping[str, Any]]] = {}
        for seed in results.at(experiment, figure.part, place).values():
            for measured in seed["reads"]["points"]:
                found.setdefault((measured["correlation"], measured["slots"]), []).append(measured)
        for (correlation, slots), points in found.items():
            title = f"values with correlation {correlation:g}"
            empty = {"title": title, "xlabel": "slots n", "ylabel": "variance of the read", "level": 1.0, "series": []}
            series = panels.setdefault(correlation, empty)["series"]
            if not series or series[-1]["label"] != place["rule"]:
                series.append({"label": place["rule"], "points": [], "theory": []})
            variances = [measured["measured"] for measured in points]
            series[-1]["points"].append(point(slots, variances, "y" in figure.log))
            if points[0]["theory"] is not None:
                series[-1]["theory"].append([slots, points[0]["theory"]])
    return list(panels.values())


def _maps(figure: Figure, experiment: str, results: Results) -> list[dict[str, Any]]:
    panels = []
    for place in results.places(experiment, figure.part):
        seeds = results.at(experiment, figure.part, place)
        found = seeds[min(seeds)].get(EVALUATION, {}).get("maps", {})
        if found.get("picture"):
            panels.append({"title": " ".join(place.values()), "weights": found["picture"]})
    return panels


def _pictures(figure: Figure, experiment: str, results: Results) -> list[dict[str, Any]]:
    """Returns a panel for each picture that the runs drew themselves, with its pixels."""
    panels = []
    for place in results.places(experiment, figure.part):
        for found in results.at(experiment, figure.part, place).values():
            for own in found.values():
                for slots, pixels in own.get("pictures", {}).items():
                    panels.append({"title": f"{next(iter(place.values()))}, {slots} slots", "pixels": pixels})
    return panels


_PANELS = {
    "points": _dots,
    "lines": _lines,
    "curve": _curves,
    "series": _series,
    "reads": _reads,
    "map": _maps,
    "pictures": _pictures,
}


# ------------------------------------------------------------------ drawing


def draw(data: Mapping[str, Any]) -> Any:
    """Draw a matplotlib figure from the data; the caller closes it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    panels = data["panels"]
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    tall = max((len(s["points"]) for p in panels for s in p.get("series", ())), default=0)
    height = 0.9 + 0.36 * tall if data["kind"] == "dots" else 3.5
    figure, axes = plt.subplots(
        rows, columns, figsize=(1.2 + 4.1 * columns, height * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for i, (axis, panel) in enumerate(zip(axes.flat, panels, strict=False)):
        {"dots": _draw_dots, "lines": _draw_lines, "map": _draw_map}[data["kind"]](axis, panel, data)
        axis.set_title(panel["title"], fontsize=10)
        if data["kind"] == "dots" and i % columns:
            axis.set_yticklabels([])
    if data["kind"] == "lines":
        handles = {h.get_label(): h for axis in axes.flat for h in axis.get_legend_handles_labels()[0]}
        if len(handles) > 1 or "" not in handles:
            figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    return figure


def look(label: str, i: int) -> dict[str, Any]:
    """Returns colour, dash and marker of a line; those of a known rule are always the same."""
    number = NUMBERS.get(label, 28 + i)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[(number + number // len(COLOURS)) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def _draw_lines(axis: Any, panel: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    if "level" in panel:
        axis.axhline(panel["level"], color="0.85", linewidth=6, zorder=0)
    if panel.get("ceiling"):
        axis.plot(*zip(*panel["ceiling"], strict=True), color="0.8", linewidth=5, zorder=0, label="best possible")
        axis.set_ylim(-0.03, 1.05)  # shares; an interval over three seeds may reach beyond them
    for i, series in enumerate(panel["series"]):
        points = [point for point in series["points"] if "y" in point]
        style = look(series["label"], i)
        x, y = [p["x"] for p in points], [p["y"] for p in points]
        theory = series.get("theory")
        if theory:
            axis.plot(*zip(*theory, strict=True), color=style["color"], linestyle=style["linestyle"], linewidth=1)
            style["linestyle"] = "none"
        axis.plot(x, y, label=series["label"], markersize=4.5, linewidth=1.3, **style)
        if not points or any("low" not in p for p in points) or "theory" in series:
            continue
        if data["log_y"]:  # over orders of magnitude the bands of three seeds cover each other
            most = max(len(p["values"]) for p in points)
            whole = [
                p for p in points if len(p["values"]) == most
            ]  # where a value is missing, the seeds of the others are not known
            for seed in zip(*(p["values"] for p in whole), strict=True):
                axis.plot([p["x"] for p in whole], seed, color=style["color"], alpha=0.45, linewidth=0.7)
        else:
            lows, highs = [p["low"] for p in points], [p["high"] for p in points]
            axis.fill_between(x, lows, highs, color=style["color"], alpha=0.12, linewidth=0)
    if data["log_x"]:
        axis.set_xscale("log", base=2)
    if data["log_y"]:
        axis.set_yscale("log")
        seen = [value for s in panel["series"] for p in s["points"] for value in p.get("values", ()) if value > 0]
        if seen:  # an interval over few seeds may be wide; the measured points decide what is shown
            axis.set_ylim(min(seen) / 2, max(seen) * 2)
    axis.set(xlabel=panel["xlabel"], ylabel=panel["ylabel"])
    if any(isinstance(p["x"], str) for s in panel["series"] for p in s["points"]):
        axis.tick_params(axis="x", rotation=90)
    _clean(axis)


def _draw_dots(axis: Any, panel: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Draw seeds as small dots, and their mean and interval as a bar."""
    points = panel["series"][0]["points"]
    for i, point in enumerate(points):
        if (
            "y" not in point and not point["diverged"]
        ):  # not measured yet; its line stays, as the panels share their names
            continue
        if "y" not in point:
            axis.annotate("diverged", (0.02, i), xycoords=("axes fraction", "data"), va="center", color="0.3")
            continue
        if "low" in point:
            axis.plot([point["low"], point["high"]], [i, i], color="0.35", linewidth=2, solid_capstyle="butt")
        axis.plot(point["values"], [i] * len(point["values"]), "o", color="0.65", markersize=4)
        axis.plot([point["y"]], [i], "D", color="#0072B2", markersize=6)
        if point["diverged"]:
            axis.annotate(f" {point['diverged']} diverged", (point["y"], i), va="bottom", fontsize=8)
    axis.set_yticks(range(len(points)), [point["x"] for point in points])
    axis.set_ylim(len(points) - 0.5, -0.5)
    axis.set_xlabel(panel["xlabel"])
    axis.locator_params(axis="x", nbins=5)
    _clean(axis)


def _draw_map(axis: Any, panel: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    if "pixels" in panel:
        axis.imshow(panel["pixels"], interpolation="nearest", aspect="equal", origin="lower")
        axis.set_axis_off()
        return
    axis.imshow(panel["weights"], cmap="Greys", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    axis.set(xlabel="token read", ylabel="token reading")


def _clean(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(True, color="0.92", linewidth=0.8)
    axis.set_axisbelow(True)
