"""What a sentence's translation must get right from earlier sentences, and how that is stored."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from reluformer.errors import DataError
from reluformer.translation.document import Document

AnnotationKind = Literal["pronoun", "term"]


@dataclass(frozen=True)
class Annotation:
    """One dependency across sentences.

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
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Annotation:
        """The inverse of `to_dict`, from what JSON makes of it."""
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
    """A generated document with its annotations, in the order of the sentences."""

    document: Document
    annotations: tuple[Annotation, ...]

    def to_json(self) -> str:
        """One line of JSON: `id`, `src`, `tgt`, `annotations`."""
        values = asdict(self.document) | {"annotations": [note.to_dict() for note in self.annotations]}
        return json.dumps(values, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> EmbeddedDocument:
        """The inverse of `to_json`."""
        try:
            values = json.loads(line)
            document = Document(values["id"], tuple(values["src"]), tuple(values["tgt"]))
            notes = values["annotations"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"not an embedded document: {error!r}; expected a JSON object with id, src, tgt and annotations"
            ) from error
        return cls(document, tuple(Annotation.from_dict(note) for note in notes))
