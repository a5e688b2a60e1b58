"""`reluformer doctor` and `reluformer bench`: shows what can be used on this machine, and how fast each rule is."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reluformer import __version__, environment
from reluformer.cli.options import EXTRAS, AsJson, Plugins, install_command, missing_modules
from reluformer.training.progress import activity

if TYPE_CHECKING:
    from torch import Tensor

    from reluformer.benchmarking import Timing
    from reluformer.translation.resume_check import ResumeCheck


BASE = "softmax"
PASSES = ("forward", "forward+backward")


def doctor(
    resume_check: Annotated[
        bool, typer.Option("--resume-check", help="Check that a killed training resumes bit for bit on this machine.")
    ] = False,
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show the machine, the versions, the rules and the implementations that can be used here.

    Example: reluformer doctor --resume-check
    """
    findings = inspect_machine()
    exact = True
    if resume_check:
        from reluformer.translation.resume_check import resume_check as check

        with activity("training, killing and resuming a tiny model"):
            result = check()
        exact = result.exact
        findings["resume"] = _resume_sentence(result)
    _print_findings(findings, as_json)
    if not exact:
        raise typer.Exit(1)


def _resume_sentence(result: ResumeCheck) -> str:
    killed = ", ".join(map(str, result.killed_after))
    if result.exact:
        return f"exact: killed after updates {killed} of {result.updates}, all losses equal bit for bit"
    return (
        f"NOT exact: killed after updates {killed}, the losses differ from update {result.first_difference} on; "
        "this machine's arithmetic depends on more than its input"
    )


def _print_findings(findings: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(findings, indent=2))
        return
    table = Table(title="reluformer doctor", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in findings.items():
        shown = ", ".join(value) if isinstance(value, list | tuple) else str(value)
        table.add_row(name.replace("_", " "), Text(shown))  # Text, because an extra in brackets is no markup
    Console().print(table)


def inspect_machine() -> dict[str, Any]:
    """Returns the versions, the hardware and the implementations, which decide what works and how fast."""
    import torch

    from reluformer import kernels, rules

    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    missing = [
        f"{', '.join(modules)} ({install_command(extra)})" for extra in EXTRAS if (modules := missing_modules(extra))
    ]
    return {
        "reluformer": __version__,
        "commit": environment.commit() or "unknown",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "compiler": compiler or "none found",
        "rules": list(rules.names()),
        "implementations": list(kernels.IMPLEMENTATIONS),
        **{f"impl_{name}": state for name, state in kernels.availability().items()},
        "missing_extras": missing or "none",
    }


def bench(
    length: Annotated[
        list[int], typer.Option(min=1, help="Number of tokens that read each other; repeatable. Default: 512 and 2048.")
    ] = [],  # noqa: B006
    rule: Annotated[list[str], typer.Option(help="A rule; repeatable. Default: all.", show_default=False)] = [],  # noqa: B006
    causal: Annotated[bool, typer.Option("--causal", help="Let each token read only its own past.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Number of sequences.")] = 1,
    heads: Annotated[int, typer.Option(min=1, help="Number of heads.")] = 8,
    width: Annotated[int, typer.Option(min=1, help="Width of one head.")] = 64,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of PyTorch. Default: its choice.", show_default=False)
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions of each rule.")] = 9,
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Time a read of every rule beside fused softmax, forward and with its backward pass.

    The rules take turns, so compare figures of one call only. benchmarks/ in the
    repository times whole models beside those of other libraries.

    Example: reluformer bench --length 1024 --causal --rule relu --rule relu_exp
    """
    import torch

    from reluformer import rules
    from reluformer.environment import circumstances

    names = list(dict.fromkeys([BASE, *(rule or rules.names())]))
    for name in names:
        rules.get(name)
    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(stderr=as_json)
    rows: list[dict[str, Any]] = []
    lengths = length or [512, 2048]
    with activity("timing reads") as tell:
        for number, tokens in enumerate(lengths):
            what = f"timing reads of {tokens} tokens, length {number + 1} of {len(lengths)}"
            tell(what, sum(lengths[:number]) / sum(lengths))
            rows += _rows(names, (batch, heads, tokens, width), causal, repeats)
    if as_json:
        typer.echo(json.dumps({"bench": rows, **circumstances()}, indent=2))
        return
    console.print(
        _bench_table(rows, f"{batch} × {heads} heads of width {width}, {'causal' if causal else 'all slots'}")
    )


def _rows(names: list[str], shape: tuple[int, int, int, int], causal: bool, repeats: int) -> list[dict[str, Any]]:
    from reluformer.benchmarking import interleaved

    times = {kind: interleaved({name: _call(name, shape, causal, kind) for name in names}, repeats) for kind in PASSES}
    return [
        {
            "length": shape[2],
            "rule": name,
            **{
                kind: {"impl": _implementation(name, shape, causal, kind), **_figures(found, name)}
                for kind, found in times.items()
            },
        }
        for name in names
    ]


def _figures(times: Mapping[str, Timing], name: str) -> dict[str, float]:
    own, base = times[name], times[BASE]
    return {
        "milliseconds": round(own.median * 1e3, 3),
        "spread": round(own.spread, 3),
        "times_as_fast": round(base.median / own.median, 2),
    }


def _tensors(shape: tuple[int, int, int, int]) -> tuple[Tensor, ...]:
    import torch

    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) for _ in range(3))


def _call(rule: str, shape: tuple[int, int, int, int], causal: bool, kind: str) -> Callable[[], object]:
    import torch

    from reluformer.memory import read

    q, k, v = (tensor.requires_grad_(kind != "forward") for tensor in _tensors(shape))
    probe = torch.ones(shape)

    def forward() -> object:
        return read(q, k, v, rule=rule, causal=causal)

    def both() -> object:
        return torch.autograd.grad(read(q, k, v, rule=rule, causal=causal), (q, k, v), probe)

    return forward if kind == "forward" else both


def _implementation(rule: str, shape: tuple[int, int, int, int], causal: bool, kind: str) -> str:
    from reluformer import kernels, rules

    q, k, v = (tensor.requires_grad_(kind != "forward") for tensor in _tensors(shape))
    visibility = kernels.Visibility(shape[2], shape[2], q.device, causal)
    return kernels.fastest(q, k, v, rules.get(rule), visibility, None, False)


def _bench_table(rows: list[dict[str, Any]], shape: str) -> Table:
    caption = "Milliseconds; × is how many times as fast as softmax."
    title = f"One read, {shape}"
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=box.SIMPLE_HEAD)
    for column in ("tokens", "rule", "forward", "×", "and back", "×", "done by"):
        table.add_column(column, justify="left" if column in ("rule", "done by") else "right", no_wrap=True)
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before["length"] != row["length"]:
            table.add_section()
        done_by = ", ".join(dict.fromkeys(row[kind]["impl"] for kind in PASSES))
        table.add_row(str(row["length"]), row["rule"], *(c for kind in PASSES for c in _cells(row[kind])), done_by)
    return table


def _cells(figures: dict[str, Any]) -> tuple[str, str]:
    return f"{figures['milliseconds']:,.2f}", f"{figures['times_as_fast']:.2f}"
