"""The scene of a sentence: who may act, where and when, drawn so that every machine draws the same.

`held_out` decides which combinations of words the training split never shows.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, Protocol, TypeVar, get_args

from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.grammar import (
    Gender,
    GermanCase,
    Modal,
    Noun,
    Person,
    Phrase,
    Pool,
    Setting,
    Tense,
    Term,
    Time,
    Variety,
    Verb,
    noun_phrase,
    place_phrase,
)
from reluformer.translation.recipe import Split

SPLITS: tuple[Split, ...] = get_args(Split)
Combination = Literal["adjective", "object", "topic"]
"""A noun with its adjective, a verb with its object, or a topic with what is said of it by a pronoun."""

HELD_OUT_OF = 8
"""One combination in this many is kept for the test split."""
HELD_OUT_TOPICS = 2
"""This many topics of each gender are kept for the test split, for each thing that can be said of a topic."""
VALID_OF = 8
"""One text in this many belongs to the validation split, all others to training."""


class Named(Protocol):
    """A word that its English side identifies."""

    @property
    def en(self) -> str: ...


T = TypeVar("T")
N = TypeVar("N", bound=Named)


def stable_hash(text: str) -> int:
    """Returns a 64-bit hash of `text` that is the same in every Python version, process and machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


_TOPICS = {gender: [noun.en for noun in lex.TOPICS.items if noun.gender is gender] for gender in Gender}
_GENDERS = {noun.en: noun.gender for noun in lex.TOPICS.items}


def held_out(kind: Combination, first: str, second: str) -> bool:
    """Returns whether this combination occurs in the test split only.

    Topics are held out evenly over the genders. Otherwise a sentence with 'it' would say
    something about its gender: one thing in training, the opposite in test.
    """
    if kind == "topic":
        peers = _TOPICS[_GENDERS[first]]
        start = stable_hash(f"{kind}|{_GENDERS[first]}|{second}")
        return (peers.index(first) - start) % len(peers) < HELD_OUT_TOPICS
    return stable_hash(f"{kind}|{first}|{second}") % HELD_OUT_OF == 0


def belongs_to_valid(sentences: Sequence[str]) -> bool:
    """Returns whether a text outside of test is for validation. The content decides, so no text is in two splits."""
    return stable_hash("\n".join(sentences)) % VALID_OF == 0


@cache
def partition(kind: Combination, fixed: str, pool: Pool[N]) -> tuple[tuple[N, ...], tuple[N, ...]]:
    """Returns the words of `pool` that may stand with `fixed` in any split, and those that may in test only."""
    shared = tuple(word for word in pool.items if not held_out(kind, fixed, word.en))
    novel = tuple(word for word in pool.items if held_out(kind, fixed, word.en))
    return shared, novel


class Draws:
    """`Draws` makes the random choices of one document.

    It uses `Random.random` only, because Python keeps nothing but that method and seeding by
    a string equal across versions. `novel` counts the held-out combinations drawn.
    """

    def __init__(self, key: str, split: Split) -> None:
        self._random = random.Random(key).random
        self._split = split
        self.novel = 0

    def chance(self, probability: float) -> bool:
        """Returns True with `probability`."""
        return self._random() < probability

    def between(self, low: int, high: int) -> int:
        """Draws a whole number from `low` to `high`, both included."""
        return low + int(self._random() * (high - low + 1))

    def pick(self, choices: Sequence[T]) -> T:
        """Draws one of `choices`."""
        return choices[int(self._random() * len(choices))]

    def combine(self, kind: Combination, fixed: str, pool: Pool[N]) -> N:
        """Draws a word to go with `fixed`; in the test split it is often one that training never shows with it."""
        shared: tuple[N, ...]
        novel: tuple[N, ...]
        shared, novel = partition(kind, fixed, pool)
        if self._split == "test" and novel and (self.novel == 0 or self.chance(0.5)):
            self.novel += 1
            return self.pick(novel)
        return self.pick(shared)


_TIMES = {
    Tense.NOW: lex.STATE_TIMES,
    Tense.HABIT: lex.HABIT_TIMES,
    Tense.PAST: lex.PAST_TIMES,
    Tense.FUTURE: lex.FUTURE_TIMES,
}
_BOY_RATE, _JANUARY_RATE, _PLACE_ADJECTIVE_RATE = 0.1, 0.1, 0.2
_NEGATION_RATE, _TIME_RATE, _PLACE_RATE = 0.15, 0.6, 0.4


@dataclass(frozen=True)
class TermUse:
    """A use of a term has the German form that stands in the sentence and the forms that would be wrong."""

    form: str
    wrong: tuple[str, ...]


@dataclass
class Scene:
    """A scene holds what a sentence may draw on. `terms` collects the terms used since it was last emptied."""

    draws: Draws
    variety: Variety | None = None
    terms: list[TermUse] = field(default_factory=list)

    def resolve(self, term: Term, variety: Variety, case: GermanCase) -> Noun:
        """Returns the German noun of `term` in `variety`, and records the use."""
        noun = term.noun(variety)
        self.terms.append(TermUse(noun.form(case), term.wrong_forms(variety)))
        return noun

    def actor(self, *others: Person) -> Person:
        """Draws somebody to act who is none of `others`."""
        return self._person(lex.PEOPLE, GermanCase.NOMINATIVE, others)

    def recipient(self, *others: Person) -> Person:
        """Draws somebody to receive or own something who is none of `others`."""
        return self._person(lex.RECIPIENTS, GermanCase.DATIVE, others)

    def _person(self, people: tuple[Person, ...], case: GermanCase, others: tuple[Person, ...]) -> Person:
        taken = {other.en for other in others}
        if self.variety is not None and self.draws.chance(_BOY_RATE) and f"the {lex.BOY.en}" not in taken:
            boy = self.resolve(lex.BOY, self.variety, case)
            nominative = noun_phrase("the", boy, GermanCase.NOMINATIVE)
            return Person(nominative.en, nominative.de, noun_phrase("the", boy, GermanCase.DATIVE).de)
        return self.draws.pick([person for person in people if person.en not in taken])

    def place(self) -> Phrase:
        """Draws a place, sometimes with an adjective."""
        place = self.draws.pick(lex.PLACES.items)
        if self.draws.chance(_PLACE_ADJECTIVE_RATE):
            return place_phrase(place, self.draws.combine("adjective", place.en, lex.PLACE_ADJECTIVES))
        return place_phrase(place)

    def time(self, tense: Tense) -> Time:
        """Draws an adverb of time that suits `tense`."""
        if tense is Tense.PAST and self.variety is not None and self.draws.chance(_JANUARY_RATE):
            month = self.resolve(lex.JANUARY, self.variety, GermanCase.DATIVE)
            return Time(f"in {month.en}", f"im {month.de}")
        return self.draws.pick(_TIMES[tense])

    def setting(self, verb: Verb, *, times: bool = True, places: bool = True, negation: bool = True) -> Setting:
        """Draws a setting that `verb` allows.

        In the present, negation and time exclude each other: 'not every day' would not be
        German 'every day not'.
        """
        tense = self.draws.pick(verb.tenses)
        present = tense in (Tense.NOW, Tense.HABIT)
        negated = negation and self.draws.chance(_NEGATION_RATE)
        modal = None
        if tense is Tense.MODAL:
            modal = self.draws.pick((Modal.WANT, Modal.CAN) if negated else tuple(Modal))
        timed = times and tense in _TIMES and not (present and negated) and self.draws.chance(_TIME_RATE)
        time = self.time(tense) if timed else None
        located = places and not negated and tense in (Tense.HABIT, Tense.PAST) and self.draws.chance(_PLACE_RATE)
        place = self.place() if located else None
        front = (time is not None and place is not None) or self.draws.chance(0.4)
        return Setting(tense, modal, negated, time, place, front)

    def bare_setting(self, verb: Verb) -> Setting:
        """Draws a tense only, for a clause inside another sentence."""
        tense = self.draws.pick(verb.tenses)
        return Setting(tense, self.draws.pick(tuple(Modal)) if tense is Tense.MODAL else None)
