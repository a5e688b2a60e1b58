"""Where the CPU kernel overtakes the reference: what the constants in kernels/cpu.py rest on.

    python benchmarks/crossover.py                # a table
    python benchmarks/crossover.py --rule relu_exp --json

For each shape, with all slots visible, causal and half padded, the time of the reference over that of the kernel (above
1: the kernel is faster), for the read alone, with its backward pass, and with the gradients of the row statistics too;
then the dense product over the gathered one for the second matrix of a feed-forward memory. `auto` takes the kernel
from the shapes on where these pass 1.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import reluformer as rf
from measure import circumstances, publish
from reluformer.benchmarking import interleaved
from reluformer.kernels import cpu

SHAPES = [  # B, H, Tq, Tk
    *((1, 4, length, length) for length in (16, 64, 128, 256, 512)),
    *((8, 4, length, length) for length in (16, 64, 128)),
    *((4096 // length, 4, length, length) for length in (16, 32, 64)),  # as many tokens as a batch of sentences has
    *((1, 8, queries, slots) for queries in (1, 4, 8) for slots in (64, 512, 4096)),
]


def hidden(pattern: str, batch: int, slots: int) -> dict[str, Any]:
    """What `read` is told of the slots that a query does not see."""
    padding = (torch.arange(slots) < slots // 2).expand(batch, slots)
    return {"full": {}, "causal": {"causal": True}, "padded": {"key_mask": padding}}[pattern]


def calls(rule: str, shape: tuple[int, int, int, int], pattern: str, impl: str) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    batch, heads, queries, slots = shape
    q = torch.randn(batch, heads, queries, 64, requires_grad=True)
    k, v = (torch.randn(batch, heads, slots, 64, requires_grad=True) for _ in range(2))
    options: dict[str, Any] = {"rule": rule, "impl": impl, **hidden(pattern, batch, slots)}
    d_out, d_row = torch.randn(batch, heads, queries, 64), torch.randn(batch, heads, queries)

    def forward() -> Tensor:
        with torch.no_grad():
            return rf.read(q, k, v, **options)

    def backward() -> object:
        return torch.autograd.grad(rf.read(q, k, v, **options), (q, k, v), d_out)

    def statistics() -> object:
        out, stats = rf.read(q, k, v, **options, return_stats=True)
        return torch.autograd.grad((out, stats.row_sum, stats.entropy), (q, k, v), (d_out, d_row, d_row))

    return {"forward": forward, "backward": backward, "statistics": statistics}


def reads(rule: str, repeats: int) -> list[dict[str, Any]]:
    rows = []
    for shape, pattern in product(SHAPES, ("full", "causal", "padded")):
        made = {impl: calls(rule, shape, pattern, impl) for impl in ("cpu", "reference")}
        both = {(impl, name): call for impl, named in made.items() for name, call in named.items()}
        times = interleaved({f"{impl} {name}": call for (impl, name), call in both.items()}, repeats)
        row: dict[str, Any] = dict(zip(("batch", "heads", "queries", "slots"), shape, strict=True))
        row |= {"pattern": pattern, "scores": math.prod(shape)}
        for name in ("forward", "backward", "statistics"):
            row[name] = round(times[f"reference {name}"].median / times[f"cpu {name}"].median, 2)
        rows.append(row)
    return rows


def products(repeats: int) -> list[dict[str, Any]]:
    found = []
    for rows, zeros, (slots, width) in product((1, 4), (0.5, 0.9, 0.97), ((512, 128), (1024, 256), (2048, 512))):
        torch.manual_seed(0)
        weights = torch.rand(rows, slots) * (torch.rand(rows, slots) >= zeros)
        matrix = torch.randn(width, slots)  # as a Linear has it
        values = matrix.t().contiguous()
        contestants: dict[str, Callable[[], object]] = {
            "dense": partial(torch.nn.functional.linear, weights, matrix),
            "gathered": lambda weights=weights, values=values, width=width: (
                cpu.gathering_pays(weights, width),
                cpu.gather_values(weights, values),
            ),
        }
        with torch.no_grad():
            times = interleaved(contestants, repeats)
        ratio = round(times["dense"].median / times["gathered"].median, 2)
        found.append({"rows": rows, "slots": slots, "width": width, "zeros": zeros, "dense_over_gathered": ratio})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rule", default="relu")
    parser.add_argument("--threads", type=int, default=1, help="one is steadier on a busy machine")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    arguments = parser.parse_args()
    if reason := cpu.unavailable():
        raise SystemExit(f"there is nothing to compare: {reason}")
    torch.set_num_threads(arguments.threads)
    results = {"reads": reads(arguments.rule, arguments.repeats), "products": products(arguments.repeats)}
    if not arguments.json:
        for row in (*results["reads"], *results["products"]):
            print("  ".join(f"{name} {value}" for name, value in row.items()))
    publish(
        {"benchmark": "crossover", "rule": arguments.rule, **circumstances(), **results}, arguments.json, arguments.out
    )


if __name__ == "__main__":
    main()
