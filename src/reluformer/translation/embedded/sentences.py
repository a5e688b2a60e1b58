"""The sentences of a document: openings, mentions of the topic, and asides.

Openings are the marked sentences that later ones depend on: they name the readers and the
topic. Mentions call the topic 'it', once each, as subject or as object; every predicate
suits every topic, so what is said of 'it' does not reveal its gender. Asides have nothing
to do with the topic and stand between it and its pronouns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.grammar import (
    Adjective,
    Clause,
    GermanCase,
    Noun,
    ObjectKind,
    Person,
    Phrase,
    Pool,
    Setting,
    Tense,
    Term,
    Variety,
    Verb,
    noun_phrase,
    pronoun,
    question,
    statement,
    subordinate,
)
from reluformer.translation.embedded.scene import Scene

_THAT, _BECAUSE = Phrase("that", "dass"), Phrase("because", "weil")
_REPORTING_VERBS = (lex.SAY, lex.KNOW)
_NOW = Setting(Tense.NOW)


def sentence(phrase: Phrase, mark: str = ".") -> Phrase:
    """Adds a capital letter and the final mark to a phrase."""
    return Phrase(phrase.en[0].upper() + phrase.en[1:] + mark, phrase.de[0].upper() + phrase.de[1:] + mark)


def reported(scene: Scene, clause: Clause) -> Phrase:
    """Builds 'Anna knows that ...': somebody else says or knows it, or hopes it of the future."""
    verb = lex.HOPE if clause.setting.tense is Tense.FUTURE else scene.draws.pick(_REPORTING_VERBS)
    main = statement(Clause(scene.actor(*clause.people), verb, _NOW))
    return _with_subordinate(main, subordinate(clause, _THAT))


def felt(scene: Scene, clause: Clause) -> Phrase:
    """Builds 'Anna is happy because ...': the clause is the reason of somebody else's feeling."""
    feeling = scene.draws.pick(lex.FEELINGS)
    main = statement(Clause(scene.actor(*clause.people), lex.BE, _NOW, complement=feeling))
    return _with_subordinate(main, subordinate(clause, _BECAUSE))


def _with_subordinate(main: Phrase, inner: Phrase) -> Phrase:
    return Phrase(f"{main.en} {inner.en}", f"{main.de}, {inner.de}")


_AUDIENCE_PATTERNS = (
    Phrase("This story is for readers in {}.", "Diese Geschichte ist für Leser in {}."),
    Phrase("We write for readers in {}.", "Wir schreiben für Leser in {}."),
    Phrase("Our readers live in {}.", "Unsere Leser leben in {}."),
)
_FIRST_TOPIC_PATTERNS = (
    (Phrase("This is the story of {}.", "Dies ist die Geschichte von {}."), GermanCase.DATIVE),
    (Phrase("Our story begins with {}.", "Unsere Geschichte beginnt mit {}."), GermanCase.DATIVE),
    (Phrase("This chapter is about {}.", "Dieses Kapitel handelt von {}."), GermanCase.DATIVE),
)
_NEXT_TOPIC_PATTERNS = (
    (Phrase("The next chapter is about {}.", "Das nächste Kapitel handelt von {}."), GermanCase.DATIVE),
    (Phrase("Now the story turns to {}.", "Nun wendet sich die Geschichte {} zu."), GermanCase.DATIVE),
    (Phrase("Now we talk about {}.", "Jetzt sprechen wir über {}."), GermanCase.ACCUSATIVE),
)


def audience(scene: Scene, variety: Variety) -> Phrase:
    """Builds the sentence that decides the variety of German for the whole document."""
    country = lex.AUDIENCES[variety]
    pattern = scene.draws.pick(_AUDIENCE_PATTERNS)
    return Phrase(pattern.en.format(country.en), pattern.de.format(country.de))


def introduction(scene: Scene, topic: Noun, *, first: bool) -> Phrase:
    """Builds the sentence that makes 'it' refer to `topic` from here on."""
    pattern, case = scene.draws.pick(_FIRST_TOPIC_PATTERNS if first else _NEXT_TOPIC_PATTERNS)
    adjective = None
    if scene.draws.chance(0.5):
        adjective = scene.draws.combine("adjective", topic.en, lex.THING_ADJECTIVES)
    phrase = noun_phrase("a", topic, case, adjective)
    return Phrase(pattern.en.format(phrase.en), pattern.de.format(phrase.de))


_WHERE, _WHEN = Phrase("where", "wo"), Phrase("when", "wann")
_NO_DEGREE = Phrase("", "")
_DEGREES = (_NO_DEGREE, _NO_DEGREE, Phrase("very ", "sehr "), Phrase("too ", "zu "))
_ABSOLUTE = (lex.NEW, lex.RED, lex.GREEN, lex.WHITE, lex.BROKEN)
_PASSING_STATES = (lex.DIRTY, lex.BROKEN, lex.EXPENSIVE)
_WHO_RATE, _QUESTION_RATE, _EMBEDDING_RATE = 0.05, 0.1, 0.25
Complement = Literal["", "recipient", "adjective", "place", "fall", "price"]


@dataclass(frozen=True)
class Predicate:
    """A predicate is something to say of a topic; `en` names it among the combinations."""

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
    """A mention is a sentence with 'it', together with the German pronoun in it."""

    text: Phrase
    form: str


def mention(scene: Scene, topic: Noun) -> Mention:
    """Builds a sentence about the topic."""
    if scene.draws.chance(0.5):
        form = pronoun(topic.gender, GermanCase.ACCUSATIVE)
        text = _as_object(scene, scene.draws.combine("topic", topic.en, OBJECT_PREDICATES), Phrase("it", form))
    else:
        form = pronoun(topic.gender, GermanCase.NOMINATIVE)
        text = _as_subject(scene, scene.draws.combine("topic", topic.en, SUBJECT_PREDICATES), Person("it", form, ""))
    return Mention(text, form)


def _as_object(scene: Scene, predicate: Predicate, it: Phrase) -> Phrase:
    """Builds a sentence in which somebody does something with it."""
    verb, draws = predicate.verb, scene.draws
    actor = lex.WHO if draws.chance(_WHO_RATE) else scene.actor()
    recipient = scene.recipient(actor) if predicate.complement == "recipient" else None
    clause = Clause(actor, verb, scene.bare_setting(verb), it, ObjectKind.PRONOUN, recipient)
    if actor is lex.WHO:
        return sentence(statement(clause), "?")
    return _shaped(scene, predicate, clause, _question_word(scene, clause))


def _shaped(scene: Scene, predicate: Predicate, clause: Clause, word: Phrase | None = None) -> Phrase:
    """Shapes the clause as a question, inside another sentence, or most often as a statement with adverbs."""
    if scene.draws.chance(_QUESTION_RATE):
        return sentence(question(clause, word), "?")
    if scene.draws.chance(_EMBEDDING_RATE):
        return sentence(scene.draws.pick((reported, felt))(scene, clause))
    setting = scene.setting(clause.verb, times=predicate.times, places=predicate.places, negation=predicate.negation)
    return sentence(statement(replace(clause, setting=setting)))


def _question_word(scene: Scene, clause: Clause) -> Phrase | None:
    """Draws 'where' or 'when' for a past event; other questions are answered by yes or no."""
    if clause.setting.tense is not Tense.PAST or clause.recipient is not None or scene.draws.chance(0.3):
        return None
    return scene.draws.pick((_WHERE, _WHEN))


def _as_subject(scene: Scene, predicate: Predicate, it: Person) -> Phrase:
    """Builds a sentence in which it is, lies, belongs or costs something."""
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


_INTRANSITIVE = (lex.SLEEP, lex.WORK, lex.WAIT, lex.SING, lex.DANCE, lex.PLAY)
_OF_ANIMALS = (lex.SLEEP, lex.WAIT, lex.PLAY)
_CONJUNCTIONS = (Phrase(" and ", " und "), Phrase(", but ", ", aber "))
_TERM_RATE, _ADJECTIVE_RATE = 0.7, 0.35


@dataclass(frozen=True)
class ObjectClass:
    """An object class holds nouns that the same verbs and adjectives suit."""

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
    """Builds an aside of any kind."""
    return sentence(scene.draws.pick(_KINDS)(scene))


def _object(scene: Scene, verb: Verb, objects: ObjectClass, article: str) -> Phrase:
    """Draws an object that suits `verb`, in the accusative; it is often a term where the variety is known."""
    draws = scene.draws
    if scene.variety is not None and objects.terms is not None and draws.chance(_TERM_RATE):
        term = draws.combine("object", verb.en, objects.terms)
        noun = scene.resolve(term, scene.variety, GermanCase.ACCUSATIVE)
    else:
        noun = draws.combine("object", verb.en, objects.nouns)
    adjective = None
    if draws.chance(_ADJECTIVE_RATE):
        adjective = draws.combine("adjective", noun.en, objects.adjectives)
    return noun_phrase(article, noun, GermanCase.ACCUSATIVE, adjective)


def _transitive(scene: Scene) -> Phrase:
    """Builds a sentence such as 'Yesterday Anna ate an apple.'"""
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
    """Builds a sentence such as 'Anna has no chair.'"""
    verb, objects = scene.draws.pick(((lex.HAVE, FURNITURE), (lex.NEED, FURNITURE), (lex.HAVE, ANIMALS)))
    thing = _object(scene, verb, objects, "no")
    return statement(Clause(scene.actor(), verb, _NOW, thing, ObjectKind.INDEFINITE))


def _giving(scene: Scene) -> Phrase:
    """Builds a sentence such as 'Anna gave a potato to the girl.'"""
    actor = scene.actor()
    setting = scene.setting(lex.GIVE, places=False, negation=False)
    food = _object(scene, lex.GIVE, FOOD, "a")
    return statement(Clause(actor, lex.GIVE, setting, food, ObjectKind.INDEFINITE, scene.recipient(actor)))


def _intransitive(scene: Scene) -> Phrase:
    """Builds a sentence such as 'On Sundays my parents work in the garden.'"""
    return statement(_activity(scene, scene.actor(), scene.draws.pick(_INTRANSITIVE)))


def _together(scene: Scene) -> Phrase:
    """Builds a sentence such as 'Anna and Peter sing in the yard.'"""
    first = scene.draws.pick(lex.NAMES)
    second = scene.draws.pick([name for name in lex.NAMES if name is not first])
    both = Person(f"{first.en} and {second.en}", f"{first.en} und {second.en}", "", plural=True)
    return statement(_activity(scene, both, scene.draws.pick(_INTRANSITIVE)))


def _animal(scene: Scene) -> Phrase:
    """Builds a sentence such as 'The white cat sleeps under the bridge.'"""
    noun = scene.draws.pick(lex.ANIMALS.items)
    adjective = scene.draws.combine("adjective", noun.en, lex.ANIMAL_ADJECTIVES) if scene.draws.chance(0.5) else None
    phrase = noun_phrase("the", noun, GermanCase.NOMINATIVE, adjective)
    return statement(_activity(scene, Person(phrase.en, phrase.de, ""), scene.draws.pick(_OF_ANIMALS)))


def _activity(scene: Scene, subject: Person, verb: Verb) -> Clause:
    """Builds an intransitive clause, and adds a place where it would be too bare."""
    setting = scene.setting(verb)
    if setting.time is None and setting.place is None:
        setting = replace(setting, place=scene.place(), front=False)
    return Clause(subject, verb, setting)


def _mood(scene: Scene) -> Phrase:
    """Builds a sentence such as 'Today Anna is tired.'"""
    return statement(
        Clause(scene.actor(), lex.BE, scene.setting(lex.BE, places=False), complement=scene.draws.pick(lex.MOODS))
    )


def _place_state(scene: Scene) -> Phrase:
    """Builds a sentence such as 'The kitchen is small.'"""
    place = scene.draws.pick(lex.PLACES.items)
    adjective = scene.draws.combine("adjective", place.en, lex.PLACE_ADJECTIVES)
    subject = noun_phrase("the", place.noun, GermanCase.NOMINATIVE)
    clause = Clause(Person(subject.en, subject.de, ""), lex.BE, scene.setting(lex.BE, times=False, places=False))
    return statement(replace(clause, complement=Phrase(adjective.en, adjective.de)))


def _contrast(scene: Scene) -> Phrase:
    """Builds a sentence such as 'Anna sings, but Peter sleeps.'"""
    first, setting = scene.actor(), Setting(scene.draws.pick((Tense.HABIT, Tense.PAST)))
    verb = scene.draws.pick(_INTRANSITIVE)
    other = scene.draws.pick([choice for choice in _INTRANSITIVE if choice is not verb])
    left, right = statement(Clause(first, verb, setting)), statement(Clause(scene.actor(first), other, setting))
    link = scene.draws.pick(_CONJUNCTIONS)
    return Phrase(left.en + link.en + right.en, left.de + link.de + right.de)


def _embedded(scene: Scene) -> Phrase:
    """Builds a sentence such as 'Anna is happy because Peter sings.'"""
    verb = scene.draws.pick(_INTRANSITIVE)
    clause = Clause(scene.actor(), verb, scene.bare_setting(verb))
    return scene.draws.pick((reported, felt))(scene, clause)


def _relative(scene: Scene) -> Phrase:
    """Builds a sentence such as 'Anna feeds the dog that waits in the yard.'"""
    verb = scene.draws.pick((lex.FEED, lex.SEE))
    animal = scene.draws.combine("object", verb.en, lex.ANIMALS)
    main = statement(Clause(scene.actor(), verb, _NOW, noun_phrase("the", animal, GermanCase.ACCUSATIVE)))
    article = noun_phrase("the", animal, GermanCase.NOMINATIVE).de.split()[0]
    activity = Clause(Person("", "", ""), scene.draws.pick(_OF_ANIMALS), Setting(Tense.NOW, place=scene.place()))
    inner = subordinate(activity, Phrase("that", article))
    return Phrase(f"{main.en} {inner.en}", f"{main.de}, {inner.de}")


_KINDS = (
    *([_transitive] * 8),
    *([_intransitive] * 3),
    *([_lacking, _giving, _mood] * 2),
    *(_together, _animal, _place_state, _contrast, _embedded, _relative),
)
