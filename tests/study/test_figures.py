from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from reluformer.study import experiment, figures
from reluformer.study.plan import make_plan
from reluformer.study.results import Results, StudyDirectory

pytest.importorskip("matplotlib", reason="figures are drawn with matplotlib")


def test_a_logarithmic_axis_shows_the_mean_and_interval_of_the_logarithms() -> None:
    plain, log = (figures.point(1, [0.001, 0.1, 0.01], log) for log in (False, True))
    assert plain["y"] == pytest.approx(0.037) and plain["low"] < 0
    assert log["y"] == pytest.approx(0.01) and 0 < log["low"] < 0.001
    assert log["low"] * log["high"] == pytest.approx(0.01**2)
    assert log["values"] == [0.001, 0.1, 0.01]


def test_a_point_without_a_logarithm_or_interval() -> None:
    some_zero = figures.point(1, [0.0, 2.0, 8.0], True)
    assert (some_zero["y"], some_zero["values"]) == (pytest.approx(4.0), [0.0, 2.0, 8.0])
    assert figures.point(1, [0.0, 0.0], True)["y"] == 0.0
    alone = figures.point("e0", [4.0, math.inf], True)
    assert (alone["y"], alone["seeds"], alone["diverged"]) == (pytest.approx(4.0), 2, 1)
    assert "low" not in alone
    assert math.isfinite(figures.point(1, [1e-300, 1e300], True)["high"])


def test_a_wide_interval_does_not_decide_what_a_logarithmic_axis_shows() -> None:
    from matplotlib import pyplot as plt

    points = [figures.point(x, [0.01, 1.0], True) for x in (1, 2)]
    panel: dict[str, Any] = {"title": "", "xlabel": "x", "ylabel": "y", "series": [{"label": "relu", "points": points}]}
    drawn = figures.draw({"kind": "lines", "log_x": False, "log_y": True, "panels": [panel]})
    assert drawn.axes[0].get_ylim() == pytest.approx((0.005, 2.0))
    plt.close(drawn)


@pytest.mark.parametrize("log", [False, True])
def test_seeds_are_a_band_or_on_a_logarithmic_axis_thin_lines(log: bool) -> None:
    from matplotlib import pyplot as plt

    points = [figures.point(x, [0.01, 0.1 * x, 1.0], log) for x in (1, 2)]
    panel: dict[str, Any] = {"title": "", "xlabel": "x", "ylabel": "y", "series": [{"label": "relu", "points": points}]}
    drawn = figures.draw({"kind": "lines", "log_x": False, "log_y": log, "panels": [panel]})
    mean, *seeds = drawn.axes[0].lines
    assert list(mean.get_ydata()) == [point["y"] for point in points]
    assert [list(line.get_ydata()) for line in seeds] == ([[0.01, 0.01], [0.1, 0.2], [1.0, 1.0]] if log else [])
    assert len(drawn.axes[0].collections) == (0 if log else 1)
    plt.close(drawn)


def test_the_thin_lines_of_seeds_end_where_one_diverges() -> None:
    from matplotlib import pyplot as plt

    seeds = [(1, [0.1, 0.2, 0.3]), (2, [0.1, 0.2, 0.3]), (3, [math.inf, 0.2, 0.3])]
    points = [figures.point(x, values, True) for x, values in seeds]
    panel: dict[str, Any] = {"title": "", "xlabel": "x", "ylabel": "y", "series": [{"label": "relu", "points": points}]}
    drawn = figures.draw({"kind": "lines", "log_x": False, "log_y": True, "panels": [panel]})
    _, *thin = drawn.axes[0].lines
    assert [list(line.get_xdata()) for line in thin] == [[1, 2]] * 3
    assert [list(line.get_ydata()) for line in thin] == [[0.1, 0.1], [0.2, 0.2], [0.3, 0.3]]
    plt.close(drawn)


def test_a_place_without_a_value_keeps_its_line_beside_its_name() -> None:
    from matplotlib import pyplot as plt

    panels: list[dict[str, Any]] = [
        {"title": "", "xlabel": "x", "series": [{"label": "", "points": [figures.point(n, v) for n, v in values]}]}
        for values in ([("a", [1.0]), ("b", [2.0]), ("c", [3.0])], [("a", [1.0]), ("b", []), ("c", [math.inf])])
    ]
    drawn = figures.draw({"kind": "dots", "panels": panels})
    assert drawn.axes[0].get_ylim() == drawn.axes[1].get_ylim()
    assert [text.get_text() for text in drawn.axes[1].texts] == ["diverged"]
    plt.close(drawn)


@pytest.mark.parametrize("name", experiment.names())
def test_lines_of_one_figure_are_told_apart(name: str) -> None:
    """By their colour as long as there are enough, and by their marker without any."""
    one = experiment.load(name)
    for figure in one.figures:
        grid = one.parts[figure.part].grid
        if figure.kind in ("series", "reads", "lines") and grid:
            axes = [axis.choices for key, axis in grid.items() if key != figure.x]
            labels = [" ".join(names) for names in itertools.product(*axes)] if figure.x else list(axes[0])
            looks = [figures.look(label, i) for i, label in enumerate(labels)]
            assert len({look["marker"] for look in looks}) == len(labels), figure.name
            if len(labels) <= len(figures.COLOURS):
                assert len({look["color"] for look in looks}) == len(labels), figure.name


def test_a_curve_has_a_point_for_each_label_and_a_line_for_each_rule(tmp_path: Path) -> None:
    plan = make_plan(["zeros"], "small", 2, parts=["strength"])
    study = StudyDirectory(tmp_path)
    zeros = {"softmax": 0.0, "relu_exp": 0.8, "relu_exp -0.5": 0.6}
    for cell in plan.cells:
        if cell.labels["rule"] in zeros:
            training, exam = cell.runs
            found = zeros[cell.labels["rule"]]
            study.write_result(training, {"status": "finished", "loss": 2.0 + found + 0.1 * cell.seed})
            study.write_result(exam, {"status": "finished", "zeros": {"zeros": found, "dead": 0.0}})
    (figure,) = [f for f in experiment.load("zeros").figures if f.name == "zeros-strength"]
    data = figures.figure_data(figure, "zeros", Results(plan, study))
    assert data is not None and data["kind"] == "lines"
    (panel,) = data["panels"]
    assert "zeros" in panel["xlabel"] and "cross-entropy" in panel["ylabel"]
    lines = {series["label"]: [(p["x"], round(p["y"], 3)) for p in series["points"]] for series in panel["series"]}
    assert lines == {"softmax": [(0.0, 2.05)], "relu_exp": [(0.6, 2.65), (0.8, 2.85)]}
