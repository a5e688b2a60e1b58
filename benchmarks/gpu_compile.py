"""What Triton's compiler makes of the GPU kernels: registers, spills and shared memory of each. It needs no GPU.

    python benchmarks/gpu_compile.py --out docs/results/gpu-compile.json        # about ten minutes on one core

Each case calls the read and its gradients as a GPU would. A stand-in for the GPU's driver names the target, receives
the compiled kernels and starts none of them. So types, tiles, strides and alignments are those of a real launch. The
numbers are from the report of ptxas, NVIDIA's assembler, which comes with Triton. Nothing runs and nothing is timed.
The file is written after each case, and a second run compiles only what it lacks. The exit code is 1 if a kernel needs
more shared memory than its target has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import product, starmap
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from measure import circumstances, publish
from reluformer import rules
from reluformer.kernels import Bias, Visibility
from reluformer.kernels import triton as kernel
from reluformer.kernels.moments import level_bias

SHARED_LIMIT = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a program can have, by compute capability."""
WARPS_LIMIT = {80: 64, 86: 48, 89: 48, 90: 64}
SHARED_IN_ALL = {80: 164 * 1024, 86: 100 * 1024, 89: 100 * 1024, 90: 228 * 1024}
REGISTERS = 65536
RULES = ("relu", "relu2", "sigmoid", "relu_exp")
"""One rule for each activation of the kernels."""
PATTERNS = ("full", "causal", "everything")
"""`everything` is causal with a key mask, a bias of the slots and row statistics."""
LENGTH = 256
Case = tuple[str, int, str, str, int]
"""dtype, width, rule, pattern and target."""


def main() -> None:
    """Compile every case, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, nargs="+", default=[80, 90], choices=sorted(SHARED_LIMIT))
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32", "float16"])
    parser.add_argument("--rules", nargs="+", default=list(RULES))
    parser.add_argument("--patterns", nargs="+", default=["full", "everything"], choices=PATTERNS)
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile (default: 1)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    options = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported
    if reason := unavailable():
        sys.exit(reason)
    from triton import __version__

    versions = {"triton": __version__, "sources": digest()}
    rows = kept(options.out, versions)
    done = {case_of(row) for row in rows}
    grid = product(options.dtypes, options.widths, options.rules, options.patterns, options.targets)
    for found in compiled([case for case in grid if case not in done], options.jobs):
        rows = sorted(rows + found, key=case_of)
        if not options.json:
            print(*map(line, found), sep="\n", flush=True)
        publish(results(rows, versions), False, options.out)
    publish(results(rows, versions), options.json, options.out)
    if not options.json:
        print(table(summary(rows)))
    sys.exit(any(not row["fits"] for row in rows))


def results(rows: list[dict[str, Any]], versions: dict[str, str]) -> dict[str, Any]:
    """Return the content of the file."""
    return {"circumstances": circumstances(), **versions, "summary": summary(rows), "rows": rows}


def digest() -> str:
    """Return a hash of the kernels and their tiles: what was compiled from other sources is compiled again."""
    from reluformer.kernels import triton_tiles

    files = [Path(str(module.__file__)) for module in (kernel, triton_tiles)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def kept(out: Path | None, versions: dict[str, str]) -> list[dict[str, Any]]:
    """Return the kernels that an earlier run wrote to `out`, if Triton and the sources are the same."""
    if out is None or not out.exists():
        return []
    found = json.loads(out.read_text(encoding="utf-8"))
    return list(found["rows"]) if versions.items() <= found.items() else []


def case_of(row: dict[str, Any]) -> Case:
    """Return the case to which a kernel belongs."""
    return row["dtype"], row["width"], row["rule"], row["pattern"], int(row["target"].removeprefix("sm_"))


def unavailable() -> str | None:
    """Return what this machine lacks to compile the kernels, or None if it lacks nothing."""
    if not kernel.INSTALLED:
        return "triton is not installed: pip install 'reluformer[triton]'"
    try:
        from triton.knobs import nvidia

        found = nvidia.ptxas, nvidia.ptxas_blackwell
    except (ImportError, AttributeError):
        return "this version of triton cannot report registers: pip install --upgrade triton"
    except RuntimeError as error:
        return f"ptxas is missing from triton: {error}"
    return None if all(found) else "ptxas is missing from triton"


def compiled(cases: list[Case], jobs: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the kernels of each case, in order."""
    if jobs == 1:
        yield from starmap(compile_read, cases)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(compile_read, *zip(*cases, strict=True))


@dataclass(frozen=True)
class Report:
    """What ptxas says about one kernel, in registers of a thread and bytes."""

    registers: int
    spill_stores: int
    spill_loads: int

    @classmethod
    def of(cls, log: str) -> Report:
        """Read the log of `ptxas -v` for a single kernel."""
        registers = re.search(r"Used (\d+) registers", log)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
        if registers is None or spills is None:
            raise ValueError(f"ptxas reported no registers or no spills:\n{log}")
        return cls(int(registers[1]), int(spills[1]), int(spills[2]))


class CompilingDriver:
    """The part of a GPU driver that Triton asks between a call and its launch; it launches nothing."""

    def __init__(self, target: int, log: StringIO) -> None:
        self.target, self.log = target, log
        self.compiled: list[dict[str, Any]] = []
        self.utils = self
        self._warps = 0

    def get_current_target(self) -> Any:
        """Return the GPU to compile for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.target, 32)

    def get_current_device(self) -> int:
        """Return a number of its own for each target, so that Triton keeps their kernels apart."""
        return self.target

    def get_current_stream(self, device: int) -> int:
        """Return the stream of the launches that are not made."""
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Return no limit, so that a kernel that is too large is reported instead of refused."""
        return {"max_shared_mem": sys.maxsize}

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """Return a launcher that does nothing."""
        self._warps = metadata.num_warps
        return lambda *arguments: None

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """Record a compiled kernel; `binary` is what a GPU would load."""
        report = Report.of(self.log.getvalue())
        self.log.seek(0)
        self.log.truncate()
        self.compiled.append(
            {
                "kernel": name,
                "registers": report.registers,
                "spill_stores": report.spill_stores,
                "spill_loads": report.spill_loads,
                "shared": shared,
                "warps": self._warps,
                "binary": len(binary),
                "fits": shared <= SHARED_LIMIT[device],
                "resident_warps": resident_warps(device, report.registers, shared, self._warps),
            }
        )
        return 0, 0, report.registers, report.spill_stores // 4, 1024

    def unload_module(self, module: int) -> None:
        """Nothing was loaded."""


def resident_warps(target: int, registers: int, shared: int, warps: int) -> int:
    """Return how many warps of a kernel a multiprocessor can hold at once, by registers and shared memory."""
    by_registers = REGISTERS // (-(-registers // 8) * 8 * 32 * warps)
    by_shared = SHARED_IN_ALL[target] // (shared + 1024)  # the system keeps one KB for each program
    return min(by_registers, by_shared, WARPS_LIMIT[target] // warps) * warps


def compile_read(dtype: str, width: int, rule: str, pattern: str, target: int) -> list[dict[str, Any]]:
    """Compile the kernels of one read and of its gradients; nothing is read."""
    from triton import knobs
    from triton.runtime import driver

    log = StringIO()
    compiling = CompilingDriver(target, log)
    driver.set_active(compiling)
    q, k, v = (torch.zeros(2, 4, LENGTH, width, dtype=getattr(torch, dtype), requires_grad=True) for _ in range(3))
    everything = pattern == "everything"
    mask = torch.ones(2, LENGTH, dtype=torch.bool) if everything else None
    visibility = Visibility(LENGTH, LENGTH, q.device, pattern != "full", mask)
    bias: Bias | None = torch.zeros(2, 4, 1, LENGTH, requires_grad=True) if everything else None
    formula = rules.formula_of(rules.get(rule))
    assert formula is not None
    if formula.centred and formula.level is not None:
        bias = level_bias(q, k, formula.level, visibility, bias, 0.125)
        formula = formula.without_level()
    with tempfile.TemporaryDirectory() as cache, knobs.cache.scope(), knobs.nvidia.scope(), redirect_stdout(log):
        knobs.cache.dir = cache  # a kernel from a cache has no log
        knobs.nvidia.dump_ptxas_log = True
        out, stats = kernel.read(q, k, v, formula, visibility, bias, 0.125, everything)
        total = out.float().sum() + (0 if stats is None else (stats.row_sum + stats.entropy).sum())
        torch.autograd.grad(total, (q, k, v))
    case = {"target": f"sm_{target}", "dtype": dtype, "width": width, "rule": rule, "pattern": pattern}
    tiles = {row["kernel"]: kernel.tile_of(row["kernel"], width, q.dtype)._asdict() for row in compiling.compiled}
    return [{**case, **row, "tile": tiles[row["kernel"]]} for row in compiling.compiled]


def line(row: dict[str, Any]) -> str:
    """Return one kernel as text."""
    return (
        f"{row['target']} {row['dtype']:<9}{row['width']:>4} {row['rule']:<9}{row['pattern']:<11}{row['kernel']:<20}"
        f"{row['registers']:>4} registers, {row['spill_stores']:>5} bytes spilled, "
        f"{row['shared'] / 1024:>5.1f} KB shared" + ("" if row["fits"] else ": does not fit")
    )


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each dtype, width, kernel and target, with the worst of its rules and patterns."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["dtype"], row["width"], row["kernel"], row["target"]), []).append(row)
    worst = ("registers", "spill_stores", "spill_loads", "shared")
    return [
        {
            **dict(zip(("dtype", "width", "kernel", "target"), key, strict=True)),
            "tile": group[0]["tile"],
            "compiled": len(group),
            **{name: max(row[name] for row in group) for name in worst},
            "spilling": sum(row["spill_stores"] > 0 for row in group),
            "resident_warps": min(row["resident_warps"] for row in group),
            "fits": all(row["fits"] for row in group),
        }
        for key, group in groups.items()
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """Return the summary as a table in Markdown."""
    lines = [
        "| inputs, width | kernel | rows x slots, stages, warps | target | registers | spilled, bytes | shared, KB "
        "| resident warps |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: (row["width"], row["dtype"], row["kernel"], row["target"])):
        tile = row["tile"]
        lines.append(
            f"| {row['dtype']}, {row['width']} | `{row['kernel']}` "
            f"| {tile['rows']} x {tile['slots']}, {tile['stages']}, {tile['warps']} | {row['target']} "
            f"| {row['registers']} | {row['spill_stores']} | {row['shared'] / 1024:.0f} | {row['resident_warps']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
