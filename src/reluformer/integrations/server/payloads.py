"""The texts and files of a request: split into documents, filled with translations, stored for download."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reluformer.integrations.server.limits import RequestError, ServerLimits
from reluformer.integrations.server.model_registry import ServedModel
from reluformer.translation import formats
from reluformer.translation.formats import Skeleton, TextSkeleton, TextUnit
from reluformer.translation.windows import Translation

FORMATS = {"text": "plain", "html": "html"}
"""The name of each format of LibreTranslate in this package."""


@dataclass(frozen=True)
class Payload:
    """The texts of a request, each as a skeleton without its sentences."""

    skeletons: tuple[Skeleton, ...]

    @classmethod
    def from_texts(cls, model: ServedModel, texts: Sequence[str], format: str) -> Payload:
        """Splits texts into sentences.

        Args:
            model: The model, whose languages choose the sentence splitter.
            texts: The texts of the request.
            format: A format of LibreTranslate, `text` or `html`.
        """
        layout = formats.get(FORMATS[format], source=model.source, target=model.target)
        return cls(tuple(layout.skeleton(text) for text in texts))

    @classmethod
    def from_file(cls, model: ServedModel, name: str, text: str) -> Payload:
        """Splits the text of a file into sentences; its name decides the format.

        Raises:
            RequestError: Files of this type are not supported (415).
        """
        if not name.lower().endswith(file_suffixes()):
            sentence = f"files named like {name.rpartition('.')[2][:16]!r} are not translated"
            raise RequestError(
                415, "unsupported_file", sentence, "give it a name that ends in " + ", ".join(file_suffixes())
            )
        layout = formats.detect(name, source=model.source, target=model.target)
        return cls((layout.skeleton(text),))

    @property
    def documents(self) -> list[tuple[str, ...]]:
        """The sentences of each document of each text."""
        return [document.src for skeleton in self.skeletons for document in skeleton.documents]

    def fill(self, translations: Sequence[Sequence[Translation]], rank: int = 0) -> list[str]:
        """Returns the translated texts.

        Args:
            translations: The n-best translations of each of `documents`.
            rank: The rank of the translation to take; 0 is the best.
        """
        return formats.fill_all(self.skeletons, [found[rank].sentences for found in translations])


class TextLayout:
    """The characters of one text before each of its sentences, and after the last one."""

    def __init__(self, skeleton: Skeleton) -> None:
        assert isinstance(skeleton, TextSkeleton)
        self.units: list[TextUnit] = []
        self._before: list[list[str]] = [[]]
        for part in skeleton.parts:
            if isinstance(part, TextUnit):
                self.units.append(part)
                self._before.append([])
            else:
                self._before[-1].append(part)

    def to_json(self) -> dict[str, Any]:
        """Returns the sentences; all `before + text`, followed by `after`, make up the whole text."""
        return {
            "sentences": [
                {"index": index, "source": unit.source, "before": "".join(self._before[index])}
                for index, unit in enumerate(self.units)
            ],
            "after": "".join(self._before[-1]),
        }


def file_suffixes() -> tuple[str, ...]:
    """Returns the suffixes of the files that the server translates."""
    found = (suffix for name in formats.names() for suffix in formats.get(name).suffixes)
    return tuple(dict.fromkeys(suffix for suffix in found if not suffix.endswith(".gz")))


@dataclass(frozen=True)
class StoredFile:
    """A translated file."""

    name: str
    content: bytes
    expires: float


class FileStorage:
    """Translated files that wait for their download, in memory, under names that nobody can guess.

    The newest `ServerLimits.stored_files` files are stored, each for `ServerLimits.stored_seconds`.
    """

    def __init__(self, limits: ServerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._files: OrderedDict[str, StoredFile] = OrderedDict()

    def store(self, name: str, content: bytes) -> str:
        """Stores a file and returns the secret part of its address."""
        self._delete_expired()
        while len(self._files) >= self._limits.stored_files:
            self._files.popitem(last=False)
        secret = secrets.token_urlsafe(24)
        self._files[secret] = StoredFile(name, content, self._clock() + self._limits.stored_seconds)
        return secret

    def fetch(self, secret: str) -> StoredFile:
        """Returns a stored file.

        Raises:
            RequestError: The file is unknown or was deleted (404).
        """
        self._delete_expired()
        if secret not in self._files:
            raise RequestError(404, "no_such_file", "there is no such file (any more)", "translate it again")
        return self._files[secret]

    def _delete_expired(self) -> None:
        now = self._clock()
        for secret in [secret for secret, file in self._files.items() if file.expires <= now]:
            del self._files[secret]
