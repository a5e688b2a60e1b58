"""The kinds of words the grammar knows, and how German ones are inflected."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar


class Gender(StrEnum):
    """Grammatical gender of a German noun."""

    MASCULINE = "m"
    FEMININE = "f"
    NEUTER = "n"


class Case(StrEnum):
    """The German cases in use."""

    NOMINATIVE = "nominative"
    ACCUSATIVE = "accusative"
    DATIVE = "dative"


class Variety(StrEnum):
    """The standard German a document is written in; it decides between the words of a `Term`."""

    GERMANY = "Germany"
    AUSTRIA = "Austria"


class Tense(StrEnum):
    """What a verb may be used for. English past is German perfect (preterite where a verb has `de_past`)."""

    NOW = "now"
    HABIT = "habit"
    PAST = "past"
    FUTURE = "future"
    MODAL = "modal"


@dataclass(frozen=True)
class Noun:
    """A noun in the singular; `oblique` is its accusative and dative where they differ ('den Jungen')."""

    en: str
    de: str
    gender: Gender
    oblique: str = ""

    def form(self, case: Case) -> str:
        """The German noun in `case`."""
        return self.de if case is Case.NOMINATIVE else self.oblique or self.de


@dataclass(frozen=True)
class Term:
    """An English noun whose German translation depends on the variety."""

    en: str
    germany: Noun
    austria: Noun

    def noun(self, variety: Variety) -> Noun:
        """The word that `variety` uses."""
        return self.germany if variety is Variety.GERMANY else self.austria

    def wrong_forms(self, variety: Variety) -> tuple[str, ...]:
        """Every form of the word that `variety` does not use."""
        other = self.austria if variety is Variety.GERMANY else self.germany
        return tuple(dict.fromkeys(other.form(case) for case in Case))


@dataclass(frozen=True)
class Adjective:
    """`stem` takes the endings where it is not the plain word ('teuer', 'ein teurer Hut')."""

    en: str
    de: str
    stem: str = ""


@dataclass(frozen=True)
class Person:
    """Someone who acts: a name or a phrase, in the nominative and the dative."""

    en: str
    nominative: str
    dative: str
    plural: bool = False


@dataclass(frozen=True)
class Verb:
    """Forms of a verb; separable verbs keep their prefix apart in `particle` ('mit', 'nehmen').

    `before` and `after` are the English particles around an object ('look for it', 'take it along').
    `de_past` is the preterite singular where German prefers it to the perfect.
    """

    en: str
    third: str
    past: str
    infinitive: str
    de_third: str
    participle: str
    tenses: tuple[Tense, ...]
    before: str = ""
    after: str = ""
    particle: str = ""
    with_sein: bool = False
    de_past: str = ""

    @property
    def whole_infinitive(self) -> str:
        """The infinitive with its prefix: 'mitnehmen'."""
        return self.particle + self.infinitive


@dataclass(frozen=True)
class Place:
    """A noun with the prepositions that make it a place; German takes the dative."""

    en: str
    preposition: str
    de_preposition: str
    noun: Noun


@dataclass(frozen=True)
class Phrase:
    """An expression in both languages, ready to be placed in a sentence."""

    en: str
    de: str


@dataclass(frozen=True)
class Time(Phrase):
    """An adverb of time. `mid` ones stand before the English verb ('often') and never open a sentence."""

    mid: bool = False


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, eq=False)
class Pool(Generic[T_co]):
    """Words to choose from. Compared by identity, so that a pool is a cheap key of a cache."""

    items: tuple[T_co, ...]


ARTICLES = {
    "the": {"m": ("der", "den", "dem"), "f": ("die", "die", "der"), "n": ("das", "das", "dem")},
    "a": {"m": ("ein", "einen", "einem"), "f": ("eine", "eine", "einer"), "n": ("ein", "ein", "einem")},
    "no": {"m": ("kein", "keinen", "keinem"), "f": ("keine", "keine", "keiner"), "n": ("kein", "kein", "keinem")},
}
WEAK_ENDINGS = {"m": ("e", "en", "en"), "f": ("e", "e", "en"), "n": ("e", "e", "en")}
MIXED_ENDINGS = {"m": ("er", "en", "en"), "f": ("e", "e", "en"), "n": ("es", "es", "en")}
PRONOUNS = {"m": ("er", "ihn"), "f": ("sie", "sie"), "n": ("es", "es")}
CONTRACTIONS = {"in dem": "im", "an dem": "am", "von dem": "vom"}
_COLUMN = {Case.NOMINATIVE: 0, Case.ACCUSATIVE: 1, Case.DATIVE: 2}


def inflect(adjective: Adjective, article: str, gender: Gender, case: Case) -> str:
    """The adjective as it stands after `article`: 'die rote', 'ein roter', 'einem roten'."""
    endings = WEAK_ENDINGS if article == "the" else MIXED_ENDINGS
    return (adjective.stem or adjective.de) + endings[gender][_COLUMN[case]]


def noun_phrase(article: str, noun: Noun, case: Case, adjective: Adjective | None = None) -> Phrase:
    """Article, adjective and noun in both languages."""
    words = [ARTICLES[article][noun.gender][_COLUMN[case]], noun.form(case)]
    if adjective is not None:
        words.insert(1, inflect(adjective, article, noun.gender, case))
    english = noun.en if adjective is None else f"{adjective.en} {noun.en}"
    if article == "a" and english[0] in "aeiou":
        article = "an"
    return Phrase(f"{article} {english}", " ".join(words))


def place_phrase(place: Place, adjective: Adjective | None = None) -> Phrase:
    """'in the garden', with German's contraction of preposition and article: 'im Garten'."""
    phrase = noun_phrase("the", place.noun, Case.DATIVE, adjective)
    german = f"{place.de_preposition} {phrase.de}"
    for long, short in CONTRACTIONS.items():
        if german.startswith(long + " "):
            german = short + german[len(long) :]
    return Phrase(f"{place.preposition} {phrase.en}", german)


def pronoun(gender: Gender, case: Case) -> str:
    """What 'it' becomes: nominative or accusative."""
    return PRONOUNS[gender][_COLUMN[case]]
