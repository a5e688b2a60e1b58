"""The metrics by name, what a line is to each of them, and the check that documents match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from reluformer.errors import ArgumentError, DataError, UnknownNameError, nearest

Documents = Sequence[Sequence[str]]
MetricName = Literal["bleu", "d_bleu", "chrf"]
Line = Literal["sentence", "document"]


@dataclass(frozen=True)
class MetricKind:
    """One metric: its name in print, what it takes as a line, and sacreBLEU's object for it."""

    label: str
    line: Line
    build: Callable[[bool], BLEU | CHRF]
    """From `quiet`: sacreBLEU warns once about tokenized text, not again for every bucket."""

    def lines(self, documents: Documents) -> list[str]:
        """The lines that the metric counts as segments."""
        if self.line == "document":
            return [" ".join(document) for document in documents]
        return [sentence for document in documents for sentence in document]


METRICS: dict[MetricName, MetricKind] = {
    "bleu": MetricKind("BLEU", "sentence", lambda quiet: BLEU(tokenize="13a", force=quiet)),
    "d_bleu": MetricKind("d-BLEU", "document", lambda quiet: BLEU(tokenize="13a", force=quiet)),
    "chrf": MetricKind("chrF2", "sentence", lambda quiet: CHRF()),
}


def metric_kind(name: str) -> MetricKind:
    """The metric called `name`."""
    for known, kind in METRICS.items():
        if known == name:
            return kind
    raise UnknownNameError(f"unknown metric '{name}'; {nearest(name, METRICS)}")


def check_documents(hypotheses: Documents, references: Documents, hypotheses_name: str = "hypotheses") -> None:
    """Refuse what cannot be scored: nothing at all, or documents that do not match."""
    for name, documents in ((hypotheses_name, hypotheses), ("references", references)):
        for number, document in enumerate(documents, 1):
            if isinstance(document, str):
                raise ArgumentError(
                    f"{name}: document {number} is a string, expected a list of sentences; "
                    "for separate sentences pass [[sentence] for sentence in sentences]"
                )
    if len(hypotheses) != len(references):
        raise DataError(
            f"{hypotheses_name} have {len(hypotheses)} documents, references have {len(references)}; "
            "both must hold the same documents in the same order"
        )
    for number, (hypothesis, reference) in enumerate(zip(hypotheses, references, strict=True), 1):
        if len(hypothesis) != len(reference):
            raise DataError(
                f"document {number} of {len(references)}: {hypotheses_name} have {len(hypothesis)} sentences, "
                f"references have {len(reference)}; translate it sentence by sentence, or mend the line breaks"
            )
    if not any(len(reference) for reference in references):
        raise DataError("there is no sentence to score: hypotheses and references are empty")
