"""The bilingual grammar: words with their German inflection, and clauses in both languages.

English has a fixed order: adverb, subject, verb, objects, place, time. German goes by its
sentence fields. A main clause puts the finite verb second, and the rest of the verb closes
the clause. A subordinate clause keeps the whole verb for the end. `_middle` orders what
stands between the two: pronouns, time, recipient, object, negation, complement.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar


class Gender(StrEnum):
    """The grammatical gender of a German noun."""

    MASCULINE = "m"
    FEMININE = "f"
    NEUTER = "n"


class GermanCase(StrEnum):
    """The German cases in use."""

    NOMINATIVE = "nominative"
    ACCUSATIVE = "accusative"
    DATIVE = "dative"


class Variety(StrEnum):
    """A variety is the standard German of a document; it decides between the words of a `Term`."""

    GERMANY = "Germany"
    AUSTRIA = "Austria"


class Tense(StrEnum):
    """A tense in which a verb may stand. English past is German perfect, or preterite where a verb has `de_past`."""

    NOW = "now"
    HABIT = "habit"
    PAST = "past"
    FUTURE = "future"
    MODAL = "modal"


@dataclass(frozen=True)
class Noun:
    """A noun in the singular. `oblique` is its accusative and dative where they differ ('den Jungen')."""

    en: str
    de: str
    gender: Gender
    oblique: str = ""

    def form(self, case: GermanCase) -> str:
        """Returns the German noun in `case`."""
        return self.de if case is GermanCase.NOMINATIVE else self.oblique or self.de


@dataclass(frozen=True)
class Term:
    """An English noun whose German translation depends on the variety."""

    en: str
    germany: Noun
    austria: Noun

    def noun(self, variety: Variety) -> Noun:
        """Returns the word that `variety` uses."""
        return self.germany if variety is Variety.GERMANY else self.austria

    def wrong_forms(self, variety: Variety) -> tuple[str, ...]:
        """Returns every form of the word that `variety` does not use."""
        other = self.austria if variety is Variety.GERMANY else self.germany
        return tuple(dict.fromkeys(other.form(case) for case in GermanCase))


@dataclass(frozen=True)
class Adjective:
    """An adjective. `stem` takes the endings where it differs from the word ('teuer', 'ein teurer Hut')."""

    en: str
    de: str
    stem: str = ""


@dataclass(frozen=True)
class Person:
    """A person who acts: a name or a phrase, in the nominative and the dative."""

    en: str
    nominative: str
    dative: str
    plural: bool = False


@dataclass(frozen=True)
class Verb:
    """A verb with its forms. A separable verb keeps its prefix apart in `particle` ('mit', 'nehmen').

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
        """Returns the infinitive with its prefix, as in 'mitnehmen'."""
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
    """A pool holds words to choose from. Pools are compared by identity, so a pool is a cheap key of a cache."""

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
_COLUMN = {GermanCase.NOMINATIVE: 0, GermanCase.ACCUSATIVE: 1, GermanCase.DATIVE: 2}


def inflect(adjective: Adjective, article: str, gender: Gender, case: GermanCase) -> str:
    """Inflects the adjective as it stands after `article`: 'die rote', 'ein roter', 'einem roten'."""
    endings = WEAK_ENDINGS if article == "the" else MIXED_ENDINGS
    return (adjective.stem or adjective.de) + endings[gender][_COLUMN[case]]


def noun_phrase(article: str, noun: Noun, case: GermanCase, adjective: Adjective | None = None) -> Phrase:
    """Joins article, adjective and noun in both languages."""
    words = [ARTICLES[article][noun.gender][_COLUMN[case]], noun.form(case)]
    if adjective is not None:
        words.insert(1, inflect(adjective, article, noun.gender, case))
    english = noun.en if adjective is None else f"{adjective.en} {noun.en}"
    if article == "a" and english[0] in "aeiou":
        article = "an"
    return Phrase(f"{article} {english}", " ".join(words))


def place_phrase(place: Place, adjective: Adjective | None = None) -> Phrase:
    """Builds 'in the garden'; German contracts preposition and article to 'im Garten'."""
    phrase = noun_phrase("the", place.noun, GermanCase.DATIVE, adjective)
    german = f"{place.de_preposition} {phrase.de}"
    for long, short in CONTRACTIONS.items():
        if german.startswith(long + " "):
            german = short + german[len(long) :]
    return Phrase(f"{place.preposition} {phrase.en}", german)


def pronoun(gender: Gender, case: GermanCase) -> str:
    """Returns what 'it' becomes in the nominative or accusative."""
    return PRONOUNS[gender][_COLUMN[case]]


class Modal(StrEnum):
    """A modal verb, by its English name."""

    WANT = "want to"
    CAN = "can"
    MUST = "must"


class ObjectKind(StrEnum):
    """The kind of an object decides its place among the adverbs."""

    PRONOUN = "pronoun"
    DEFINITE = "definite"
    INDEFINITE = "indefinite"


_GERMAN_MODALS = {Modal.WANT: ("will", "wollen"), Modal.CAN: ("kann", "können"), Modal.MUST: ("muss", "müssen")}
_HABEN, _SEIN, _WERDEN = ("hat", "haben"), ("ist", "sind"), ("wird", "werden")


@dataclass(frozen=True)
class Setting:
    """A setting holds tense, mood and adverbs of a clause. `modal` is set exactly when `tense` is MODAL."""

    tense: Tense
    modal: Modal | None = None
    negated: bool = False
    time: Time | None = None
    place: Phrase | None = None
    front: bool = False

    @property
    def fronted(self) -> Phrase | None:
        """Returns the adverb that opens the sentence: time if there is one, else place."""
        if not self.front or (self.time is not None and self.time.mid):
            return None
        return self.time or self.place


@dataclass(frozen=True)
class Clause:
    """A clause is one statement: its words and their `setting`. A `complement` follows a negation."""

    subject: Person
    verb: Verb
    setting: Setting
    object: Phrase | None = None
    object_kind: ObjectKind = ObjectKind.DEFINITE
    recipient: Person | None = None
    complement: Phrase | None = None

    @property
    def people(self) -> tuple[Person, ...]:
        """Returns the persons who take part."""
        return (self.subject,) if self.recipient is None else (self.subject, self.recipient)


def statement(clause: Clause) -> Phrase:
    """Writes a main clause, without capital letter and full stop."""
    return Phrase(_english(clause), _german_main(clause))


def subordinate(clause: Clause, conjunction: Phrase) -> Phrase:
    """Writes the clause after 'that' or 'because'; German puts the verb last."""
    finite, closing = _german_verb(clause)
    if clause.verb.particle and closing == clause.verb.particle:
        verb = closing + finite
    else:
        verb = f"{closing} {finite}".strip()
    german = [conjunction.de, clause.subject.nominative, *_middle(clause, None), verb]
    return Phrase(f"{conjunction.en} {_english(clause)}", _join(german))


def question(clause: Clause, word: Phrase | None = None) -> Phrase:
    """Writes a question, with a question word such as 'where' or to be answered by yes or no."""
    aux, main = _english_verb(clause, inverted=True)
    english = [word.en if word else "", aux, clause.subject.en, main, *_english_tail(clause)]
    finite, closing = _german_verb(clause)
    german = [word.de if word else "", finite, clause.subject.nominative, *_middle(clause, None), closing]
    return Phrase(_join(english), _join(german))


def _join(words: list[str]) -> str:
    return " ".join(word for word in words if word)


def _english(clause: Clause) -> str:
    """Writes front adverb, subject, verb, objects, place, time."""
    aux, main = _english_verb(clause, inverted=False)
    mid = clause.setting.time.en if clause.setting.time is not None and clause.setting.time.mid else ""
    front = clause.setting.fronted.en if clause.setting.fronted else ""
    return _join([front, clause.subject.en, aux, mid, main, *_english_tail(clause)])


def _english_tail(clause: Clause) -> list[str]:
    """Returns what follows the verb."""
    tail = [clause.verb.before]
    if clause.object is not None:
        tail += [clause.object.en, clause.verb.after]
    if clause.recipient is not None:
        tail.append(f"to {clause.recipient.en}")
    if clause.complement is not None:
        tail.append(clause.complement.en)
    tail += [
        adverb.en
        for adverb in (clause.setting.place, clause.setting.time)
        if adverb is not None and adverb is not clause.setting.fronted and not (isinstance(adverb, Time) and adverb.mid)
    ]
    return tail


def _english_verb(clause: Clause, inverted: bool) -> tuple[str, str]:
    """Returns the auxiliary (empty where English has none) and the rest of the verb."""
    verb, plural, past = clause.verb, clause.subject.plural, clause.setting.tense is Tense.PAST
    negation = " not" if clause.setting.negated else ""
    if verb.en == "be":
        present = "are" if plural else "is"
        return ("were" if plural else "was") + negation if past else present + negation, ""
    if clause.setting.tense is Tense.FUTURE:
        return "will" + negation, verb.en
    if clause.setting.modal in (Modal.CAN, Modal.MUST):
        return ("cannot" if clause.setting.negated else clause.setting.modal.value), verb.en
    wanted = f" to {verb.en}" if clause.setting.modal is Modal.WANT else ""
    base, third = ("want", "wants") if wanted else (verb.en, verb.third)
    if inverted or clause.setting.negated:
        do = "did" if past else "do" if plural else "does"
        return do + negation, base + wanted
    finite = verb.past if past else base if plural else third
    return "", finite + wanted


def _german_main(clause: Clause) -> str:
    finite, closing = _german_verb(clause)
    front = clause.setting.fronted
    opening = [clause.subject.nominative, finite] if front is None else [front.de, finite, clause.subject.nominative]
    return _join([*opening, *_middle(clause, front), closing])


def _german_verb(clause: Clause) -> tuple[str, str]:
    """Returns the finite verb, and what closes a main clause: prefix, participle or infinitive."""
    verb, plural = clause.verb, clause.subject.plural
    if clause.setting.tense is Tense.PAST:
        if verb.de_past:
            return (verb.de_past + "en" if plural else verb.de_past), ""
        return (_SEIN if verb.with_sein else _HABEN)[plural], verb.participle
    if clause.setting.tense is Tense.FUTURE:
        return _WERDEN[plural], verb.whole_infinitive
    if clause.setting.modal is not None:
        return _GERMAN_MODALS[clause.setting.modal][plural], verb.whole_infinitive
    if verb.infinitive == "sein":
        return _SEIN[plural], ""
    return (verb.infinitive if plural else verb.de_third), verb.particle


def _middle(clause: Clause, front: Phrase | None) -> list[str]:
    """Returns the German words between the finite verb and what closes the clause."""
    time = [clause.setting.time.de] if clause.setting.time is not None and clause.setting.time is not front else []
    place = [clause.setting.place.de] if clause.setting.place is not None and clause.setting.place is not front else []
    recipient = [clause.recipient.dative] if clause.recipient is not None else []
    negation = ["nicht"] if clause.setting.negated else []
    complement = [clause.complement.de] if clause.complement is not None else []
    if clause.object is None:
        return [*time, *negation, *recipient, *complement, *place]
    if clause.object_kind is ObjectKind.PRONOUN:
        adverbs = [*recipient, *time, *negation] if clause.setting.negated else [*time, *recipient]
        return [clause.object.de, *adverbs, *place]
    if clause.object_kind is ObjectKind.INDEFINITE:
        return [*time, *recipient, *place, clause.object.de]
    if clause.setting.negated or (clause.setting.time is not None and clause.setting.time.mid):
        return [clause.object.de, *time, *negation, *place]
    return [*time, *recipient, clause.object.de, *place]
