"""Texts and files of a request as documents for a model, and their translations put back in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reluformer.integrations.server.refusals import Refusal
from reluformer.integrations.server.served import ServedModel
from reluformer.translation import formats
from reluformer.translation.documents import Translation
from reluformer.translation.formats import Skeleton
from reluformer.translation.formats.base import Slot, TextSkeleton, decode

FORMATS = {"text": "plain", "html": "html"}
"""The names of LibreTranslate for ours."""


@dataclass(frozen=True)
class Texts:
    """Some texts without their sentences."""

    skeletons: tuple[Skeleton, ...]

    @classmethod
    def of(cls, model: ServedModel, texts: Sequence[str], format: str) -> Texts:
        """Split texts of a format of LibreTranslate."""
        layout = formats.get(FORMATS[format], source=model.source, target=model.target)
        return cls(tuple(layout.skeleton(text) for text in texts))

    @classmethod
    def of_file(cls, model: ServedModel, name: str, content: bytes) -> Texts:
        """Split a file whose name tells its format."""
        if not name.lower().endswith(file_suffixes()):
            sentence = f"files named like {name.rpartition('.')[2][:16]!r} are not translated"
            raise Refusal(
                415, "unsupported_file", sentence, "give it a name that ends in " + ", ".join(file_suffixes())
            )
        layout = formats.detect(name, source=model.source, target=model.target)
        return cls((layout.skeleton(decode(content, "the file")),))

    @property
    def documents(self) -> list[tuple[str, ...]]:
        """The sentences of all documents of all texts."""
        return [document.src for skeleton in self.skeletons for document in skeleton.documents]

    def fill(self, translations: Sequence[Sequence[Translation]], rank: int = 0) -> list[str]:
        """Each text with the translations of this rank in place of its sentences."""
        remaining = iter(translations)
        filled = []
        for skeleton in self.skeletons:
            found = [next(remaining)[rank] for _ in skeleton.documents]
            filled.append(skeleton.fill([sentence for part in found for sentence in part.sentences]))
        return filled


class Layout:
    """Where the sentences of one text stand: what is written before each of them, and after the last."""

    def __init__(self, skeleton: Skeleton) -> None:
        assert isinstance(skeleton, TextSkeleton)
        self.slots: list[Slot] = []
        self._before = [""]
        for part in skeleton.parts:
            if isinstance(part, Slot):
                self.slots.append(part)
                self._before.append("")
            else:
                self._before[-1] += part

    def to_json(self) -> dict[str, Any]:
        """Every sentence with what stands before it; `before + text` of all, and `after`, are the whole text."""
        return {
            "sentences": [
                {"index": index, "source": slot.source, "before": self._before[index]}
                for index, slot in enumerate(self.slots)
            ],
            "after": self._before[-1],
        }


def file_suffixes() -> tuple[str, ...]:
    """Ends of names of files that can be translated."""
    found = (suffix for name in formats.names() for suffix in formats.get(name).suffixes)
    return tuple(dict.fromkeys(suffix for suffix in found if not suffix.endswith(".gz")))
