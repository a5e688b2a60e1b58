"""Sentences that mention the topic as 'it', once each, as subject or as object.

Every predicate suits every topic, so what is said of 'it' does not give its gender away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.clause import Clause, ObjectKind, Setting, question, statement
from reluformer.translation.embedded.composition import felt, reported, sentence
from reluformer.translation.embedded.scene import Scene
from reluformer.translation.embedded.words import Adjective, Case, Noun, Person, Phrase, Pool, Tense, Verb, pronoun

_WHERE, _WHEN = Phrase("where", "wo"), Phrase("when", "wann")
_NO_DEGREE = Phrase("", "")
_DEGREES = (_NO_DEGREE, _NO_DEGREE, Phrase("very ", "sehr "), Phrase("too ", "zu "))
_ABSOLUTE = (lex.NEW, lex.RED, lex.GREEN, lex.WHITE, lex.BROKEN)
_PASSING_STATES = (lex.DIRTY, lex.BROKEN, lex.EXPENSIVE)
_WHO_RATE, _QUESTION_RATE, _EMBEDDING_RATE = 0.05, 0.1, 0.25
Complement = Literal["", "recipient", "adjective", "place", "fall", "price"]


@dataclass(frozen=True)
class Predicate:
    """Something to say of a topic; `en` names it among the combinations."""

    en: str
    verb: Verb
    complement: Complement = ""
    adjective: Adjective | None = None
    times: bool = True
    places: bool = True
    negation: bool = True


OBJECT_PREDICATES: Pool[Predicate] = Pool(
    (
        *(Predicate(verb.en, verb) for verb in (lex.BUY, lex.SELL, lex.FIND, lex.LOSE, lex.HIDE)),
        *(Predicate(verb.en, verb) for verb in (lex.CLEAN, lex.NEED, lex.SEE, lex.REPAIR)),
        Predicate("love", lex.LOVE, times=False),
        Predicate("look for", lex.SEEK),
        Predicate("take along", lex.TAKE, places=False),
        Predicate("show", lex.SHOW, "recipient", places=False),
        Predicate("give", lex.GIVE, "recipient", places=False),
    )
)


def _state(verb: Verb, adjective: Adjective) -> Predicate:
    return Predicate(
        f"{verb.en} {adjective.en}", verb, "adjective", adjective, times=adjective in _PASSING_STATES, places=False
    )


SUBJECT_PREDICATES: Pool[Predicate] = Pool(
    (
        *(_state(lex.BE, adjective) for adjective in lex.THING_ADJECTIVES.items),
        *(_state(lex.LOOK, adjective) for adjective in (lex.OLD, lex.NEW, lex.EXPENSIVE)),
        Predicate("be where", lex.BE),
        Predicate("lie", lex.LIE, "place", places=False),
        Predicate("belong", lex.BELONG, "recipient", times=False, places=False, negation=False),
        Predicate("fall", lex.FALL, "fall", places=False),
        Predicate("disappear", lex.VANISH),
        Predicate("cost", lex.COST, "price", times=False, places=False, negation=False),
    )
)


@dataclass(frozen=True)
class Mention:
    """A sentence with 'it', and the German pronoun in it."""

    text: Phrase
    form: str


def mention(scene: Scene, topic: Noun) -> Mention:
    """A sentence about the topic."""
    if scene.draws.chance(0.5):
        form = pronoun(topic.gender, Case.ACCUSATIVE)
        text = _as_object(scene, scene.draws.combine("topic", topic.en, OBJECT_PREDICATES), Phrase("it", form))
    else:
        form = pronoun(topic.gender, Case.NOMINATIVE)
        text = _as_subject(scene, scene.draws.combine("topic", topic.en, SUBJECT_PREDICATES), Person("it", form, ""))
    return Mention(text, form)


def _as_object(scene: Scene, predicate: Predicate, it: Phrase) -> Phrase:
    """Someone does something with it."""
    verb, draws = predicate.verb, scene.draws
    actor = lex.WHO if draws.chance(_WHO_RATE) else scene.actor()
    recipient = scene.recipient(actor) if predicate.complement == "recipient" else None
    clause = Clause(actor, verb, scene.bare_setting(verb), it, ObjectKind.PRONOUN, recipient)
    if actor is lex.WHO:
        return sentence(statement(clause), "?")
    return _shaped(scene, predicate, clause, _question_word(scene, clause))


def _shaped(scene: Scene, predicate: Predicate, clause: Clause, word: Phrase | None = None) -> Phrase:
    """The clause as a question, inside another sentence, or most often as a statement with adverbs."""
    if scene.draws.chance(_QUESTION_RATE):
        return sentence(question(clause, word), "?")
    if scene.draws.chance(_EMBEDDING_RATE):
        return sentence(scene.draws.pick((reported, felt))(scene, clause))
    setting = scene.setting(clause.verb, times=predicate.times, places=predicate.places, negation=predicate.negation)
    return sentence(statement(replace(clause, setting=setting)))


def _question_word(scene: Scene, clause: Clause) -> Phrase | None:
    """'where' and 'when' ask for a past event; other questions are answered by yes or no."""
    if clause.setting.tense is not Tense.PAST or clause.recipient is not None or scene.draws.chance(0.3):
        return None
    return scene.draws.pick((_WHERE, _WHEN))


def _as_subject(scene: Scene, predicate: Predicate, it: Person) -> Phrase:
    """It is, lies, belongs or costs something."""
    if predicate.en == "be where":
        time = scene.draws.pick((None, lex.TODAY, lex.NOW_ADVERB))
        return sentence(question(Clause(it, lex.BE, Setting(Tense.NOW, time=time)), _WHERE), "?")
    setting = scene.bare_setting(predicate.verb)
    owner = scene.recipient() if predicate.complement == "recipient" else None
    clause = Clause(it, predicate.verb, setting, recipient=owner, complement=_complement(scene, predicate))
    return _shaped(scene, predicate, clause)


def _complement(scene: Scene, predicate: Predicate) -> Phrase | None:
    draws = scene.draws
    match predicate.complement:
        case "adjective":
            assert predicate.adjective is not None
            degree = _NO_DEGREE if predicate.adjective in _ABSOLUTE else draws.pick(_DEGREES)
            return Phrase(degree.en + predicate.adjective.en, degree.de + predicate.adjective.de)
        case "place":
            return scene.place()
        case "fall":
            return draws.pick(lex.FALLS)
        case "price":
            return draws.pick(lex.PRICES)
        case _:
            return None
