"""Attention side by side: read(), scaled_dot_product_attention, four lines of PyTorch, compiled, FlexAttention.

    python benchmarks/attention.py                       # a table; about 12 minutes on two cores
    python benchmarks/attention.py --json --quick        # about a minute
    python benchmarks/attention.py --whole-grid --lengths 1024 4096 --widths 32 64 128 --threads 1 2
    python benchmarks/attention.py --run runs/demo/reluformer       # trained queries and keys as well
    python benchmarks/attention.py --compare-rules       # read() of every rule against the obvious four lines

Without --whole-grid one thing varies at a time: all lengths with each pattern at the first width and
all threads, and at the middle length and the first pattern the other widths and numbers of
threads. Contestants take turns. Each row tells the median time and its spread, the ratio to
scaled_dot_product_attention (above 1 is slower), the share of the FLOP/s that a large torch.mm
reaches in the same turns, and the peak memory as torch counts it and as the system sees it. FLOPs
are those of dense products over the visible pairs, so a kernel that skips zeros can exceed its
share. What a limit leaves out is named with the reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import reluformer as rf
from attention_inputs import (
    PATTERNS,
    Inputs,
    TrainedInputs,
    embedded_document,
    queries_of,
    random_inputs,
    sparsity,
)
from contestants import FOUR_LINES, LeftOut, Read, contestant, holds_scores
from measure import circumstances, peak_memory, peak_resident, publish
from reluformer.benchmarking import interleaved

COPIES = {"forward": 4, "forward+backward": 8}
"""Score matrices that a contestant that holds them may need at once: what the memory limit is compared to."""


@dataclass(frozen=True)
class Cell:
    """One attention to compute."""

    inputs: str
    pattern: str
    length: int
    width: int
    heads: int
    threads: int
    kind: str  # forward or forward+backward

    @property
    def pairs(self) -> float:
        """Visible pairs of query and slot, all heads."""
        every = queries_of(self.pattern, self.length) * self.length * self.heads
        return every * (self.length + 1) / (2 * self.length) if self.pattern == "causal" else every

    @property
    def flops(self) -> float:
        """Two products forward; backward the scores again and four for the gradients."""
        return 4 * self.width * self.pairs * (3.5 if self.kind == "forward+backward" else 1)

    @property
    def score_bytes(self) -> int:
        held = queries_of(self.pattern, self.length) * self.length * self.heads * 4
        return held * COPIES[self.kind]


def cells(arguments: argparse.Namespace, inputs: str, widths: Sequence[int]) -> list[Cell]:
    """The grid, or its star: one thing varies at a time."""
    most, middle = max(arguments.threads), sorted(arguments.lengths)[len(arguments.lengths) // 2]
    chosen = []
    for kind, pattern, length, width, threads in product(
        arguments.passes, arguments.patterns, sorted(arguments.lengths), widths, arguments.threads
    ):
        on_a_ray = length == middle and pattern == arguments.patterns[0] and (width == widths[0] or threads == most)
        if arguments.whole_grid or (width == widths[0] and threads == most) or on_a_ray:
            chosen.append(Cell(inputs, pattern, length, width, arguments.heads, threads, kind))
    return chosen


def timed(read: Read, tensors: Inputs, gradient: Tensor, backward: bool) -> Callable[[], object]:
    def forward() -> object:
        with torch.no_grad():
            return read(*tensors)

    def forward_and_backward() -> object:
        return torch.autograd.grad(read(*tensors), tensors, gradient)

    return forward_and_backward if backward else forward


class Bench:
    """Measures cell by cell and remembers how long each contestant took, to leave out what would take too long."""

    def __init__(self, arguments: argparse.Namespace, trained: TrainedInputs | None) -> None:
        self.arguments = arguments
        self.trained = trained
        self.names = [*arguments.peers, *(f"read:{impl}" for impl in arguments.impl)]
        self.rows: list[dict[str, Any]] = []
        self.left_out: list[dict[str, Any]] = []
        self.sparsity: list[dict[str, Any]] = []
        self._seconds: dict[tuple[str, ...], tuple[int, float]] = {}
        self._seen_sparsity: set[tuple[str, str, int, int]] = set()

    def measure(self, cell: Cell) -> None:
        torch.set_num_threads(cell.threads)
        tensors = self._tensors(cell)
        backward = cell.kind == "forward+backward"
        tensors = tuple(part.requires_grad_(backward) for part in tensors)  # type: ignore[assignment]
        gradient = torch.randn(*tensors[0].shape[:3], cell.width)
        side = self.arguments.matrix
        a, b = torch.randn(2, side, side)
        calls: dict[tuple[str, str], Callable[[], object]] = {("mm", ""): lambda: torch.mm(a, b)}
        for rule, name in self._entrants():
            found = self._admit(cell, rule, name, backward)
            if isinstance(found, LeftOut):
                self.left_out.append({**asdict(cell), "contestant": name, "rule": rule, "reason": found.reason})
                continue
            call = timed(found, tensors, gradient, backward)
            call()  # compiles where there is something to compile
            calls[name, rule] = call
        timings = interleaved(calls, self.arguments.repeats, warmup=0, seconds=self.arguments.seconds)
        matrix_rate = 2 * side**3 / timings.pop(("mm", "")).median
        base = timings.get(("sdpa", "softmax"))
        for (name, rule), timing in timings.items():
            self._seconds[self._key(cell, rule, name)] = (cell.length, timing.median)
            resident = peak_resident(calls[name, rule])
            self.rows.append(
                {
                    **asdict(cell),
                    "contestant": name,
                    "rule": rule,
                    "milliseconds": round(1000 * timing.median, 3),
                    "spread": round(timing.spread, 3),
                    "time_over_sdpa": None if base is None else round(timing.median / base.median, 3),
                    "share_of_mm": round(cell.flops / timing.median / matrix_rate, 3),
                    "peak_megabytes": round(peak_memory(calls[name, rule]) / 2**20, 2),
                    "resident_megabytes": None if resident is None else round(resident / 2**20, 2),
                }
            )
        torch._dynamo.reset()

    def _entrants(self) -> Iterable[tuple[str, str]]:
        """Rule and contestant; PyTorch's own attention is softmax, once."""
        for name in self.names:
            for rule in ("softmax",) if name in ("sdpa", "flex") else self.arguments.rules:
                yield rule, name

    def _tensors(self, cell: Cell) -> Inputs:
        if cell.inputs == "random":
            tensors = random_inputs(cell.pattern, cell.length, cell.heads, cell.width)
        else:
            assert self.trained is not None
            tensors = self.trained(cell.pattern, cell.length, cell.heads)
        key = (cell.inputs, cell.pattern, cell.length, cell.width)
        if key not in self._seen_sparsity:
            self._seen_sparsity.add(key)
            found = sparsity(tensors[0], tensors[1], cell.pattern == "causal")
            names = ("inputs", "pattern", "length", "width")
            self.sparsity.append({**dict(zip(names, key, strict=True)), **found})
        return tensors

    def _admit(self, cell: Cell, rule: str, name: str, backward: bool) -> Read | LeftOut:
        causal = cell.pattern == "causal"
        known = self._seconds.get(self._key(cell, rule, name))
        if known is not None and known[1] > 0.05:  # below that a call is mostly overhead and foretells nothing
            predicted = known[1] * (cell.length / known[0]) ** 2
            if predicted > self.arguments.time_limit:
                return LeftOut(f"a call would take about {predicted:.0f} s, the limit is {self.arguments.time_limit} s")
        if cell.score_bytes > self.arguments.memory_limit * 2**20 and holds_scores(name, rule, causal):
            needed = cell.score_bytes / 2**20
            return LeftOut(f"holds the scores: about {needed:.0f} MB, the limit is {self.arguments.memory_limit} MB")
        return contestant(name, rule, causal, backward)

    @staticmethod
    def _key(cell: Cell, rule: str, name: str) -> tuple[str, ...]:
        return (name, rule, cell.inputs, cell.pattern, cell.kind, str(cell.width), str(cell.threads))


def compare_rules(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """read() of every rule over sdpa, and the obvious four lines over read(): above 1 means that read() is faster."""
    rows = []
    names = [name for name in rf.rules.names() if name in FOUR_LINES]
    for kind, pattern, length in product(arguments.passes, arguments.patterns, arguments.lengths):
        if pattern == "cross" or length > 4096:
            continue
        cell = Cell("random", pattern, length, arguments.widths[0], arguments.heads, max(arguments.threads), kind)
        torch.set_num_threads(cell.threads)
        backward, causal = kind == "forward+backward", pattern == "causal"
        tensors = random_inputs(pattern, length, cell.heads, cell.width)
        tensors = tuple(part.requires_grad_(backward) for part in tensors)  # type: ignore[assignment]
        gradient = torch.randn(tensors[0].shape)
        wanted = [("sdpa", "softmax"), *product(("read:auto", "eager"), names)]
        found = {(name, rule): contestant(name, rule, causal, backward) for name, rule in wanted}
        calls = {
            key: timed(read, tensors, gradient, backward)
            for key, read in found.items()
            if not isinstance(read, LeftOut)
        }
        timings = interleaved(calls, arguments.repeats, seconds=arguments.seconds)
        base, base_memory = timings["sdpa", "softmax"].median, max(peak_memory(calls["sdpa", "softmax"]), 1)
        for rule in names:
            own, obvious = timings["read:auto", rule], timings["eager", rule]
            rows.append(
                {
                    "rule": rule,
                    "pattern": pattern,
                    "length": length,
                    "pass": kind,
                    "milliseconds": round(1000 * own.median, 3),
                    "spread": round(own.spread, 3),
                    "time_over_sdpa": round(own.median / base, 3),
                    "memory_over_sdpa": round(peak_memory(calls["read:auto", rule]) / base_memory, 2),
                    "four_lines_over_read": round(obvious.median / own.median, 3),
                }
            )
        print(f"rules: {pattern} {length} {kind}", file=sys.stderr)
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    """A line for each contestant and setting, a column for each length."""
    lengths = sorted({row["length"] for row in rows})
    shown = Table(title="time over sdpa / share of mm", title_justify="left")
    for name in ("inputs", "pattern", "pass", "width", "threads", "contestant", *map(str, lengths)):
        shown.add_column(name, justify="right" if name.isdigit() else "left", no_wrap=True)
    keys = ("inputs", "pattern", "kind", "width", "threads", "contestant", "rule")
    for setting in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        found = {row["length"]: row for row in rows if tuple(row[key] for key in keys) == setting}
        cells = [
            f"{found[n]['time_over_sdpa'] or 0:.2f} / {found[n]['share_of_mm']:.2f}" if n in found else ""
            for n in lengths
        ]
        *where, name, rule = (str(part) for part in setting)
        shown.add_row(*where, f"{name} ({rule})", *cells)
    return shown


def rules_table(rows: list[dict[str, Any]]) -> Table:
    lengths = list(dict.fromkeys(row["length"] for row in rows))
    shown = Table(title="read() over sdpa: time / memory / four lines over read()", title_justify="left")
    for name in ("pattern", "pass", "rule", *map(str, lengths)):
        shown.add_column(name, justify="right" if name.isdigit() else "left", no_wrap=True)
    for setting in dict.fromkeys((row["pattern"], row["pass"], row["rule"]) for row in rows):
        cells = [
            f"{row['time_over_sdpa']:.2f} / {row['memory_over_sdpa']:.1f} / {row['four_lines_over_read']:.2f}"
            for row in rows
            if (row["pattern"], row["pass"], row["rule"]) == setting
        ]
        shown.add_row(*setting, *cells)
    return shown


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--lengths", type=int, nargs="+", help="default: some from 128 to 16384, all up to 4096 for rules"
    )
    parser.add_argument(
        "--widths", type=int, nargs="+", default=[64, 32, 128], help="of a head; the first is the usual one"
    )
    parser.add_argument("--patterns", nargs="+", default=list(PATTERNS), choices=PATTERNS)
    parser.add_argument("--passes", nargs="+", default=list(COPIES), choices=list(COPIES))
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, torch.get_num_threads()}))
    parser.add_argument("--rules", nargs="+", default=["relu"])
    parser.add_argument("--impl", nargs="+", default=["auto", "cpu"], help="of read()")
    parser.add_argument("--peers", nargs="*", default=["sdpa", "eager", "compiled", "flex"])
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="after three turns a contestant stops here")
    parser.add_argument("--matrix", type=int, default=2048, help="side of the matrices whose product is the yardstick")
    parser.add_argument("--memory-limit", type=int, default=2048, help="MB for contestants that hold the scores")
    parser.add_argument(
        "--time-limit", type=float, default=15.0, help="seconds of a call, foreseen from a shorter length"
    )
    parser.add_argument("--whole-grid", action="store_true", help="every combination")
    parser.add_argument("--run", type=Path, help="a trained run: its queries and keys as well as random ones")
    parser.add_argument("--text", type=Path, help="the document that the run reads, a sentence a line")
    parser.add_argument("--compare-rules", action="store_true", help="only read() against four lines, up to 4096")
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    arguments = parser.parse_args()
    usual = [128, 256, 512, 1024, 2048, 4096] if arguments.compare_rules else [128, 512, 1024, 4096, 16384]
    arguments.lengths = arguments.lengths or usual
    if arguments.quick:
        arguments.lengths, arguments.widths, arguments.threads = [128, 1024], [64], [max(arguments.threads)]
        arguments.patterns = [pattern for pattern in arguments.patterns if pattern != "cross"]
        arguments.peers = [peer for peer in arguments.peers if peer not in ("compiled", "flex")]
        arguments.repeats, arguments.seconds = 5, 0.2
    return arguments


def main() -> None:
    arguments = parsed()
    torch.manual_seed(0)
    settings = {name: value.name if isinstance(value, Path) else value for name, value in vars(arguments).items()}
    results: dict[str, Any] = {"benchmark": "attention", "settings": settings, **circumstances()}
    if arguments.compare_rules:
        results["rules"] = compare_rules(arguments)
        if not arguments.json:
            Console(width=max(120, 40 + 22 * len(arguments.lengths))).print(rules_table(results["rules"]))
        publish(results, arguments.json, arguments.out)
        return
    trained = None
    grid = cells(arguments, "random", arguments.widths)
    if arguments.run is not None:
        text = arguments.text
        trained = TrainedInputs(arguments.run, text.read_text("utf-8").splitlines() if text else embedded_document())
        grid += cells(arguments, "trained", [trained.width])
        results["trained_tokens"] = trained.tokens
    bench = Bench(arguments, trained)
    for number, cell in enumerate(grid, 1):
        where = f"{cell.inputs} {cell.pattern} {cell.length} x {cell.width}, {cell.kind}, {cell.threads} threads"
        print(f"{number}/{len(grid)}  {where}", file=sys.stderr, flush=True)
        bench.measure(cell)
    results |= {"rows": bench.rows, "left_out": bench.left_out, "sparsity": bench.sparsity}
    if not arguments.json:
        Console(width=max(120, 80 + 15 * len(arguments.lengths))).print(table(bench.rows))
        for line in dict.fromkeys(f"{row['contestant']} ({row['rule']}): {row['reason']}" for row in bench.left_out):
            print(f"left out: {line}")
    publish(results, arguments.json, arguments.out)


if __name__ == "__main__":
    main()
