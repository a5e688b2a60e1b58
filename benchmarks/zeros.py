"""What zeros save: one read by its share of zeros, beside fused softmax and beside the same read without skipping.

    python benchmarks/zeros.py --out docs/results/zeros.json        # about five minutes on two cores

Scores are normal, and a threshold (a bias common to all of them) leaves the wanted share of weights at zero, spread
evenly: the hardest pattern for a kernel that skips. A centred rule takes its threshold from the row instead. All
contestants of a case take turns in one process, and the ratio is that of their median times: above 1 means that the
sparse read is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import reluformer as rf
from measure import circumstances, publish
from reluformer import benchmarking, rules
from reluformer.kernels import cpu
from reluformer.kernels.native.library import PATHS

PASSES = ("forward", "forward+backward")


def main() -> None:
    """Time every case, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zeros", type=float, nargs="+", default=[0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 1024, 4096])
    parser.add_argument("--widths", type=int, nargs="+", default=[64])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rules", nargs="+", default=["relu", "relu_exp"])
    parser.add_argument("--patterns", nargs="+", default=["full", "causal"], choices=["full", "causal"])
    parser.add_argument("--passes", nargs="+", default=list(PASSES), choices=PASSES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--path", choices=PATHS, help="vector instructions (default: the best ones here)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    library = cpu.loaded()
    library.path = library.path if options.path is None else PATHS.index(options.path)
    rows: list[dict[str, Any]] = []
    for rule in options.rules:
        for length in options.lengths:
            for width in options.widths:
                for pattern in options.patterns:
                    for part in options.passes:
                        for share in options.zeros:
                            row = measure(rule, length, width, pattern, part, share, options.heads, options.repeats)
                            rows.append(row)
                            if not options.json:
                                print(line(row), flush=True)
    settings = {"circumstances": circumstances(), "heads": options.heads, "path": PATHS[library.path]}
    publish({**settings, "rows": rows}, options.json, options.out)


def line(row: dict[str, Any]) -> str:
    """Return one case as text."""
    return (
        f"{row['rule']:<9}{row['length']:>6}{row['width']:>4} {row['pattern']:<7}{row['pass']:<17}"
        f"{row['zeros']:>6.1%} zeros: {row['over_sdpa']:>5.2f} times fused softmax, "
        f"{row['over_dense']:>5.2f} times the dense kernel"
    )


def measure(
    rule: str, length: int, width: int, pattern: str, part: str, share: float, heads: int, repeats: int
) -> dict[str, Any]:
    """Return the speed of one read relative to fused softmax and to our dense kernel, and its real share of zeros."""
    torch.manual_seed(0)
    trains, causal = part == PASSES[1], pattern == "causal"
    q, k, v = (torch.randn(1, heads, length, width, requires_grad=trains) for _ in range(3))
    level = NormalDist().inv_cdf(share)
    bias = None if rule == "relu_exp" else torch.full((1, 1, 1, 1), -level)
    used = rules.ReluExp(threshold=0.0, spread=level, growth=0.0) if rule == "relu_exp" else rules.get(rule)

    def read(impl: str) -> Callable[[], Tensor]:
        return lambda: rf.read(q, k, v, rule=used, causal=causal, bias=bias, impl=impl)

    contestants: dict[str, Callable[[], Tensor]] = {
        "sdpa": lambda: scaled_dot_product_attention(q, k, v, is_causal=causal),
        "dense": read("cpu_dense"),
        "sparse": read("cpu"),
    }
    probe = torch.randn(1, heads, length, width)

    def call(contestant: Callable[[], Tensor]) -> Callable[[], object]:
        if trains:
            return lambda: torch.autograd.grad(contestant(), (q, k, v), probe)
        return torch.no_grad()(contestant)

    times = benchmarking.interleaved(
        {name: call(contestant) for name, contestant in contestants.items()}, repeats, seconds=3.0
    )
    with torch.no_grad():
        _, stats = rf.read(q, k, v, rule=used, causal=causal, bias=bias, return_stats=True)
    visible = stats.n_visible.expand_as(stats.zero_fraction).double()
    zeros = float((stats.zero_fraction * visible).sum() / visible.sum())
    return {
        "rule": rule,
        "length": length,
        "width": width,
        "pattern": pattern,
        "pass": part,
        "zeros": round(zeros, 4),
        "over_sdpa": round(times["sdpa"].median / times["sparse"].median, 3),
        "over_dense": round(times["dense"].median / times["sparse"].median, 3),
        "milliseconds": round(1e3 * times["sparse"].median, 3),
        "spread": round(times["sparse"].spread, 3),
    }


if __name__ == "__main__":
    main()
