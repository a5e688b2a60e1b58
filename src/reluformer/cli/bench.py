"""`reluformer bench`: how fast each rule reads on this machine, beside fused softmax."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from reluformer.cli.options import AsJson, Plugins

if TYPE_CHECKING:
    from torch import Tensor

    from reluformer.timing import Timing

BASE = "softmax"
PASSES = ("forward", "forward+backward")


def bench(
    length: Annotated[
        list[int], typer.Option(min=1, help="Tokens that read each other; repeat for more. Default: 512 and 2048.")
    ] = [],  # noqa: B006
    rule: Annotated[list[str], typer.Option(help="A rule; repeat for more. Default: all.", show_default=False)] = [],  # noqa: B006
    causal: Annotated[bool, typer.Option("--causal", help="Each token reads its own past only.")] = False,
    batch: Annotated[int, typer.Option(min=1)] = 1,
    heads: Annotated[int, typer.Option(min=1)] = 8,
    width: Annotated[int, typer.Option(min=1, help="Of one head.")] = 64,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of PyTorch. Default: its own choice.", show_default=False)
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each contestant.")] = 9,
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Time a read of every rule beside fused softmax, forward and with its backward pass.

    Contestants take turns, so compare within one call only. Whole models
    beside those of others are timed by benchmarks/ of the repository.

    Example: reluformer bench --length 1024 --causal --rule relu --rule relu_exp
    """
    import torch

    from reluformer import rules
    from reluformer.timing import circumstances

    names = list(dict.fromkeys([BASE, *(rule or rules.names())]))
    for name in names:
        rules.get(name)
    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(stderr=as_json)
    rows = []
    for tokens in length or (512, 2048):
        with console.status(f"reading {tokens} tokens"):
            rows += _rows(names, (batch, heads, tokens, width), causal, repeats)
    if as_json:
        typer.echo(json.dumps({"bench": rows, **circumstances()}, indent=2))
        return
    console.print(_table(rows, f"{batch} × {heads} heads of width {width}, {'causal' if causal else 'all slots'}"))


def _rows(names: list[str], shape: tuple[int, int, int, int], causal: bool, repeats: int) -> list[dict[str, Any]]:
    from reluformer.timing import interleaved

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


def _table(rows: list[dict[str, Any]], shape: str) -> Table:
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
