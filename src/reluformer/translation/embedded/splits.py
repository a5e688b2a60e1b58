"""Chance that is the same everywhere, and the combinations that training never shows."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from functools import cache
from typing import Literal, Protocol, TypeVar, get_args

from reluformer.translation.embedded.lexicon import TOPICS
from reluformer.translation.embedded.words import Gender, Pool

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
Kind = Literal["adjective", "object", "topic"]
"""(noun, its adjective), (verb, its object), (topic, what is said of it by a pronoun)."""

HELD_OUT_OF = 8
"""One combination in this many is kept for the test split."""
HELD_OUT_TOPICS = 2
"""For each thing that can be said of a topic, so many topics of each gender are kept for the test split."""
VALID_OF = 8
"""One text in this many belongs to the validation split, all others to training."""


class Named(Protocol):
    """A word that is identified by its English side."""

    @property
    def en(self) -> str: ...


T = TypeVar("T")
N = TypeVar("N", bound=Named)


def stable_hash(text: str) -> int:
    """64 bits of `text` that no Python version, process or machine changes."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


_TOPICS = {gender: [noun.en for noun in TOPICS.items if noun.gender is gender] for gender in Gender}
_GENDERS = {noun.en: noun.gender for noun in TOPICS.items}


def held_out(kind: Kind, first: str, second: str) -> bool:
    """Whether this combination occurs in the test split only.

    Topics are held out evenly over the genders, or else a sentence with 'it' would tell
    something of its gender: one thing in training, the opposite in test.
    """
    if kind == "topic":
        peers = _TOPICS[_GENDERS[first]]
        start = stable_hash(f"{kind}|{_GENDERS[first]}|{second}")
        return (peers.index(first) - start) % len(peers) < HELD_OUT_TOPICS
    return stable_hash(f"{kind}|{first}|{second}") % HELD_OUT_OF == 0


def belongs_to_valid(sentences: Sequence[str]) -> bool:
    """Whether this text, if it is not for test, is for validation; by content, so no text is in two splits."""
    return stable_hash("\n".join(sentences)) % VALID_OF == 0


@cache
def partition(kind: Kind, fixed: str, pool: Pool[N]) -> tuple[tuple[N, ...], tuple[N, ...]]:
    """The words of `pool` that may stand with `fixed` in any split, and those in test only."""
    shared = tuple(word for word in pool.items if not held_out(kind, fixed, word.en))
    novel = tuple(word for word in pool.items if held_out(kind, fixed, word.en))
    return shared, novel


class Draws:
    """The random choices of one document.

    Only `Random.random` is used: seeding by a string and this one method are what Python
    keeps the same across versions. `novel` counts the held-out combinations drawn.
    """

    def __init__(self, key: str, split: Split) -> None:
        self._random = random.Random(key).random
        self._split = split
        self.novel = 0

    def chance(self, probability: float) -> bool:
        """True with `probability`."""
        return self._random() < probability

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self._random() * (high - low + 1))

    def pick(self, choices: Sequence[T]) -> T:
        """One of `choices`."""
        return choices[int(self._random() * len(choices))]

    def combine(self, kind: Kind, fixed: str, pool: Pool[N]) -> N:
        """A word to go with `fixed`; in the test split often one that training never shows with it."""
        shared: tuple[N, ...]
        novel: tuple[N, ...]
        shared, novel = partition(kind, fixed, pool)
        if self._split == "test" and novel and (self.novel == 0 or self.chance(0.5)):
            self.novel += 1
            return self.pick(novel)
        return self.pick(shared)
