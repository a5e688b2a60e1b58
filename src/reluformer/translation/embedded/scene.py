"""Where a sentence takes place: who may act, where, when, and in which variety of German."""

from __future__ import annotations

from dataclasses import dataclass, field

from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.clause import Modal, Setting
from reluformer.translation.embedded.splits import Draws
from reluformer.translation.embedded.words import (
    Case,
    Noun,
    Person,
    Phrase,
    Tense,
    Term,
    Time,
    Variety,
    Verb,
    noun_phrase,
    place_phrase,
)

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
    """A term in a sentence: the German form that stands there, and the forms that would be wrong."""

    form: str
    wrong: tuple[str, ...]


@dataclass
class Scene:
    """What a sentence may draw on; `terms` collects the terms used since it was last emptied."""

    draws: Draws
    variety: Variety | None = None
    terms: list[TermUse] = field(default_factory=list)

    def resolve(self, term: Term, variety: Variety, case: Case) -> Noun:
        """The German noun of `term` in `variety`; its use is recorded."""
        noun = term.noun(variety)
        self.terms.append(TermUse(noun.form(case), term.wrong_forms(variety)))
        return noun

    def actor(self, *others: Person) -> Person:
        """Someone to act who is none of `others`."""
        return self._person(lex.PEOPLE, Case.NOMINATIVE, others)

    def recipient(self, *others: Person) -> Person:
        """Someone to receive or own something who is none of `others`."""
        return self._person(lex.RECIPIENTS, Case.DATIVE, others)

    def _person(self, people: tuple[Person, ...], case: Case, others: tuple[Person, ...]) -> Person:
        taken = {other.en for other in others}
        if self.variety is not None and self.draws.chance(_BOY_RATE) and f"the {lex.BOY.en}" not in taken:
            boy = self.resolve(lex.BOY, self.variety, case)
            nominative = noun_phrase("the", boy, Case.NOMINATIVE)
            return Person(nominative.en, nominative.de, noun_phrase("the", boy, Case.DATIVE).de)
        return self.draws.pick([person for person in people if person.en not in taken])

    def place(self) -> Phrase:
        """A place, at times with an adjective."""
        place = self.draws.pick(lex.PLACES.items)
        if self.draws.chance(_PLACE_ADJECTIVE_RATE):
            return place_phrase(place, self.draws.combine("adjective", place.en, lex.PLACE_ADJECTIVES))
        return place_phrase(place)

    def time(self, tense: Tense) -> Time:
        """An adverb of time that suits `tense`."""
        if tense is Tense.PAST and self.variety is not None and self.draws.chance(_JANUARY_RATE):
            month = self.resolve(lex.JANUARY, self.variety, Case.DATIVE)
            return Time(f"in {month.en}", f"im {month.de}")
        return self.draws.pick(_TIMES[tense])

    def setting(self, verb: Verb, *, times: bool = True, places: bool = True, negation: bool = True) -> Setting:
        """Draw what `verb` allows. In the present, negation and time exclude each other:

        'not every day' would not be German 'every day not'.
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
        """Only a tense: for clauses inside other sentences."""
        tense = self.draws.pick(verb.tenses)
        return Setting(tense, self.draws.pick(tuple(Modal)) if tense is Tense.MODAL else None)
