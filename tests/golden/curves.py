"""Train the recipes beside this file, translate ten documents with each model, and print the numbers as JSON.

    python tests/golden/curves.py > curves.json

Training computes in float64: in float32 the rounding of another processor grows within 30 updates to more than 1e-5.

The package that Python imports is the one that is measured: `compare.py` sets PYTHONPATH to another checkout.
Only the command line, the files of a run directory and `reluformer.read` are used, which all versions share.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from typer.testing import CliRunner

HERE = Path(__file__).parent
RECIPES = ("softmax", "relu", "relu_exp")
DOCUMENTS = HERE / "documents.jsonl"
TRAINED = ("loss", "nll", "grad_norm", "tokens", "lr", "regularizer")


def main() -> None:
    """Print the curves and translations of all recipes."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    force_reference()
    with TemporaryDirectory() as directory:
        found = {name: measure(name, Path(directory)) for name in RECIPES}
    json.dump(found, sys.stdout, indent=1, ensure_ascii=False)


def force_reference() -> None:
    """Make every read of this process use `impl="reference"`.

    No recipe has such an option. The default of one public argument is changed instead: `impl` of
    `reluformer.read`, which every layer leaves at its default. The fused attention of torch, which reads
    softmax otherwise, fails from here on, so that a layer that evades the default is noticed.
    """
    import reluformer as rf

    parameters = inspect.signature(rf.read).parameters
    if parameters["impl"].kind is inspect.Parameter.KEYWORD_ONLY:
        rf.read.__kwdefaults__["impl"] = "reference"
    else:
        defaults = [p.default for p in parameters.values() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        names = [p.name for p in parameters.values() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        defaults[names.index("impl")] = "reference"
        rf.read.__defaults__ = tuple(value for value in defaults if value is not inspect.Parameter.empty)

    def evaded(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a layer read with another implementation than the reference")

    torch.nn.functional.scaled_dot_product_attention = evaded


def measure(name: str, directory: Path) -> dict[str, Any]:
    """Train one recipe in `directory` and return its losses and its translations."""
    run, recipe, data = directory / name, HERE / "recipes" / f"{name}.yaml", directory / "data"
    call("prepare", recipe, "--to", data)
    call("train", recipe, "--run", run, "--prepared", data)
    events = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "train": [{key: e[key] for key in TRAINED if key in e} for e in events if e["event"] == "train"],
        "valid": [e["loss"] for e in events if e["event"] == "valid"],
        "translations": translations(run),
    }


def translations(model: Path, documents: Path = DOCUMENTS) -> list[dict[str, Any]]:
    """Return the best translation of each document as the search finds it, with its score.

    A version that checks which sentences a translation read leaves the check out; earlier ones do not know its key.
    """
    try:
        found = call("translate", model, documents, "--json", "--set", "check_alignment=false")
    except SystemExit as error:
        if "unknown key 'check_alignment'" not in str(error):
            raise
        found = call("translate", model, documents, "--json")
    listed = json.loads(found)["documents"]
    assert listed, f"{documents}: holds no documents"
    return [document["translations"][0] for document in listed]


def call(*arguments: str | Path) -> str:
    """Run a verb of the command line in this process and return what it printed."""
    from reluformer.cli import app

    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exit_code:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {result.exception!r}\n{result.output}")
    return result.stdout


if __name__ == "__main__":
    main()
