"""Where a feed-forward memory would gain from reading sparsely: one training step by its share of zeros.

    python benchmarks/learned_slots.py --out docs/results/learned-slots.json        # about a minute on two cores

A feed-forward layer reads slots that were learned: ReLU(x K^T + b) V^T. Two dense products and their gradients are
compared with one read of the same memory, whose head is as wide as the model. A bias leaves the wanted share of
activations at zero. Contestants take turns in one process; above 1 means that the read is faster.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

import reluformer as rf
from measure import circumstances, publish
from reluformer import benchmarking
from reluformer.kernels.products import linear


def main() -> None:
    """Time every case, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zeros", type=float, nargs="+", default=[0.5, 0.7, 0.86])
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--slots", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for queries in options.rows:
        for width in options.widths:
            for slots in options.slots:
                for share in options.zeros:
                    rows.append(measure(queries, width, slots, share, options.repeats))
                    if not options.json:
                        print(line(rows[-1]), flush=True)
    publish({"circumstances": circumstances(), "rows": rows}, options.json, options.out)


def line(row: dict[str, Any]) -> str:
    """Return one case as text."""
    return (
        f"width {row['width']:>4}, {row['slots']:>5} slots, {row['queries']:>4} rows, {row['zeros']:.0%} zeros: "
        f"{row['over_dense']:.2f} times two dense products"
    )


def measure(queries: int, width: int, slots: int, share: float, repeats: int) -> dict[str, Any]:
    """Return the speed of one training step through the sparse read relative to two dense products."""
    torch.manual_seed(0)
    x, keys, values = torch.randn(queries, width), torch.randn(slots, width), torch.randn(width, slots)
    bias = torch.full((slots,), -NormalDist().inv_cdf(share) * math.sqrt(width))
    leaves = [tensor.requires_grad_() for tensor in (x, keys, values, bias)]
    probe = torch.randn(queries, width)

    def dense() -> Tensor:
        return linear(torch.relu(linear(x, keys, bias)), values)

    def sparse() -> Tensor:
        memory = (tensor[None, None] for tensor in (x, keys, values.t()))
        return rf.read(*memory, rule="relu_plain", bias=bias[None, None, None], scale=1.0, impl="cpu")[0, 0]

    def step(read: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(read(), leaves, probe)

    times = benchmarking.interleaved({"dense": step(dense), "sparse": step(sparse)}, repeats, seconds=0.3)
    sizes = {"queries": queries, "width": width, "slots": slots, "zeros": share}
    return {**sizes, "over_dense": round(times["dense"].median / times["sparse"].median, 3)}


if __name__ == "__main__":
    main()
