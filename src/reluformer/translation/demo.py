"""The demo: two systems of the same size and data, full ReLU and softmax in all attention.

They are trained at the same time, each in a process of its own with half of the cores,
because models this small use one core well and two cores badly. A finished system is not
trained again, and an interrupted one resumes. `demo.yaml` is their recipe.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reluformer.errors import ReluformerError
from reluformer.training.run import RunDirectory
from reluformer.translation.corpus import CorpusSummary, PreparedCorpus, prepare
from reluformer.translation.embedded import DiscourseScores, EmbeddedDocument, document_from_id, score_discourse
from reluformer.translation.recipe import Recipe
from reluformer.translation.scoring import Scores, score
from reluformer.translation.translator import Translator, load_run

LENGTH_BORDERS = (25, 50, 75)
"""The borders count words of the reference; test documents have 2 to 16 sentences."""


@dataclass(frozen=True)
class System:
    """One of the systems: its name, and its changes to the common recipe."""

    name: str
    title: str
    changes: tuple[str, ...] = ()


SYSTEMS = (
    System("reluformer", "ReLUFormer"),
    System(
        "transformer",
        "Transformer",
        (
            "model.architecture=transformer",
            *(f"model.{place}=softmax" for place in ("encoder_attention", "decoder_attention", "cross_attention")),
            "training.regularizer=null",
        ),
    ),
)


@dataclass(frozen=True)
class Outcome:
    """A trained system, and its results on unseen documents."""

    system: System
    training: dict[str, Any]
    translations: list[list[str]]
    scores: Scores
    discourse: DiscourseScores
    without_context: DiscourseScores
    """The results of the same model when it reads sentence by sentence."""
    history: list[dict[str, Any]]
    telemetry: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures as plain data, accuracies in percent."""
        far, far_alone = self.discourse.pronoun_far, self.without_context.pronoun_far
        return {
            "bleu": round(self.scores.bleu.value, 2),
            "d_bleu": round(self.scores.d_bleu.value, 2),
            "chrf": round(self.scores.chrf.value, 2),
            "pronoun_accuracy": _percent(self.discourse.pronoun.accuracy),
            "pronoun_accuracy_without_context": _percent(self.without_context.pronoun.accuracy),
            "pronoun_accuracy_far": _percent(far.accuracy),
            "pronoun_accuracy_far_without_context": _percent(far_alone.accuracy),
            "term_accuracy": _percent(self.discourse.term.accuracy),
            "term_accuracy_without_context": _percent(self.without_context.term.accuracy),
            "zero_fraction": _percent(zero_fraction(self.telemetry)),
            "scores": self.scores.to_dict(),
            "discourse": self.discourse.to_dict(),
            "discourse_without_context": self.without_context.to_dict(),
            "training": self.training,
        }


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)


def zero_fraction(telemetry: dict[str, Any]) -> float | None:
    """Returns the mean share of exact zeros over all attention heads of a telemetry snapshot."""
    heads = [value for name, read in telemetry.items() if not name.endswith("ffn") for value in read["zero_fraction"]]
    return sum(heads) / len(heads) if heads else None


def prepare_corpus(recipe: Recipe, directory: Path) -> CorpusSummary:
    """Prepares the corpus, once for both systems."""
    return prepare(recipe.data, directory / "data")


def train_all(
    recipe_file: Path, directory: Path, report: Callable[[dict[str, RunDirectory]], None], overrides: Sequence[str] = ()
) -> None:
    """Trains both systems side by side; `report` is called about twice a second."""
    threads = str(max(1, (os.cpu_count() or 1) // len(SYSTEMS)))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    processes = {}
    for system in SYSTEMS:
        command = [sys.executable, "-m", "reluformer", "train", str(recipe_file), "--json"]
        command += ["--run", str(directory / system.name), "--prepared", str(directory / "data")]
        for change in (*overrides, *system.changes):
            command += ["--set", change]
        with (directory / f"{system.name}.log").open("w", encoding="utf-8") as log:
            processes[system.name] = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    runs = {system.name: RunDirectory(directory / system.name) for system in SYSTEMS}
    try:
        while any(process.poll() is None for process in processes.values()):
            report(runs)
            time.sleep(0.5)
        report(runs)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
                process.wait()
    for name, process in processes.items():
        if process.returncode:
            last = (directory / f"{name}.log").read_text(encoding="utf-8").strip().splitlines()[-1:]
            raise ReluformerError(f"training '{name}' failed: {' '.join(last)}; see {directory / f'{name}.log'}")


def evaluate_all(directory: Path) -> Iterator[Outcome]:
    """Translates the test documents with each system, as documents and sentence by sentence."""
    documents = [document_from_id(document.id) for document in PreparedCorpus(directory / "data").documents("test")]
    for system in SYSTEMS:
        run = RunDirectory(directory / system.name)
        translator = load_run(run.path)
        translations = translator.translate_documents([document.document.src for document in documents])
        alone = _sentence_by_sentence(translator, documents)
        snapshots = run.log.events("telemetry")
        yield Outcome(
            system=system,
            training=run.status["result"],
            translations=translations,
            scores=score(translations, [d.document.tgt or () for d in documents], length_borders=LENGTH_BORDERS),
            discourse=score_discourse(documents, translations),
            without_context=score_discourse(documents, alone),
            history=run.log.events("valid"),
            telemetry=snapshots[-1]["reads"] if snapshots else {},
        )


def _sentence_by_sentence(translator: Translator, documents: Sequence[EmbeddedDocument]) -> list[list[str]]:
    """Translates every sentence as a document of its own."""
    flat = translator.translate_documents([[s] for document in documents for s in document.document.src])
    sentences = iter(sentence for (sentence,) in flat)
    return [[next(sentences) for _ in document.document.src] for document in documents]
