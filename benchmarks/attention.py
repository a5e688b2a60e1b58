"""read() with every rule against scaled_dot_product_attention and against the obvious code.

    python benchmarks/attention.py                 # a table
    python benchmarks/attention.py --json          # the same as JSON
    python benchmarks/attention.py --lengths 512 1024 --rules relu softmax --causal

Each row: time and peak memory of read(), as a ratio to scaled_dot_product_attention in
the same run, and the time of the obvious four lines of PyTorch for the same rule as a
ratio to read(), so that "four lines" above 1 means that read() is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from entmax import entmax15, sparsemax
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import reluformer as rf
from measure import circumstances, interleaved, peak_memory, publish


def four_lines(rule: str, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """What one would write without this library."""
    scores = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
    n = torch.full((), k.size(2), dtype=q.dtype)
    hidden = None
    if causal:
        hidden = torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu(1)
        n = torch.arange(1, k.size(2) + 1, dtype=q.dtype)[:, None]
    simplex = {"softmax": torch.softmax, "softmax_ln": torch.softmax, "sparsemax": sparsemax, "entmax15": entmax15}
    if rule in simplex:
        low = float("-inf") if rule.startswith("softmax") else -1e4
        scores = scores if hidden is None else scores.masked_fill(hidden, low)
        return simplex[rule](scores, dim=-1) @ v
    pointwise: dict[str, Callable[[Tensor], Tensor]] = {
        "relu_plain": torch.relu,
        "rela": torch.relu,
        "relu": lambda s: torch.relu(s) / (n / 2).sqrt(),
        "relu_seqlen": lambda s: torch.relu(s) / n,
        "relu2": lambda s: torch.relu(s) ** 2 / (1.5 * n).sqrt(),
        "sigmoid": lambda s: torch.sigmoid(s - n.log()),
    }
    weights = pointwise[rule](scores)
    return (weights if hidden is None else weights.masked_fill(hidden, 0)) @ v


def competitors(
    rules: list[str], length: int, causal: bool, backward: bool, arguments: argparse.Namespace
) -> dict[str, Callable[[], object]]:
    shape = (arguments.batch, arguments.heads, length, arguments.dim)
    q, k, v = (torch.randn(shape).requires_grad_(backward) for _ in range(3))
    gradient = torch.randn(shape)

    def timed(read: Callable[[], Tensor]) -> Callable[[], object]:
        def forward() -> object:
            with torch.no_grad():
                return read()

        def forward_and_backward() -> object:
            return torch.autograd.grad(read(), (q, k, v), gradient)

        return forward_and_backward if backward else forward

    calls = {"sdpa": timed(lambda: scaled_dot_product_attention(q, k, v, is_causal=causal))}
    for rule in rules:
        calls[rule] = timed(lambda rule=rule: rf.read(q, k, v, rule=rule, causal=causal))
        calls[f"{rule} in four lines"] = timed(lambda rule=rule: four_lines(rule, q, k, v, causal))
    return calls


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for backward in (False, True):
        for length in arguments.lengths:
            calls = competitors(arguments.rules, length, arguments.causal, backward, arguments)
            timings = interleaved(calls, arguments.repeats)
            base_memory = max(peak_memory(calls["sdpa"]), 1)
            for rule in arguments.rules:
                timing, obvious = timings[rule], timings[f"{rule} in four lines"]
                rows.append(
                    {
                        "rule": rule,
                        "length": length,
                        "pass": "forward+backward" if backward else "forward",
                        "milliseconds": round(1000 * timing.median, 3),
                        "spread": round(timing.spread, 3),
                        "time_over_sdpa": round(timing.median / timings["sdpa"].median, 3),
                        "memory_over_sdpa": round(peak_memory(calls[rule]) / base_memory, 2),
                        "four_lines_over_read": round(obvious.median / timing.median, 3),
                    }
                )
    return rows


def table(rows: list[dict[str, Any]], title: str) -> Table:
    lengths = list(dict.fromkeys(row["length"] for row in rows))
    shown = Table(title=title, title_justify="left", caption="time / memory / four lines over read()")
    for name in ("pass", "rule", *(str(length) for length in lengths)):
        shown.add_column(name, justify="left" if name in ("pass", "rule") else "right", no_wrap=True)
    for kind, rule in dict.fromkeys((row["pass"], row["rule"]) for row in rows):
        cells = [
            f"{row['time_over_sdpa']:.2f} / {row['memory_over_sdpa']:.1f} / {row['four_lines_over_read']:.2f}"
            for row in rows
            if (row["pass"], row["rule"]) == (kind, rule)
        ]
        shown.add_row(kind.replace("ward", ""), rule, *cells)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--rules", nargs="+", default=list(rf.rules.names()))
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = measure(arguments)
    settings = {name: getattr(arguments, name) for name in ("causal", "batch", "heads", "dim", "repeats")}
    results = {"benchmark": "attention", "settings": settings, **circumstances(), "rows": rows}
    if not arguments.json:
        kind = "causal" if arguments.causal else "full"
        Console(width=max(120, 24 * len(arguments.lengths))).print(table(rows, f"read() over sdpa, {kind} attention"))
    publish(results, arguments.json, arguments.out)


if __name__ == "__main__":
    main()
