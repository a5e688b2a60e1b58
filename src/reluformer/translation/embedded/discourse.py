"""Discourse: what a translation must take from earlier sentences, and how often it does.

An `Annotation` records one dependency across sentences. `score_discourse` counts how many
of them a translation gets right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from reluformer.errors import DataError
from reluformer.translation.document import Document

AnnotationKind = Literal["pronoun", "term"]


@dataclass(frozen=True)
class Annotation:
    """An annotation is one dependency across sentences.

    `distance` counts the sentences back to the one that decides: the topic's introduction
    or the audience. `gap` counts back to the last sentence whose German side shows the
    answer, be it that one or an earlier pronoun or term; a reader of its own output can
    copy from there.
    """

    kind: AnnotationKind
    sentence: int
    expected: tuple[str, ...]
    wrong: tuple[str, ...]
    distance: int
    gap: int

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Annotation:
        """Reads what `to_dict` wrote, after a round trip through JSON."""
        names = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or sorted(values) != sorted(names):
            raise DataError(f"an annotation needs exactly the keys {', '.join(names)}, got {values!r}")
        if values["kind"] not in ("pronoun", "term"):
            raise DataError(f"an annotation's kind is 'pronoun' or 'term', got {values['kind']!r}")
        for name in ("expected", "wrong"):
            if not isinstance(values[name], list | tuple):
                raise DataError(f"an annotation's {name!r} is a list of forms, got {values[name]!r}")
        for name in ("sentence", "distance", "gap"):
            if not isinstance(values[name], int):
                raise DataError(f"an annotation's {name!r} is a whole number, got {values[name]!r}")
        return cls(**{**values, "expected": tuple(values["expected"]), "wrong": tuple(values["wrong"])})


@dataclass(frozen=True)
class EmbeddedDocument:
    """An embedded document is a generated document with its annotations, in the order of the sentences."""

    document: Document
    annotations: tuple[Annotation, ...]

    def to_json(self) -> str:
        """Returns one line of JSON with `id`, `src`, `tgt` and `annotations`."""
        values = asdict(self.document) | {"annotations": [note.to_dict() for note in self.annotations]}
        return json.dumps(values, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> EmbeddedDocument:
        """Reads what `to_json` wrote; raises `DataError` for anything else."""
        try:
            values = json.loads(line)
            document = Document(values["id"], tuple(values["src"]), tuple(values["tgt"]))
            notes = values["annotations"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"not an embedded document: {error!r}; expected a JSON object with id, src, tgt and annotations"
            ) from error
        return cls(document, tuple(Annotation.from_dict(note) for note in notes))


BUCKETS = {"1": (1, 1), "2": (2, 2), "3-4": (3, 4), "5-9": (5, 9), "10-19": (10, 19), "20+": (20, None)}
"""The ranges of distance, in sentences."""
FAR = 5
"""From this distance on a pronoun counts as far from what it refers to."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Tally:
    """A tally says how many of `count` cases are right."""

    right: int = 0
    count: int = 0

    @property
    def accuracy(self) -> float | None:
        """Returns the share that is right, or None where there was nothing to judge."""
        return self.right / self.count if self.count else None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {"accuracy": self.accuracy, "right": self.right, "count": self.count}


@dataclass(frozen=True)
class DiscourseScores:
    """The scores hold the accuracy of pronouns (all, from distance 5 on, by distance, by gap) and of terms.

    The distance of a term is that to the sentence that tells which word is right.
    """

    pronoun: Tally
    pronoun_far: Tally
    pronoun_by_distance: dict[str, Tally]
    pronoun_by_gap: dict[str, Tally]
    term: Tally
    term_by_distance: dict[str, Tally]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {
            "pronoun": self.pronoun.to_dict(),
            "pronoun_far": self.pronoun_far.to_dict(),
            "pronoun_by_distance": {name: tally.to_dict() for name, tally in self.pronoun_by_distance.items()},
            "pronoun_by_gap": {name: tally.to_dict() for name, tally in self.pronoun_by_gap.items()},
            "term": self.term.to_dict(),
            "term_by_distance": {name: tally.to_dict() for name, tally in self.term_by_distance.items()},
        }


def score_discourse(documents: Sequence[EmbeddedDocument], translations: Sequence[Sequence[str]]) -> DiscourseScores:
    """Counts the dependencies across sentences that translations get right.

    A case is right if an expected form stands in the sentence as a word and no wrong one
    does, in upper or lower case. The grammar uses these words for nothing else, so a
    reference always scores 1.

    Args:
        documents: The documents with their annotations.
        translations: `translations[i][j]` translates sentence j of document i.

    Returns:
        The accuracy of pronouns and terms, always with counts.

    Raises:
        DataError: The translations do not match the documents in number.

    Example:
        >>> from reluformer.translation.embedded import generate, score_discourse
        >>> documents = list(generate(10, split="test"))
        >>> score_discourse(documents, [d.document.tgt for d in documents]).pronoun.accuracy
        1.0
    """
    if len(documents) != len(translations):
        raise DataError(f"{len(documents)} documents but {len(translations)} translations; give one for each")
    judged: list[tuple[Annotation, bool]] = []
    for document, translation in zip(documents, translations, strict=True):
        judged.extend(_judge(document, translation))
    pronouns = [(note, right) for note, right in judged if note.kind == "pronoun"]
    terms = [(note, right) for note, right in judged if note.kind == "term"]
    return DiscourseScores(
        pronoun=_tally(right for _, right in pronouns),
        pronoun_far=_tally(right for note, right in pronouns if note.distance >= FAR),
        pronoun_by_distance=_by_bucket((note.distance, right) for note, right in pronouns),
        pronoun_by_gap=_by_bucket((note.gap, right) for note, right in pronouns),
        term=_tally(right for _, right in terms),
        term_by_distance=_by_bucket((note.distance, right) for note, right in terms),
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
