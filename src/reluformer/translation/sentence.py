"""Sentences: what a model translates and what is copied, and a translated sentence with its alignment."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Range = tuple[int, int]
"""The first character of a piece of text, and the one behind its last."""


def has_letters(text: str) -> bool:
    """Returns whether a text holds a letter of any script; what has none is copied and never translated.

    Example:
        >>> has_letters("1,234 + 5"), has_letters("5 km")
        (False, True)
    """
    return any(map(str.isalpha, text))


@dataclass(frozen=True, eq=False)
class Alignment:
    """The source tokens that each target token of a sentence read in cross-attention."""

    source: tuple[Range, ...]
    """Where each of the S source tokens stands in the source sentence."""
    target: tuple[Range, ...]
    """Where each of the T target tokens stands in the translation."""
    weights: npt.NDArray[np.float32]
    """The share of each source token in the reads of each target token, (T, S); a row is zero if nothing was read."""

    @classmethod
    def identity(cls, text: str) -> Alignment:
        """Returns the alignment of a text with itself or with a text of the same length, character by character."""
        places = tuple((index, index + 1) for index in range(len(text)))
        return cls(places, places, np.eye(len(text), dtype=np.float32))


@dataclass(frozen=True)
class TranslatedSentence:
    """The translation of one sentence.

    Example:
        >>> TranslatedSentence("Guten Tag.").doubtful
        False
    """

    text: str
    alignment: Alignment | None = field(default=None, compare=False)
    """What the translation read; None if nobody asked for it or the model cannot tell."""
    doubtful: bool = False
    """Whether cross-attention mostly read another sentence, so that this one was translated anew by itself."""
