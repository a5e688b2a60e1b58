"""What a rule costs through transformers' attention interface, beside calling `read()` directly.

A pass makes the mask once and attends `--layers` times, as a model does; the direct pass has the
key mask at hand and only reads. Rows of the batch are padded to different lengths. Llama's
keys are shared by four heads each; the direct pass repeats them, as `read()` needs it.

The two take turns, first one ahead and then the other, and each turn gives a ratio. On one thread time is that of the
processor, so that other jobs on a shared machine count as little as they can; on several, that of the clock, which
needs a quiet machine.

python benchmarks/hub.py [--json [FILE]] [--lengths 128 512 2048] [--layers 4] [--threads 2]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn
from transformers import masking_utils

import reluformer as rf
from measure import circumstances, publish
from reluformer import hub
from reluformer.integrations.transformers.attention_interface import mask_function

TOKENS = 1024
"""Of a batch, at least one row."""


@dataclass(frozen=True)
class Shape:
    """The attention of a family."""

    heads: int
    shared: int
    """Heads of keys and values."""
    width: int
    causal: bool


SHAPES = {
    "bert": Shape(heads=12, shared=12, width=64, causal=False),
    "llama": Shape(heads=16, shared=4, width=64, causal=True),
}


def tensors(shape: Shape, length: int, trains: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v as a model's projections leave them, and the tokens of each row."""
    rows = max(1, TOKENS // length)
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(rows, length, heads, shape.width).transpose(1, 2).requires_grad_(trains)
        for heads in (shape.heads, shape.shared, shape.shared)
    )
    shown = torch.linspace(0.75, 0.95, rows).mul(length).long()[:, None]
    places = torch.arange(length)
    padding = places >= length - shown if shape.causal else places < shown  # decoders are padded on the left
    return q, k, v, padding


def passes(shape: Shape, rule: str, length: int, layers: int, trains: bool) -> dict[str, Callable[[], object]]:
    """The same work through the interface and without it."""
    q, k, v, padding = tensors(shape, length, trains)
    attend = hub.attention_function(rule)
    module = nn.Identity().train(trains)
    pattern = "causal_mask_function" if shape.causal else "bidirectional_mask_function"
    group = shape.heads // shape.shared

    def finish(out: Tensor) -> None:
        if trains:
            out.sum().backward()

    def interface() -> None:
        mask = mask_function(
            batch_size=q.size(0),
            q_length=length,
            kv_length=length,
            attention_mask=padding,
            mask_function=getattr(masking_utils, pattern),
        )
        for _ in range(layers):
            finish(attend(module, q, k, v, mask, scaling=shape.width**-0.5)[0])

    def direct() -> None:
        for _ in range(layers):
            keys, values = (x if group == 1 else x.repeat_interleave(group, 1) for x in (k, v))
            finish(rf.read(q, keys, values, rule, causal=shape.causal, key_mask=padding))

    return {"direct": direct, "interface": interface}


@dataclass(frozen=True)
class Ratio:
    """Quartiles of interface / direct over the turns."""

    direct: float
    """Seconds, the median."""
    quartiles: list[float]


def compared(calls: dict[str, Callable[[], object]], repeats: int, seconds: float) -> Ratio:
    """Both competitors in turns, at least eight of them, until they took `seconds`."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for call in calls.values():
        call()
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats):
        if turn >= 8 and sum(map(sum, spent.values())) > seconds:
            break
        for name in sorted(calls, reverse=turn % 2 == 1):
            started = clock()
            calls[name]()
            spent[name].append(clock() - started)
    ratios = [through / alone for through, alone in zip(spent["interface"], spent["direct"], strict=True)]
    return Ratio(statistics.median(spent["direct"]), statistics.quantiles(ratios, n=4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--rules", nargs="+", default=["relu", "softmax"])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=4.0, help="for a comparison")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", nargs="?", const="", metavar="FILE", help="print JSON, and write it to FILE")
    arguments = parser.parse_args()
    as_json = arguments.json is not None
    torch.set_num_threads(arguments.threads)
    rows = []
    settings = itertools.product(SHAPES, arguments.rules, (False, True), arguments.lengths)
    for name, rule, trains, length in settings:
        calls = passes(SHAPES[name], rule, length, arguments.layers, trains)
        with torch.set_grad_enabled(trains):
            found = compared(calls, arguments.repeats, arguments.seconds)
        low, median, high = found.quartiles
        kind = "training" if trains else "inference"
        rows.append(
            {
                "shape": name,
                "rule": rule,
                "pass": kind,
                "length": length,
                "rows": max(1, TOKENS // length),
                "direct_milliseconds": round(1000 * found.direct, 3),
                "ratio": round(median, 3),
                "quartiles": [round(low, 3), round(high, 3)],
            }
        )
        if not as_json:
            print(
                f"{name:6s} {rule:8s} {kind:9s} {length:5d}  direct {1000 * found.direct:9.2f} ms, "
                f"interface x {median:.3f} ({low:.3f} to {high:.3f})"
            )
    results = {
        "benchmark": "hub",
        **circumstances(),
        "transformers": transformers.__version__,
        "layers": arguments.layers,
        "rows": rows,
    }
    publish(results, as_json, Path(arguments.json) if arguments.json else None)


if __name__ == "__main__":
    main()
