"""How much of what crosses sentences a translation got right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reluformer.errors import DataError
from reluformer.translation.embedded.annotation import Annotation, EmbeddedDocument

BUCKETS = {"1": (1, 1), "2": (2, 2), "3-4": (3, 4), "5-9": (5, 9), "10-19": (10, 19), "20+": (20, None)}
"""Ranges of distance, in sentences."""
FAR = 5
"""From this distance on a pronoun counts as far from what it refers to."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Tally:
    """How many of `count` cases are right."""

    right: int = 0
    count: int = 0

    @property
    def accuracy(self) -> float | None:
        """The share that is right; None where there was nothing to judge."""
        return self.right / self.count if self.count else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"accuracy": self.accuracy, "right": self.right, "count": self.count}


@dataclass(frozen=True)
class DiscourseScores:
    """Accuracy of pronouns (all, from distance 5 on, by distance, by gap) and of terms."""

    pronoun: Tally
    pronoun_far: Tally
    pronoun_by_distance: dict[str, Tally]
    pronoun_by_gap: dict[str, Tally]
    term: Tally

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "pronoun": self.pronoun.to_dict(),
            "pronoun_far": self.pronoun_far.to_dict(),
            "pronoun_by_distance": {name: tally.to_dict() for name, tally in self.pronoun_by_distance.items()},
            "pronoun_by_gap": {name: tally.to_dict() for name, tally in self.pronoun_by_gap.items()},
            "term": self.term.to_dict(),
        }


def score_discourse(documents: Sequence[EmbeddedDocument], translations: Sequence[Sequence[str]]) -> DiscourseScores:
    """Judge `translations[i][j]`, the translation of sentence j of document i.

    A case is right if an expected form stands in the sentence as a word and no wrong one
    does, upper or lower case. The grammar uses these words for nothing else, so a
    reference always scores 1.
    """
    if len(documents) != len(translations):
        raise DataError(f"{len(documents)} documents but {len(translations)} translations; give one for each")
    judged: list[tuple[Annotation, bool]] = []
    for document, translation in zip(documents, translations, strict=True):
        judged.extend(_judge(document, translation))
    pronouns = [(note, right) for note, right in judged if note.kind == "pronoun"]
    return DiscourseScores(
        pronoun=_tally(right for _, right in pronouns),
        pronoun_far=_tally(right for note, right in pronouns if note.distance >= FAR),
        pronoun_by_distance=_by_bucket((note.distance, right) for note, right in pronouns),
        pronoun_by_gap=_by_bucket((note.gap, right) for note, right in pronouns),
        term=_tally(right for note, right in judged if note.kind == "term"),
    )


def _judge(document: EmbeddedDocument, translation: Sequence[str]) -> list[tuple[Annotation, bool]]:
    expected = len(document.document.src)
    if isinstance(translation, str) or len(translation) != expected:
        got = "one string" if isinstance(translation, str) else f"{len(translation)} sentences"
        raise DataError(
            f"document {document.document.id!r} has {expected} sentences, its translation is {got}; "
            "give one string for each sentence, empty where there is none"
        )
    return [(note, _is_right(note, translation[note.sentence])) for note in document.annotations]


def _is_right(note: Annotation, sentence: str) -> bool:
    words = set(_WORD.findall(sentence.casefold()))
    wrong = any(form.casefold() in words for form in note.wrong)
    return not wrong and any(form.casefold() in words for form in note.expected)


def _tally(judgements: Iterable[bool]) -> Tally:
    judged = list(judgements)
    return Tally(sum(judged), len(judged))


def _by_bucket(cases: Iterable[tuple[int, bool]]) -> dict[str, Tally]:
    listed = list(cases)
    return {
        name: _tally(right for value, right in listed if value >= low and (high is None or value <= high))
        for name, (low, high) in BUCKETS.items()
    }
