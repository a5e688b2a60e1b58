"""Certified accuracy of image models: exact reads beside the baselines, ReLU beside softmax, and an attack.

    python benchmarks/certification.py --data data/fashion-mnist --out docs/results/certification.json \
        --figure docs/images/certification.svg

Small models of one and two layers are trained with affine norms, then certified on the first test images. Runs and
their margins stay in --runs, and the same command resumes; delete RUN/margins.json after a change of the bounds.
Without --data the images are gratings. `--figure` alone with `--from FILE` draws results again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import reluformer as rf
from measure import circumstances, publish
from reluformer.images.attack import attack, margins_of
from reluformer.images.certification import LEAST_MARGIN, Verifier
from reluformer.images.dataset import LabelledImages
from reluformer.images.scoring import evaluate, images_of

RULES: dict[str, Any] = {"softmax": "softmax", "relu": {"name": "pointwise_seqlen", "h": "relu", "alpha": 1.0}}
METHODS = {
    "softmax": (
        ("interval", "elementwise"),
        ("interval", "exact"),
        ("linear", "elementwise"),
        ("linear", "lse"),
        ("linear", "exact"),
        ("linear", "mixed"),
    ),
    "relu": (("interval", "exact"), ("linear", "exact")),  # the weights of ReLU do not depend on each other
}
PARTS_OF_BEST = ("lse", "exact", "mixed")
GRATINGS = {"train": 2000, "valid": 200, "test": 200, "classes": 10, "size": 28}
STEPS = 40
"""Of the attack."""


class Trained(NamedTuple):
    """A model of the comparison, written as RULE-LAYERS-UPDATES-SEED."""

    rule: str
    layers: int
    updates: int
    seed: int

    @classmethod
    def parse(cls, text: str) -> Trained:
        """Return the model of a name such as relu-1-1500-0."""
        rule, *numbers = text.split("-")
        if rule not in RULES or len(numbers) != 3 or not all(number.isdigit() for number in numbers):
            raise argparse.ArgumentTypeError(f"{text}: give RULE-LAYERS-UPDATES-SEED, as relu-1-1500-0")
        return cls(rule, *map(int, numbers))

    @property
    def name(self) -> str:
        """The name that `parse` reads."""
        return "-".join(map(str, self))


MODELS = [
    *(Trained(*model, seed) for model in (("softmax", 1, 1500), ("relu", 1, 6000)) for seed in range(3)),
    *(Trained(*model, 0) for model in (("relu", 1, 1500), ("softmax", 2, 1500), ("relu", 2, 1500))),
]
"""One layer of ReLU needs four times as many updates to come near the accuracy of softmax. Other seeds: --models."""


def main() -> None:
    """Train, certify and attack every model, write the results, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of IDX files; without it, gratings")
    parser.add_argument("--runs", type=Path, default=Path("runs/certification"))
    parser.add_argument("--models", nargs="+", type=Trained.parse, default=MODELS, metavar="RULE-LAYERS-UPDATES-SEED")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--eps", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0], help="in units of 1/255")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--from", dest="given", type=Path, help="draw the results of this file and measure nothing")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    parser.add_argument("--figure", type=Path, help="draw the results into this file")
    options = parser.parse_args()
    if options.given is not None:
        found = json.loads(options.given.read_text(encoding="utf-8"))
    else:
        rows = []
        for trained in options.models:
            run = options.runs / trained.name
            rf.train(recipe(trained, options.data), run)
            for row in measure(run, trained, options.eps, options.images):
                rows.append(row)
                if not options.json:
                    print(line(row), flush=True)
        found = {"circumstances": circumstances(), "means": means_of(rows), "rows": rows}
        publish(found, options.json, options.out)
    if options.figure is not None:
        draw(json.loads(json.dumps(found)), options.figure)


def recipe(trained: Trained, data: Path | None) -> dict[str, Any]:
    """Return the recipe of one model: 16 tokens of 7 x 7 pixels, width 16."""
    return {
        "task": "images",
        "data": {"gratings": GRATINGS} if data is None else {"directory": str(data)},
        "model": {
            "patch": 7,
            "width": 16,
            "heads": 2,
            "layers": trained.layers,
            "slots": 32,
            "attention": RULES[trained.rule],
            "norm": "affine",
            "qk_norm": False,
        },
        "training": {
            "updates": trained.updates,
            "tokens_per_batch": 2048,
            "lr": 3e-3,
            "schedule": "cosine",
            "warmup": min(100, trained.updates // 10),
            "weight_decay": 1.0,
            "validate_every": max(1, trained.updates // 3),
            "seed": trained.seed,
            "device": "cpu",
        },
    }


class Margins:
    """What was measured for a run, kept in a file beside it."""

    def __init__(self, path: Path, images: int) -> None:
        self.path, self.images = path, images
        self.content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def of(self, name: str, measured: Callable[[], Any]) -> Any:
        """Return what is kept under this name for so many images, or measure and keep it, with processor seconds."""
        name = f"{name} {self.images}"
        if name not in self.content:
            began = time.process_time()
            found = measured()
            self.content[name] = {"found": found, "seconds": time.process_time() - began}
            self.path.write_text(json.dumps(self.content), encoding="utf-8")
        return self.content[name]["found"]

    def seconds(self, name: str) -> float:
        """Return how long that took."""
        return float(self.content[f"{name} {self.images}"]["seconds"])


def measure(run: Path, trained: Trained, sizes: list[float], count: int) -> list[dict[str, Any]]:
    """Return a row for each size and method."""
    model, whole = rf.load(run), images_of(run, "test")
    few = LabelledImages(whole.images[:count], whole.labels[:count])
    kept = Margins(run / "margins.json", count)
    accuracy = kept.of("accuracy", lambda: evaluate(model, whole).accuracy)
    clean = kept.of("clean", lambda: margins_of(model, model.pixels(few.images), few.labels).tolist())
    right = [margin > 0 for margin in clean]
    rows = []
    for size in sizes:
        attacked = kept.of(f"attack {size:g}", partial(attacked_margins, model, few, size / 255))
        found: dict[tuple[str, str], tuple[Any, float]] = {}  # margins of each image over each other class, and seconds
        for domain, reads in METHODS[trained.rule]:
            name = f"{domain} {reads} {size:g}"
            margins = kept.of(name, partial(proved_margins, Verifier(model, domain, reads), few, size / 255))
            found[domain, reads] = margins, kept.seconds(name)
        if trained.rule == "softmax":  # `best` is the largest of three margins, class by class
            parts = [found["linear", reads] for reads in PARTS_OF_BEST]
            best = torch.stack([torch.tensor(margins) for margins, _ in parts]).amax(0).tolist()
            found["linear", "best"] = best, sum(seconds for _, seconds in parts)
        least = {method: [min(margins) for margins in per_image] for method, (per_image, _) in found.items()}
        proofs = {
            method: [ok and margin > LEAST_MARGIN for ok, margin in zip(right, margins, strict=True)]
            for method, margins in least.items()
        }
        for (domain, reads), (_, seconds) in found.items():
            of_right = [margin for ok, margin in zip(right, least[domain, reads], strict=True) if ok]
            row = {
                **trained._asdict(),
                "eps_255": size,
                "domain": domain,
                "reads": reads,
                "images": count,
                "test_accuracy": round(accuracy, 4),
                "accuracy": sum(right) / count,
                "attacked": sum(margin > 0 for margin in attacked) / count,
                "certified": sum(proofs[domain, reads]) / count,
                "mean_margin": round(sum(of_right) / max(len(of_right), 1), 4),
                "seconds": round(seconds / count, 3),
            }
            if ("linear", "lse") in found:
                pairs = list(zip(proofs[domain, reads], proofs["linear", "lse"], strict=True))
                row["more_than_lse"] = sum(own and not other for own, other in pairs)
                row["less_than_lse"] = sum(other and not own for own, other in pairs)
            rows.append(row)
    return rows


def means_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows as means over seeds, and the certified share of each seed."""
    same = ("rule", "layers", "updates", "eps_255", "domain", "reads")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in same), []).append(row)
    found = []
    for place, group in groups.items():
        averaged = ("test_accuracy", "accuracy", "attacked", "certified", "mean_margin", "seconds")
        means = {key: round(sum(row[key] for row in group) / len(group), 4) for key in averaged}
        by_seed = {row["seed"]: row["certified"] for row in group}
        found.append(
            {**dict(zip(same, place, strict=True)), "seeds": len(group), **means, "certified_by_seed": by_seed}
        )
    return found


def attacked_margins(model: rf.ImageModel, split: LabelledImages, epsilon: float) -> list[float]:
    """Return the least margin that the attack finds for each image."""
    found: list[float] = attack(model, split.images, split.labels, epsilon, steps=STEPS)[0].tolist()
    return found


def proved_margins(verifier: Verifier, split: LabelledImages, epsilon: float) -> list[list[float]]:
    """Return the least margins of each image over each other class."""
    pixels = verifier.model.pixels(split.images)
    pairs = zip(pixels, split.labels.tolist(), strict=True)
    return [verifier.margins(image, label, epsilon).tolist() for image, label in pairs]


def line(row: dict[str, Any]) -> str:
    """Return one case as text."""
    model = f"{row['rule']:8} {row['layers']} layers, {row['updates']} updates, seed {row['seed']}"
    shares = ", ".join(f"{key} {row[key]:.0%}" for key in ("certified", "attacked", "accuracy"))
    return (
        f"{model}, {row['eps_255']:4}/255, {row['domain']:8} {row['reads']:11} {shares}, "
        f"mean margin {row['mean_margin']:.3f}, {row['seconds']:.2f} s"
    )


LOOKS = {
    ("interval", "elementwise"): ("#b9c0ca", "o--", "intervals, each weight alone"),
    ("interval", "exact"): ("#5c6673", "s--", "intervals, exact reads"),
    ("linear", "elementwise"): ("#e67700", "^-", "forms, each weight alone"),
    ("linear", "lse"): ("#c2255c", "v-", "forms, log-sum-exp lines"),
    ("linear", "exact"): ("#0b7285", "D-", "forms, exact reads"),
    ("linear", "best"): ("#1d2129", "*-", "best of lines, exact and mixed"),
}
COLORS = ("#1d2129", "#0b7285", "#e67700", "#c2255c")


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw a row of two panels for each number of layers: methods for softmax, and softmax beside ReLU."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    from reluformer.report_page import FONTS

    means = found["means"]
    depths = sorted({row["layers"] for row in means})
    with plt.rc_context(FONTS):
        figure, axes = plt.subplots(
            len(depths), 2, figsize=(9.4, 0.6 + 3.3 * len(depths)), squeeze=False, sharey=True, layout="constrained"
        )
        for (left, right), layers in zip(axes, depths, strict=True):
            of_depth = [row for row in means if row["layers"] == layers]
            places = list(dict.fromkeys((row["rule"], row["updates"]) for row in of_depth))
            models = [[row for row in of_depth if (row["rule"], row["updates"]) == at] for at in places]
            name = f"{layers} layer" + "s" * (layers > 1)
            _draw_methods(left, next((rows for rows in models if rows[0]["rule"] == "softmax"), models[0]))
            left.set(title=f"softmax, {name}: what each method proves", ylabel="share of test images")
            models.sort(key=lambda rows: (rows[0]["rule"] != "softmax", -rows[0]["test_accuracy"]))
            for rows, color in zip(models, COLORS, strict=False):
                _draw_model(right, rows, color)
            right.legend(frameon=False, fontsize=8, loc="lower left")
            right.set(title=f"{name}: from the proof to the attack (dotted)")
            for axis in (left, right):
                sizes = sorted({row["eps_255"] for row in of_depth})
                axis.set(xscale="log", ylim=(-0.02, 1))
                axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
                axis.minorticks_off()
                axis.grid(axis="y", color="#e9ecef", lw=0.8)
                axis.set_axisbelow(True)
                axis.spines[["top", "right"]].set_visible(False)
        for axis in axes[-1]:
            axis.set_xlabel("largest change of a pixel, in 1/255")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncol=4, frameon=False, fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def _draw_methods(axis: Any, rows: list[dict[str, Any]]) -> None:
    attacked = {row["eps_255"]: row["attacked"] for row in rows}
    axis.fill_between(list(attacked), list(attacked.values()), 1, color="#f1f3f5", lw=0, label="the attack wins")
    for (domain, reads), (color, style, label) in LOOKS.items():
        shares = {row["eps_255"]: row["certified"] for row in rows if (row["domain"], row["reads"]) == (domain, reads)}
        if shares:
            axis.plot(list(shares), list(shares.values()), style, color=color, ms=4.5, lw=1.4, label=label)


def _draw_model(axis: Any, rows: list[dict[str, Any]], color: str) -> None:
    """Draw the band that holds the truth: what is proved at its lower end, what the attack leaves at its upper one."""
    first = rows[0]
    reads = "best" if first["rule"] == "softmax" else "exact"
    best = [row for row in rows if (row["domain"], row["reads"]) == ("linear", reads)]
    sizes = [row["eps_255"] for row in best]
    low, high = ([row[key] for row in best] for key in ("certified", "attacked"))
    label = f"{first['rule']}, {first['updates']:,} updates: {first['test_accuracy']:.1%} right"
    axis.fill_between(sizes, low, high, color=color, alpha=0.13, lw=0)
    axis.plot(sizes, low, "o-", color=color, ms=4, lw=1.4, label=label)
    axis.plot(sizes, high, ":", color=color, lw=1.2)


if __name__ == "__main__":
    main()
