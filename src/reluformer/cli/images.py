"""`evaluate` for image models, and `data get` for sets of images."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from reluformer import __version__
from reluformer.cli.options import check_model, open_run, write_scores
from reluformer.training.progress import activity

if TYPE_CHECKING:
    from reluformer.downloads import DownloadProgress
    from reluformer.images.downloads import ImageSet


def evaluate_images(run: Path, split: str, limit: int | None, out: Path | None, as_json: bool) -> None:
    """Print the accuracy of a run on one split.

    Args:
        run: The run.
        split: "valid" or "test".
        limit: At most so many images; None for all.
        out: Where the scores are written. Default: RUN/evaluation/SPLIT.json.
        as_json: Whether to print them as JSON.
    """
    check_model(run)
    from reluformer.images import scoring

    with activity(f"classifying the {split} images"):
        scores = scoring.evaluate(scoring.load(run), scoring.images_of(run, split, limit))
    content = {
        "reluformer": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "split": split,
        "limit": limit,
        "note": open_run(run).weights_note,
        **scores.to_dict(),
    }
    if as_json:
        typer.echo(json.dumps(content, indent=2))
    else:
        Console(highlight=False).print(
            f"accuracy {scores.accuracy:.2%} of {scores.images:,} images, cross-entropy {scores.loss:.4f}, "
            f"{scores.zero_fraction:.1%} of the attention weights exactly zero; {scores.seconds:.1f} s"
        )
    write_scores(run / "evaluation" / f"{split}.json" if out is None else out, content, required=out is not None)


def get_images(chosen: ImageSet, to: Path, mirror: str | None, progress: DownloadProgress, as_json: bool) -> None:
    """Download a set of images, and print what it holds and the lines that a recipe needs."""
    from reluformer.images.downloads import obtain

    counts = obtain(chosen, to, mirror=mirror, progress=progress)
    directory = to / chosen.name
    if as_json:
        typer.echo(json.dumps({"directory": str(directory), "images": counts}, indent=2))
        return
    typer.echo(", ".join(f"{count:,} images in {split}" for split, count in counts.items()) + f": {directory}")
    typer.echo(f"Licence: {chosen.licence}. Cite: {chosen.citation}.")
    typer.echo(f"In a recipe:\ntask: images\ndata:\n  directory: {json.dumps(str(directory))}")
