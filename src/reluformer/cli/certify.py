"""`reluformer certify`: how many images of a run no small change can turn into another class."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from reluformer import __version__
from reluformer.cli.evaluate import EvaluatedSplit
from reluformer.cli.options import AsJson, RunArgument, check_model, open_run, task_of, write_scores
from reluformer.errors import ArgumentError
from reluformer.training.progress import counted

if TYPE_CHECKING:
    from reluformer.images.dataset import LabelledImages
    from reluformer.models.image_model import ImageModel


def certify(
    run: RunArgument,
    eps: Annotated[
        list[str], typer.Option(metavar="E", help="Largest change of a pixel from 0 to 1, as 1/255; repeatable.")
    ] = ["1/255"],  # noqa: B006
    split: Annotated[EvaluatedSplit, typer.Option(help="Split of the run's recipe.")] = EvaluatedSplit.test,
    limit: Annotated[int, typer.Option(min=1, help="Certify only the first images.")] = 100,
    domain: Annotated[
        str, typer.Option(help="linear: affine functions of the pixels; interval: intervals.")
    ] = "linear",
    reads: Annotated[
        str, typer.Option(help="Bounds of a read: exact, mixed or best, or the baselines elementwise and lse.")
    ] = "exact",
    steps: Annotated[int, typer.Option(min=0, help="Steps of the attack; 0 for no attack.")] = 40,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON file for the figures, instead of one in RUN/evaluation.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prove that no small change of an image changes its class, and attack what cannot be proved.

    It prints the accuracy, the share of images with a proof, the share that an
    attack by gradients leaves right, the mean margin that is proved, and seconds
    for each image. The model needs norm: affine and qk_norm: false.

    Example: reluformer certify runs/certified --eps 1/255 --eps 2/255
    """
    sizes = [_size(given) for given in eps]
    check_model(run)
    if task_of(run) != "images":
        raise ArgumentError(f"{run}: only image models are certified; this is a run of task {task_of(run)}")
    from reluformer.images import scoring

    model, images = scoring.load(run), scoring.images_of(run, split.value, limit)
    rows = _figures(model, images, sizes, domain, reads, steps)
    content = {
        "reluformer": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "split": split.value,
        "limit": limit,
        "note": open_run(run).weights_note,
        "figures": rows,
    }
    if as_json:
        typer.echo(json.dumps(content, indent=2))
    else:
        Console().print(_table(rows))
    place = run / "evaluation" / f"certified-{split.value}-{domain}-{reads}.json" if out is None else out
    write_scores(place, content, required=out is not None)


def _size(given: str) -> float:
    """Returns a size such as 1/255 as a number."""
    try:
        size = float(Fraction(given.strip()))
    except (ValueError, ZeroDivisionError):
        raise ArgumentError(f"--eps {given}: give a number from 0 to 1, as 1/255 or 0.004") from None
    if not 0 <= size <= 1:
        raise ArgumentError(f"--eps {given}: pixels go from 0 to 1, so no change is larger; as in 1/255")
    return size


def _figures(
    model: ImageModel, images: LabelledImages, sizes: list[float], domain: Any, reads: Any, steps: int
) -> list[dict[str, Any]]:
    from reluformer.images.attack import attack
    from reluformer.images.certification import certify as prove

    rows = []
    with counted("certifying", "sizes", len(sizes)) as report:
        for number, size in enumerate(sizes):
            found = prove(model, images, size, domain=domain, reads=reads).to_dict()
            if steps:
                margins, _ = attack(model, images.images, images.labels, size, steps=steps)
                found["attacked"] = float((margins > 0).double().mean())
            rows.append(found)
            report(number + 1, len(sizes))
    return rows


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        title=f"{rows[0]['images']} images, {rows[0]['domain']}, reads {rows[0]['reads']}", title_justify="left"
    )
    for column in ("eps", "accuracy", "certified", "left by the attack", "mean margin proved", "seconds an image"):
        table.add_column(column, justify="right")
    for row in rows:
        left = f"{row['attacked']:.1%}" if "attacked" in row else "–"
        table.add_row(
            f"{row['epsilon'] * 255:.3g}/255", f"{row['accuracy']:.1%}", f"{row['certified']:.1%}", left,
            f"{row['mean_margin']:.3g}", f"{row['seconds']:.2f}",
        )  # fmt: skip
    return table
