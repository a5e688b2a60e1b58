"""A clause and its two surfaces: English by fixed order, German by its sentence fields.

German main clauses put the finite verb second; the rest of the verb closes the clause.
Subordinate clauses keep the whole verb for the end. What stands between the two is
ordered by `_middle`: pronouns first, then time, recipient, object, negation, complement.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reluformer.translation.embedded.words import Person, Phrase, Tense, Time, Verb


class Modal(StrEnum):
    """A modal verb, by its English name."""

    WANT = "want to"
    CAN = "can"
    MUST = "must"


class ObjectKind(StrEnum):
    """What an object is made of; it decides the object's place among the adverbs."""

    PRONOUN = "pronoun"
    DEFINITE = "definite"
    INDEFINITE = "indefinite"


_GERMAN_MODALS = {Modal.WANT: ("will", "wollen"), Modal.CAN: ("kann", "können"), Modal.MUST: ("muss", "müssen")}
_HABEN, _SEIN, _WERDEN = ("hat", "haben"), ("ist", "sind"), ("wird", "werden")


@dataclass(frozen=True)
class Setting:
    """Tense, mood and adverbs of a clause. `modal` is set exactly when `tense` is MODAL."""

    tense: Tense
    modal: Modal | None = None
    negated: bool = False
    time: Time | None = None
    place: Phrase | None = None
    front: bool = False

    @property
    def fronted(self) -> Phrase | None:
        """The adverb that opens the sentence: time if there is one, else place."""
        if not self.front or (self.time is not None and self.time.mid):
            return None
        return self.time or self.place


@dataclass(frozen=True)
class Clause:
    """One statement: its words, and their `setting`. A `complement` follows a negation."""

    subject: Person
    verb: Verb
    setting: Setting
    object: Phrase | None = None
    object_kind: ObjectKind = ObjectKind.DEFINITE
    recipient: Person | None = None
    complement: Phrase | None = None

    @property
    def people(self) -> tuple[Person, ...]:
        """Who takes part."""
        return (self.subject,) if self.recipient is None else (self.subject, self.recipient)


def statement(clause: Clause) -> Phrase:
    """A main clause, without capital and full stop."""
    return Phrase(_english(clause), _german_main(clause))


def subordinate(clause: Clause, conjunction: Phrase) -> Phrase:
    """The clause after 'that' or 'because', German with its verb last."""
    finite, closing = _german_verb(clause)
    if clause.verb.particle and closing == clause.verb.particle:
        verb = closing + finite
    else:
        verb = f"{closing} {finite}".strip()
    german = [conjunction.de, clause.subject.nominative, *_middle(clause, None), verb]
    return Phrase(f"{conjunction.en} {_english(clause)}", _join(german))


def question(clause: Clause, word: Phrase | None = None) -> Phrase:
    """A question, with a question word ('where') or to be answered by yes or no."""
    aux, main = _english_verb(clause, inverted=True)
    english = [word.en if word else "", aux, clause.subject.en, main, *_english_tail(clause)]
    finite, closing = _german_verb(clause)
    german = [word.de if word else "", finite, clause.subject.nominative, *_middle(clause, None), closing]
    return Phrase(_join(english), _join(german))


def _join(words: list[str]) -> str:
    return " ".join(word for word in words if word)


def _english(clause: Clause) -> str:
    """Front adverb, subject, verb, objects, place, time."""
    aux, main = _english_verb(clause, inverted=False)
    mid = clause.setting.time.en if clause.setting.time is not None and clause.setting.time.mid else ""
    front = clause.setting.fronted.en if clause.setting.fronted else ""
    return _join([front, clause.subject.en, aux, mid, main, *_english_tail(clause)])


def _english_tail(clause: Clause) -> list[str]:
    """What follows the verb."""
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
    """The auxiliary (empty where English has none) and the rest of the verb."""
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
    """The finite verb, and what closes a main clause: prefix, participle or infinitive."""
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
    """The German words between the finite verb and what closes the clause."""
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
