"""A document: sentences in order, with their translations where they are known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """`tgt[i]` translates `src[i]`; `tgt` is None for text that is still to be translated."""

    id: str
    src: tuple[str, ...]
    tgt: tuple[str, ...] | None = None
