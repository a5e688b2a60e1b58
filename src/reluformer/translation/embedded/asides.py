"""Sentences that have nothing to do with the topic: they stand between it and its pronouns."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.clause import Clause, ObjectKind, Setting, statement, subordinate
from reluformer.translation.embedded.composition import felt, reported, sentence
from reluformer.translation.embedded.scene import Scene
from reluformer.translation.embedded.words import (
    Adjective,
    Case,
    Noun,
    Person,
    Phrase,
    Pool,
    Tense,
    Term,
    Verb,
    noun_phrase,
)

_PRESENT = Setting(Tense.NOW)
_INTRANSITIVE = (lex.SLEEP, lex.WORK, lex.WAIT, lex.SING, lex.DANCE, lex.PLAY)
_OF_ANIMALS = (lex.SLEEP, lex.WAIT, lex.PLAY)
_CONJUNCTIONS = (Phrase(" and ", " und "), Phrase(", but ", ", aber "))
_TERM_RATE, _ADJECTIVE_RATE = 0.7, 0.35


@dataclass(frozen=True)
class ObjectClass:
    """Nouns that the same verbs and adjectives suit."""

    nouns: Pool[Noun]
    adjectives: Pool[Adjective]
    terms: Pool[Term] | None = None


FOOD = ObjectClass(lex.FOOD, lex.FOOD_ADJECTIVES, lex.FOOD_TERMS)
FURNITURE = ObjectClass(lex.FURNITURE, lex.THING_ADJECTIVES, lex.FURNITURE_TERMS)
WRITING = ObjectClass(lex.WRITING, lex.WRITING_ADJECTIVES)
ANIMALS = ObjectClass(lex.ANIMALS, lex.ANIMAL_ADJECTIVES)
TRANSITIVE = (
    *((verb, FOOD) for verb in (lex.EAT, lex.BUY, lex.SELL, lex.FIND)),
    *((verb, FURNITURE) for verb in (lex.CLEAN, lex.NEED, lex.SEE, lex.REPAIR)),
    *((verb, WRITING) for verb in (lex.READ, lex.WRITE)),
    *((verb, ANIMALS) for verb in (lex.FEED, lex.LOVE)),
)


def aside(scene: Scene) -> Phrase:
    """A sentence of any of the kinds below."""
    return sentence(scene.draws.pick(_KINDS)(scene))


def _object(scene: Scene, verb: Verb, objects: ObjectClass, article: str) -> Phrase:
    """An object that suits `verb`, in the accusative; often a term where the variety is known."""
    draws = scene.draws
    if scene.variety is not None and objects.terms is not None and draws.chance(_TERM_RATE):
        term = draws.combine("object", verb.en, objects.terms)
        noun = scene.resolve(term, scene.variety, Case.ACCUSATIVE)
    else:
        noun = draws.combine("object", verb.en, objects.nouns)
    adjective = None
    if draws.chance(_ADJECTIVE_RATE):
        adjective = draws.combine("adjective", noun.en, objects.adjectives)
    return noun_phrase(article, noun, Case.ACCUSATIVE, adjective)


def _transitive(scene: Scene) -> Phrase:
    """'Yesterday Anna ate an apple.'"""
    verb, objects = scene.draws.pick(TRANSITIVE)
    setting = scene.setting(verb, times=verb is not lex.LOVE)
    if setting.negated or verb is lex.LOVE:
        article = "the"
    elif setting.tense is Tense.HABIT and verb is lex.EAT:
        article = "a"
    else:
        article = scene.draws.pick(("the", "a"))
    kind = ObjectKind.DEFINITE if article == "the" else ObjectKind.INDEFINITE
    clause = Clause(scene.actor(), verb, setting, _object(scene, verb, objects, article), kind)
    return statement(clause)


def _lacking(scene: Scene) -> Phrase:
    """'Anna has no chair.'"""
    verb, objects = scene.draws.pick(((lex.HAVE, FURNITURE), (lex.NEED, FURNITURE), (lex.HAVE, ANIMALS)))
    thing = _object(scene, verb, objects, "no")
    return statement(Clause(scene.actor(), verb, _PRESENT, thing, ObjectKind.INDEFINITE))


def _giving(scene: Scene) -> Phrase:
    """'Anna gave a potato to the girl.'"""
    actor = scene.actor()
    setting = scene.setting(lex.GIVE, places=False, negation=False)
    food = _object(scene, lex.GIVE, FOOD, "a")
    return statement(Clause(actor, lex.GIVE, setting, food, ObjectKind.INDEFINITE, scene.recipient(actor)))


def _intransitive(scene: Scene) -> Phrase:
    """'On Sundays my parents work in the garden.'"""
    return statement(_activity(scene, scene.actor(), scene.draws.pick(_INTRANSITIVE)))


def _together(scene: Scene) -> Phrase:
    """'Anna and Peter sing in the yard.'"""
    first = scene.draws.pick(lex.NAMES)
    second = scene.draws.pick([name for name in lex.NAMES if name is not first])
    both = Person(f"{first.en} and {second.en}", f"{first.en} und {second.en}", "", plural=True)
    return statement(_activity(scene, both, scene.draws.pick(_INTRANSITIVE)))


def _animal(scene: Scene) -> Phrase:
    """'The white cat sleeps under the bridge.'"""
    noun = scene.draws.pick(lex.ANIMALS.items)
    adjective = scene.draws.combine("adjective", noun.en, lex.ANIMAL_ADJECTIVES) if scene.draws.chance(0.5) else None
    phrase = noun_phrase("the", noun, Case.NOMINATIVE, adjective)
    return statement(_activity(scene, Person(phrase.en, phrase.de, ""), scene.draws.pick(_OF_ANIMALS)))


def _activity(scene: Scene, subject: Person, verb: Verb) -> Clause:
    """An intransitive clause, with a place where it would be too bare."""
    setting = scene.setting(verb)
    if setting.time is None and setting.place is None:
        setting = replace(setting, place=scene.place(), front=False)
    return Clause(subject, verb, setting)


def _mood(scene: Scene) -> Phrase:
    """'Today Anna is tired.'"""
    return statement(
        Clause(scene.actor(), lex.BE, scene.setting(lex.BE, places=False), complement=scene.draws.pick(lex.MOODS))
    )


def _place_state(scene: Scene) -> Phrase:
    """'The kitchen is small.'"""
    place = scene.draws.pick(lex.PLACES.items)
    adjective = scene.draws.combine("adjective", place.en, lex.PLACE_ADJECTIVES)
    subject = noun_phrase("the", place.noun, Case.NOMINATIVE)
    clause = Clause(Person(subject.en, subject.de, ""), lex.BE, scene.setting(lex.BE, times=False, places=False))
    return statement(replace(clause, complement=Phrase(adjective.en, adjective.de)))


def _contrast(scene: Scene) -> Phrase:
    """'Anna sings, but Peter sleeps.'"""
    first, setting = scene.actor(), Setting(scene.draws.pick((Tense.HABIT, Tense.PAST)))
    verb = scene.draws.pick(_INTRANSITIVE)
    other = scene.draws.pick([choice for choice in _INTRANSITIVE if choice is not verb])
    left, right = statement(Clause(first, verb, setting)), statement(Clause(scene.actor(first), other, setting))
    link = scene.draws.pick(_CONJUNCTIONS)
    return Phrase(left.en + link.en + right.en, left.de + link.de + right.de)


def _embedded(scene: Scene) -> Phrase:
    """'Anna is happy because Peter sings.'"""
    verb = scene.draws.pick(_INTRANSITIVE)
    clause = Clause(scene.actor(), verb, scene.bare_setting(verb))
    return scene.draws.pick((reported, felt))(scene, clause)


def _relative(scene: Scene) -> Phrase:
    """'Anna feeds the dog that waits in the yard.'"""
    verb = scene.draws.pick((lex.FEED, lex.SEE))
    animal = scene.draws.combine("object", verb.en, lex.ANIMALS)
    main = statement(Clause(scene.actor(), verb, _PRESENT, noun_phrase("the", animal, Case.ACCUSATIVE)))
    article = noun_phrase("the", animal, Case.NOMINATIVE).de.split()[0]
    activity = Clause(Person("", "", ""), scene.draws.pick(_OF_ANIMALS), Setting(Tense.NOW, place=scene.place()))
    inner = subordinate(activity, Phrase("that", article))
    return Phrase(f"{main.en} {inner.en}", f"{main.de}, {inner.de}")


_KINDS = (
    *([_transitive] * 8),
    *([_intransitive] * 3),
    *([_lacking, _giving, _mood] * 2),
    *(_together, _animal, _place_state, _contrast, _embedded, _relative),
)
