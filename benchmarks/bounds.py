"""How wide the range of a read is: exact bounds beside those that bound each weight alone.

    python benchmarks/bounds.py --out docs/results/bounds.json --figure docs/images/bounds.svg

Scores and values are normal. Each score may move by a radius in both directions. The range of a read is compared with
its range at a tenth of the rows' own deviation, rule by rule. No timing counts here, so any machine gives the same.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import reluformer as rf
from measure import circumstances, publish

RULES = ("softmax", "softmax1", "relu_norm", "relu", "relu_seqlen", "relu_exp")
WIDTH = 16
ROWS = 64
SLOTS = 24
"""The slots of the row whose candidates are drawn."""


def main() -> None:
    """Measure all widths, write the results, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, nargs="+", default=[49, 196, 784])
    parser.add_argument("--radii", type=float, nargs="+", default=[0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    parser.add_argument("--figure", type=Path, help="draw the results into this file")
    options = parser.parse_args()
    rows = [measure(rule, n, radius) for n in options.slots for rule in RULES for radius in options.radii]
    if not options.json:
        for row in rows:
            print(line(row))
    found = {"circumstances": circumstances(), "rows": rows, "candidates": candidates()}
    publish(found, options.json, options.out)
    if options.figure is not None:
        draw(json.loads(json.dumps(found)), options.figure)


def line(row: dict[str, Any]) -> str:
    """Return one case as text."""
    return (
        f"{row['slots']:>4} slots, radius {row['radius']:<5} {row['rule']:12} "
        f"range {row['width']:.4f}, each weight alone {row['elementwise']:.4f}, {row['ratio']:.2f} times as wide"
    )


def measure(rule: str, slots: int, radius: float) -> dict[str, Any]:
    """Return the mean width of the range of a read, in deviations of the read itself."""
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(ROWS, slots, generator=draw)
    values = torch.randn(slots, WIDTH, generator=draw)
    own = rf.bounds(rule, scores, scores, values)
    scale = float(own.lower.std())
    found = rf.bounds(rule, scores - radius, scores + radius, values)
    alone = rf.bounds(rule, scores - radius, scores + radius, values, elementwise=True)
    width, elementwise = (float((x.upper - x.lower).mean()) / scale for x in (found, alone))
    return {
        "rule": rule,
        "slots": slots,
        "radius": radius,
        "exact": found.exact,
        "width": round(width, 5),
        "elementwise": round(elementwise, 5),
        "ratio": round(elementwise / width, 3),
    }


def candidates() -> dict[str, Any]:
    """Return all candidates of one softmax row, and reads of random scores of its box."""
    draw = torch.Generator().manual_seed(3)
    middle, radius = 1.5 * torch.randn(SLOTS, generator=draw), 2 * torch.rand(SLOTS, generator=draw)
    values = torch.randn(SLOTS, generator=draw).sort().values
    low, high = middle - radius, middle + radius
    k = torch.arange(SLOTS + 1)[:, None]
    first = torch.arange(SLOTS) < k

    def reads(scores: Tensor) -> list[float]:
        return [round(x, 5) for x in (torch.softmax(scores, -1) @ values).tolist()]

    share = torch.rand(150, SLOTS, generator=draw)
    vertices = (torch.rand(150, SLOTS, generator=draw) < 0.5).float()
    found = rf.bounds("softmax", low[None], high[None], values[:, None])
    return {
        "minimum": reads(torch.where(first, high, low)),
        "maximum": reads(torch.where(first, low, high)),
        "inside": reads(low + share * (high - low)),
        "vertices": reads(low + vertices * (high - low)),
        "lower": round(found.lower.item(), 5),
        "upper": round(found.upper.item(), 5),
    }


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the candidates of one row, and the widths by radius."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    from reluformer.report_page import FONTS

    one = found["candidates"]
    with plt.rc_context(FONTS):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.9), layout="constrained")
        k = range(len(one["minimum"]))
        for name, mark in (("vertices", 5), ("inside", 5)):
            x = [i * (len(k) - 1) / (len(one[name]) - 1) for i in range(len(one[name]))]
            label = "random corners of the box" if name == "vertices" else "random points of the box"
            left.scatter(x, one[name], s=mark, color="#b9c0ca" if name == "vertices" else "#dfe3e8", label=label, lw=0)
        left.fill_between([0, len(k) - 1], one["lower"], one["upper"], color="#0b7285", alpha=0.07, lw=0)
        left.plot(k, one["minimum"], "o-", ms=3.5, color="#0b7285", label="k smallest values at their upper end")
        left.plot(k, one["maximum"], "s-", ms=3.5, color="#c2255c", label="k smallest values at their lower end")
        for end in ("lower", "upper"):
            left.axhline(one[end], color="#1d2129", lw=0.8, ls=":")
        left.set(xlabel="k", ylabel="read", title=f"The ends lie among {2 * len(k)} candidates")
        left.legend(fontsize=7.5, frameon=False, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        slots = found["rows"][0]["slots"]
        styles = {"softmax": "#c2255c", "relu_seqlen": "#0b7285", "relu_exp": "#e67700"}
        for rule, color in styles.items():
            rows = [row for row in found["rows"] if row["rule"] == rule and row["slots"] == slots]
            radii = [row["radius"] for row in rows]
            right.plot(radii, [row["width"] for row in rows], "o-", ms=3.5, color=color, label=rule)
            if rule != "relu_seqlen":
                alone = [row["elementwise"] for row in rows]
                right.plot(radii, alone, "--", color=color, label=f"{rule}, each weight alone")
        right.set(xscale="log", yscale="log", xlabel="radius of each score", ylabel="width / deviation of the read")
        right.set_title(f"Width of the range, {slots} slots")
        right.legend(fontsize=7.5, frameon=False)
        for axis in (left, right):
            axis.spines[["top", "right"]].set_visible(False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


if __name__ == "__main__":
    main()
