"""The command line: one verb for each job.

The exit code is 0 for success, 1 for a failure and 2 for wrong use. An error that a user can fix is one line that
says what to do; `--debug` shows its traceback. Verbs import what they need when they run, so that `--help` is quick.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
import warnings
from contextlib import suppress
from typing import Annotated

import typer

from reluformer.cli import certify, data, doctor, evaluate, export, generate, inspect, relufy, study, train, translate
from reluformer.errors import ReluformerError, UnfinishedRunWarning

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""A full disk, a full quota, a file that would be too large, and a broken disk."""
app = typer.Typer(
    name="reluformer",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="ReLU and softmax as two rules of one key-value memory.",
)
app.command(name="demo")(train.demo)
app.add_typer(data.app, name="data")
app.command(name="recipe")(data.recipe)
app.command(name="prepare")(data.prepare)
app.command(name="train")(train.train)
app.command(name="translate")(translate.translate)
app.command(name="generate")(generate.generate)
app.command(name="score")(evaluate.score)
app.command(name="evaluate")(evaluate.evaluate)
app.command(name="certify")(certify.certify)
app.command(name="inspect")(inspect.inspect)
app.command(name="study")(study.study)
app.command(name="bench")(doctor.bench)
app.command(name="export")(export.export)
app.command(name="relufy")(relufy.relufy)
app.command(name="serve")(export.serve)
app.command(name="doctor")(doctor.doctor)


def _print_version(asked: bool) -> None:
    if asked:
        from reluformer import environment

        typer.echo(environment.version_line())
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, the commit and the kernel."
        ),
    ] = False,
) -> None:
    """Define the options that stand before the verb."""
    warnings.simplefilter("ignore", UnfinishedRunWarning)  # verbs print it as a line of their own


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    arguments = sys.argv[1:] if arguments is None else arguments
    gc.set_threshold(
        50_000, 20, 20
    )  # imports make many objects and no garbage; looking for it takes a tenth of a second
    try:
        try:
            app(arguments, prog_name="reluformer")
        finally:
            sys.stdout.flush()  # here, where an error can still be reported
    except ReluformerError as error:
        if "--debug" in arguments:
            raise
        _fail(str(error))
    except OSError as error:
        if "--debug" in arguments or error.errno not in _FULL:
            raise
        with suppress(OSError, ValueError):  # else Python fails to write the rest when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"the output cannot be written: {error.strerror}; free some space, or write it elsewhere")


def _fail(message: str) -> None:
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(message, err=True)
    sys.exit(1)
