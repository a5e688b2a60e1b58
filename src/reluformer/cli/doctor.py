"""`reluformer doctor`: what is installed, what is missing, and what that means."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reluformer import __version__
from reluformer.cli.options import AsJson, Plugins

if TYPE_CHECKING:
    from reluformer.training.resume_check import ResumeCheck

EXTRAS = {
    "matplotlib": "plots",
    "translate": "formats",
    "tensorboard": "tensorboard",
    "transformers": "hf",
    "onnxruntime": "onnx",
    "fastapi": "serve",
}
"""A module of each extra."""


def doctor(
    resume_check: Annotated[
        bool, typer.Option("--resume-check", help="Prove that a killed training goes on bit for bit here.")
    ] = False,
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show the machine, the versions, the rules and the implementations that can be used here.

    Example: reluformer doctor --resume-check
    """
    findings = examine()
    exact = True
    if resume_check:
        from reluformer.training.resume_check import resume_check as check

        with Console(stderr=True).status("training, killing and resuming a tiny model"):
            result = check()
        exact = result.exact
        findings["resume"] = _resume_sentence(result)
    _show(findings, as_json)
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


def _show(findings: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(findings, indent=2))
        return
    table = Table(title="reluformer doctor", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in findings.items():
        shown = ", ".join(value) if isinstance(value, list | tuple) else str(value)
        table.add_row(name.replace("_", " "), Text(shown))  # as it is: an extra in brackets is no markup
    Console().print(table)


def examine() -> dict[str, Any]:
    """Everything that decides what works and how fast."""
    import torch

    from reluformer import kernels, rules

    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    missing = [f"{module} (pip install 'reluformer[{extra}]')" for module, extra in EXTRAS.items() if not _has(module)]
    return {
        "reluformer": __version__,
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


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
