"""Sentences: what a model translates, and what is copied."""

from __future__ import annotations


def has_letters(text: str) -> bool:
    """Returns whether a text holds a letter of any script; what has none is copied and never translated.

    Example:
        >>> has_letters("1,234 + 5"), has_letters("5 km")
        (False, True)
    """
    return any(map(str.isalpha, text))
