"""Certified accuracy of image models: exact reads beside the baselines, ReLU beside softmax, and an attack.

    python benchmarks/certification.py --data data/fashion-mnist --out docs/results/certification.json \
        --figure docs/images/certification.svg

Small models of one and two layers are trained with affine norms, then certified on the first test images. Runs stay in
--runs, and the same command resumes. Without --data the images are gratings.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import reluformer as rf
from measure import circumstances, publish
from reluformer.images.attack import attack
from reluformer.images.certification import certify
from reluformer.images.dataset import LabelledImages
from reluformer.images.scoring import evaluate, images_of

RULES: dict[str, Any] = {"softmax": "softmax", "relu": {"name": "pointwise_seqlen", "h": "relu", "alpha": 1.0}}
METHODS = (
    ("interval", "elementwise"),
    ("interval", "exact"),
    ("linear", "elementwise"),
    ("linear", "lse"),
    ("linear", "exact"),
)
GRATINGS = {"train": 2000, "valid": 200, "test": 200, "classes": 10, "size": 28}


def main() -> None:
    """Train, certify and attack every model, write the results, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of IDX files; without it, gratings")
    parser.add_argument("--runs", type=Path, default=Path("runs/certification"))
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--eps", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0], help="in units of 1/255")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    parser.add_argument("--figure", type=Path, help="draw the results into this file")
    options = parser.parse_args()
    rows = []
    for layers in options.layers:
        for rule in options.rules:
            run = options.runs / f"{rule}-{layers}"
            rf.train(recipe(rule, layers, options.updates, options.data), run)
            for row in measure(run, rule, layers, options.eps, options.images):
                rows.append(row)
                if not options.json:
                    print(line(row), flush=True)
    found = {"circumstances": circumstances(), "rows": rows}
    publish(found, options.json, options.out)
    if options.figure is not None:
        draw(json.loads(json.dumps(found)), options.figure)


def recipe(rule: str, layers: int, updates: int, data: Path | None) -> dict[str, Any]:
    """Return the recipe of one model: 16 tokens of 7 x 7 pixels, width 16."""
    return {
        "task": "images",
        "data": {"gratings": GRATINGS} if data is None else {"directory": str(data)},
        "model": {
            "patch": 7,
            "width": 16,
            "heads": 2,
            "layers": layers,
            "slots": 32,
            "attention": RULES[rule],
            "norm": "affine",
            "qk_norm": False,
        },
        "training": {
            "updates": updates,
            "tokens_per_batch": 2048,
            "lr": 3e-3,
            "schedule": "cosine",
            "warmup": min(100, updates // 10),
            "weight_decay": 1.0,
            "validate_every": max(1, updates // 3),
            "device": "cpu",
        },
    }


def measure(run: Path, rule: str, layers: int, sizes: list[float], count: int) -> list[dict[str, Any]]:
    """Return a row for each size and method."""
    model, whole = rf.load(run), images_of(run, "test")
    accuracy = evaluate(model, whole).accuracy
    few = LabelledImages(whole.images[:count], whole.labels[:count])
    rows = []
    for size in sizes:
        margins, _ = attack(model, few.images, few.labels, size / 255, steps=40)
        left = float((margins > 0).double().mean())
        for domain, reads in METHODS:
            if reads == "lse" and rule != "softmax":
                continue
            found = certify(model, few, size / 255, domain=domain, reads=reads)
            rows.append(
                {
                    "rule": rule,
                    "layers": layers,
                    "eps_255": size,
                    "domain": domain,
                    "reads": reads,
                    "test_accuracy": round(accuracy, 4),
                    "accuracy": found.accuracy,
                    "attacked": left,
                    "certified": found.certified,
                    "mean_margin": round(found.mean_margin, 4),
                    "seconds": round(found.seconds, 3),
                }
            )
    return rows


def line(row: dict[str, Any]) -> str:
    """Return one case as text."""
    return (
        f"{row['rule']:8} {row['layers']} layers, {row['eps_255']:4}/255, {row['domain']:8} {row['reads']:11} "
        f"certified {row['certified']:.0%}, attacked {row['attacked']:.0%}, accuracy {row['accuracy']:.0%}, "
        f"mean margin {row['mean_margin']:.3f}, {row['seconds']:.2f} s"
    )


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw certified accuracy by size, a panel for each model."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    from reluformer.report_page import FONTS

    places = list(dict.fromkeys((row["rule"], row["layers"]) for row in found["rows"]))
    looks = {
        ("interval", "elementwise"): ("#b9c0ca", "o--"),
        ("interval", "exact"): ("#5c6673", "s--"),
        ("linear", "elementwise"): ("#e67700", "^-"),
        ("linear", "lse"): ("#c2255c", "v-"),
        ("linear", "exact"): ("#0b7285", "D-"),
    }
    with plt.rc_context(FONTS):
        figure, axes = plt.subplots(
            1, len(places), figsize=(3.3 * len(places), 3.6), squeeze=False, layout="constrained"
        )
        for axis, (rule, layers) in zip(axes.flat, places, strict=True):
            rows = [row for row in found["rows"] if (row["rule"], row["layers"]) == (rule, layers)]
            sizes = sorted({row["eps_255"] for row in rows})
            above = [next(row["attacked"] for row in rows if row["eps_255"] == size) for size in sizes]
            axis.fill_between(sizes, above, 1, color="#f1f3f5", lw=0)
            axis.plot(sizes, above, ":", color="#1d2129", label="left right by the attack")
            for (domain, reads), (color, style) in looks.items():
                shares = {
                    row["eps_255"]: row["certified"] for row in rows if (row["domain"], row["reads"]) == (domain, reads)
                }
                if shares:
                    axis.plot(list(shares), list(shares.values()), style, color=color, ms=4, label=f"{domain}, {reads}")
            axis.set(
                xscale="log",
                ylim=(-0.02, 1),
                xlabel="largest change of a pixel, in 1/255",
                title=f"{rule}, {layers} layers",
            )
            axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
            axis.minorticks_off()
            axis.spines[["top", "right"]].set_visible(False)
        axes[0, 0].set_ylabel("share of images with a proof")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncol=3, frameon=False, fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


if __name__ == "__main__":
    main()
