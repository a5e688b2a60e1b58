"""What zeros save: one read by its share of zeros, beside fused softmax and beside the same read without skipping.

    python benchmarks/zeros.py --out docs/results/zeros.json        # about eight minutes on two cores
    python benchmarks/zeros.py --memory 16384 --out docs/results/zeros-memory.json

Scores are normal, and a threshold (a bias common to all of them) leaves the wanted share of weights at zero, spread
evenly: the hardest pattern for a kernel that skips. A centred rule takes its threshold from the row instead. All
contestants of a case take turns in one process, and the ratio is that of their median times: above 1 means that the
sparse read is faster.

Peak memory is that of a whole process that makes one training read, and of one that stops before it: the difference
is what the read takes, its gradients and the list of nonzero pairs included.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
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
    parser.add_argument("--zeros", type=float, nargs="+", default=[0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 1024, 4096])
    parser.add_argument("--widths", type=int, nargs="+", default=[64])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rules", nargs="+", default=["relu", "relu_exp", "relu_chance"])
    parser.add_argument("--patterns", nargs="+", default=["full", "causal"], choices=["full", "causal"])
    parser.add_argument("--passes", nargs="+", default=list(PASSES), choices=PASSES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--path", choices=PATHS, help="vector instructions (default: the best ones here)")
    parser.add_argument(
        "--memory", type=int, metavar="TOKENS", help="print the peak memory of one training read instead"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory is not None:
        rows = [memory(rule, options.memory, options.widths[0], 8, 0.95) for rule in options.rules]
        for row in rows:
            if not options.json:
                print(f"{row['rule']:<12}{row['length']:>6} tokens, 8 heads, 95 % zeros: {row['read_mb']:.0f} MB")
        publish({"circumstances": circumstances(), "rows": rows}, options.json, options.out)
        return
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
        f"{row['rule']:<12}{row['length']:>6}{row['width']:>4} {row['pattern']:<7}{row['pass']:<17}"
        f"{row['zeros']:>6.1%} zeros: {row['over_sdpa']:>5.2f} times fused softmax, "
        f"{row['over_dense']:>5.2f} times the dense kernel"
    )


def with_zeros(rule: str, share: float) -> tuple[rules.Rule, Tensor | None]:
    """Return a rule and a bias under which a share of normal scores weighs nothing; a centred rule needs no bias."""
    level = NormalDist().inv_cdf(share)
    if rules.get(rule).shift_invariant:
        return rules.get({"name": rule, "threshold": 0.0, "spread": level, "growth": 0.0, "chance": 0.0}), None
    return rules.get(rule), torch.full((1, 1, 1, 1), -level)


PEAK = """
import resource, torch
import reluformer as rf
import zeros
torch.set_num_threads({threads})
rule, bias = zeros.with_zeros({rule!r}, {share})
q, k, v = (torch.randn(1, {heads}, {length}, {width}, requires_grad=True) for _ in range(3))
rf.read(q[:, :, :256], k[:, :, :256], v[:, :, :256], rule=rule, bias=bias).sum().backward()
if {reads}:
    rf.read(q, k, v, rule=rule, bias=bias, impl="cpu").sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def memory(rule: str, length: int, width: int, heads: int, share: float) -> dict[str, Any]:
    """Return the peak memory of a process with one training read, and by how much that exceeds one without."""
    peaks = []
    for reads in (False, True):
        options = dict(rule=rule, length=length, width=width, heads=heads, share=share, reads=reads)
        program = PEAK.format(threads=torch.get_num_threads(), **options)
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout) / 1024)
    sizes = {"rule": rule, "length": length, "width": width, "heads": heads, "zeros": share}
    return {**sizes, "process_mb": round(peaks[1], 1), "read_mb": round(peaks[1] - peaks[0], 1)}


def measure(
    rule: str, length: int, width: int, pattern: str, part: str, share: float, heads: int, repeats: int
) -> dict[str, Any]:
    """Return the speed of one read relative to fused softmax and to our dense kernel, and its real share of zeros."""
    torch.manual_seed(0)
    trains, causal = part == PASSES[1], pattern == "causal"
    q, k, v = (torch.randn(1, heads, length, width, requires_grad=trains) for _ in range(3))
    used, bias = with_zeros(rule, share)

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
