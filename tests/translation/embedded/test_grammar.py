"""German morphology and clauses in both languages, against tables written by hand."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.grammar import (
    Adjective,
    Clause,
    Gender,
    GermanCase,
    Modal,
    Noun,
    ObjectKind,
    Person,
    Phrase,
    Place,
    Setting,
    Tense,
    Time,
    Variety,
    noun_phrase,
    place_phrase,
    pronoun,
    question,
    statement,
    subordinate,
)

RED, EXPENSIVE = Adjective("red", "rot"), Adjective("expensive", "teuer", "teur")
HAT, LAMP, BOOK = (
    Noun("hat", "Hut", Gender.MASCULINE),
    Noun("lamp", "Lampe", Gender.FEMININE),
    Noun("book", "Buch", Gender.NEUTER),
)


@pytest.mark.parametrize(
    ("noun", "article", "forms"),
    [
        (HAT, "the", ("der rote Hut", "den roten Hut", "dem roten Hut")),
        (LAMP, "the", ("die rote Lampe", "die rote Lampe", "der roten Lampe")),
        (BOOK, "the", ("das rote Buch", "das rote Buch", "dem roten Buch")),
        (HAT, "a", ("ein roter Hut", "einen roten Hut", "einem roten Hut")),
        (LAMP, "a", ("eine rote Lampe", "eine rote Lampe", "einer roten Lampe")),
        (BOOK, "a", ("ein rotes Buch", "ein rotes Buch", "einem roten Buch")),
        (HAT, "no", ("kein roter Hut", "keinen roten Hut", "keinem roten Hut")),
        (LAMP, "no", ("keine rote Lampe", "keine rote Lampe", "keiner roten Lampe")),
        (BOOK, "no", ("kein rotes Buch", "kein rotes Buch", "keinem roten Buch")),
    ],
)
def test_article_and_adjective_follow_gender_and_case(noun: Noun, article: str, forms: tuple[str, ...]) -> None:
    assert tuple(noun_phrase(article, noun, case, RED).de for case in GermanCase) == forms


def test_stem_of_teuer_loses_its_e() -> None:
    assert noun_phrase("a", HAT, GermanCase.NOMINATIVE, EXPENSIVE) == Phrase("an expensive hat", "ein teurer Hut")


def test_weak_nouns_take_an_ending_outside_the_nominative() -> None:
    boys = [lex.BOY.noun(variety) for variety in Variety]
    assert [noun_phrase("the", boy, GermanCase.NOMINATIVE).de for boy in boys] == ["der Junge", "der Bub"]
    assert [noun_phrase("the", boy, GermanCase.DATIVE).de for boy in boys] == ["dem Jungen", "dem Buben"]


@pytest.mark.parametrize(("noun", "forms"), [(HAT, ("er", "ihn")), (LAMP, ("sie", "sie")), (BOOK, ("es", "es"))])
def test_pronouns(noun: Noun, forms: tuple[str, str]) -> None:
    assert (pronoun(noun.gender, GermanCase.NOMINATIVE), pronoun(noun.gender, GermanCase.ACCUSATIVE)) == forms


@pytest.mark.parametrize(
    ("preposition", "noun", "plain", "with_adjective"),
    [
        ("in", HAT, "im Hut", "im roten Hut"),
        ("in", LAMP, "in der Lampe", "in der roten Lampe"),
        ("an", BOOK, "am Buch", "am roten Buch"),
        ("auf", HAT, "auf dem Hut", "auf dem roten Hut"),
        ("hinter", BOOK, "hinter dem Buch", "hinter dem roten Buch"),
    ],
)
def test_preposition_and_article_contract(preposition: str, noun: Noun, plain: str, with_adjective: str) -> None:
    place = Place(noun.en, "in", preposition, noun)
    assert place_phrase(place).de == plain
    assert place_phrase(place, RED).de == with_adjective


@pytest.mark.parametrize(
    ("phrase", "english"),
    [
        (noun_phrase("a", HAT, GermanCase.NOMINATIVE), "a hat"),
        (noun_phrase("a", Noun("apple", "Apfel", Gender.MASCULINE), GermanCase.NOMINATIVE), "an apple"),
        (noun_phrase("a", Noun("apple", "Apfel", Gender.MASCULINE), GermanCase.NOMINATIVE, RED), "a red apple"),
    ],
)
def test_english_indefinite_article(phrase: Phrase, english: str) -> None:
    assert phrase.en == english


def test_wrong_forms_of_a_term_are_those_of_the_other_variety() -> None:
    assert lex.BOY.wrong_forms(Variety.GERMANY) == ("Bub", "Buben")
    assert lex.BOY.wrong_forms(Variety.AUSTRIA) == ("Junge", "Jungen")


PLAIN_NOUNS = [
    *chain(lex.TOPICS.items, lex.FOOD.items, lex.FURNITURE.items, lex.WRITING.items, lex.ANIMALS.items),
    *(place.noun for place in lex.PLACES.items),
]


def test_topics_are_balanced_over_the_genders() -> None:
    assert Counter(noun.gender for noun in lex.TOPICS.items) == dict.fromkeys(Gender, 12)


def test_no_noun_has_two_meanings() -> None:
    english = Counter([noun.en for noun in PLAIN_NOUNS] + [term.en for term in lex.TERMS])
    assert [word for word, count in english.items() if count > 1] == []


def test_words_of_terms_serve_no_other_noun() -> None:
    plain = {noun.de for noun in PLAIN_NOUNS}
    forms = [term.noun(variety).form(case) for term in lex.TERMS for variety in Variety for case in GermanCase]
    assert plain.isdisjoint(forms)
    owners = Counter(form for term in lex.TERMS for form in {term.germany.de, term.austria.de})
    assert set(owners.values()) == {1}


def test_german_nouns_are_capitalised() -> None:
    assert all(noun.de[0].isupper() for noun in PLAIN_NOUNS)


ANNA, CHILDREN = lex.NAMES[0], Person("the children", "die Kinder", "den Kindern", plural=True)
MAN = Person("the man", "der Mann", "dem Mann")
IT, THE_APPLE, AN_APPLE = Phrase("it", "ihn"), Phrase("the apple", "den Apfel"), Phrase("an apple", "einen Apfel")
YESTERDAY, OFTEN = Time("yesterday", "gestern"), Time("often", "oft", mid=True)
GARDEN = Phrase("in the garden", "im Garten")
PRONOUN, DEFINITE, INDEFINITE = ObjectKind
NOW, PAST, FUTURE = Setting(Tense.NOW), Setting(Tense.PAST), Setting(Tense.FUTURE)


def past(**adverbs: object) -> Setting:
    return Setting(Tense.PAST, **adverbs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("clause", "english", "german"),
    [
        (Clause(ANNA, lex.SEE, NOW, IT, PRONOUN), "Anna sees it", "Anna sieht ihn"),
        (Clause(CHILDREN, lex.SEE, NOW, IT, PRONOUN), "the children see it", "die Kinder sehen ihn"),
        (Clause(ANNA, lex.FIND, PAST, IT, PRONOUN), "Anna found it", "Anna hat ihn gefunden"),
        (Clause(CHILDREN, lex.FIND, PAST, IT, PRONOUN), "the children found it", "die Kinder haben ihn gefunden"),
        (Clause(ANNA, lex.BUY, FUTURE, IT, PRONOUN), "Anna will buy it", "Anna wird ihn kaufen"),
        (Clause(ANNA, lex.TAKE, NOW, IT, PRONOUN), "Anna takes it along", "Anna nimmt ihn mit"),
        (Clause(ANNA, lex.TAKE, FUTURE, IT, PRONOUN), "Anna will take it along", "Anna wird ihn mitnehmen"),
        (Clause(ANNA, lex.SEEK, PAST, IT, PRONOUN), "Anna looked for it", "Anna hat ihn gesucht"),
        (
            Clause(ANNA, lex.FIND, past(time=YESTERDAY, place=GARDEN, front=True), IT, PRONOUN),
            "yesterday Anna found it in the garden",
            "gestern hat Anna ihn im Garten gefunden",
        ),
        (
            Clause(ANNA, lex.FIND, past(place=GARDEN, front=True), IT, PRONOUN),
            "in the garden Anna found it",
            "im Garten hat Anna ihn gefunden",
        ),
        (
            Clause(ANNA, lex.EAT, past(time=YESTERDAY, place=GARDEN), AN_APPLE, INDEFINITE),
            "Anna ate an apple in the garden yesterday",
            "Anna hat gestern im Garten einen Apfel gegessen",
        ),
        (
            Clause(ANNA, lex.EAT, past(time=YESTERDAY, place=GARDEN), THE_APPLE, DEFINITE),
            "Anna ate the apple in the garden yesterday",
            "Anna hat gestern den Apfel im Garten gegessen",
        ),
        (
            Clause(ANNA, lex.EAT, past(time=YESTERDAY, negated=True), THE_APPLE, DEFINITE),
            "Anna did not eat the apple yesterday",
            "Anna hat den Apfel gestern nicht gegessen",
        ),
        (
            Clause(ANNA, lex.CLEAN, Setting(Tense.HABIT, time=OFTEN), THE_APPLE, DEFINITE),
            "Anna often cleans the apple",
            "Anna putzt den Apfel oft",
        ),
        (
            Clause(ANNA, lex.GIVE, past(time=YESTERDAY), IT, PRONOUN, MAN),
            "Anna gave it to the man yesterday",
            "Anna hat ihn gestern dem Mann gegeben",
        ),
        (
            Clause(ANNA, lex.GIVE, past(time=YESTERDAY, negated=True), IT, PRONOUN, MAN),
            "Anna did not give it to the man yesterday",
            "Anna hat ihn dem Mann gestern nicht gegeben",
        ),
        (
            Clause(ANNA, lex.GIVE, PAST, AN_APPLE, INDEFINITE, MAN),
            "Anna gave an apple to the man",
            "Anna hat dem Mann einen Apfel gegeben",
        ),
        (
            Clause(ANNA, lex.SELL, Setting(Tense.MODAL, Modal.WANT, negated=True), IT, PRONOUN),
            "Anna does not want to sell it",
            "Anna will ihn nicht verkaufen",
        ),
        (
            Clause(CHILDREN, lex.FIND, Setting(Tense.MODAL, Modal.CAN, negated=True), IT, PRONOUN),
            "the children cannot find it",
            "die Kinder können ihn nicht finden",
        ),
        (
            Clause(CHILDREN, lex.BE, past(negated=True), complement=Phrase("tired", "müde")),
            "the children were not tired",
            "die Kinder waren nicht müde",
        ),
        (
            Clause(
                Person("it", "er", ""), lex.BE, Setting(Tense.NOW, time=OFTEN), complement=Phrase("dirty", "schmutzig")
            ),
            "it is often dirty",
            "er ist oft schmutzig",
        ),
        (
            Clause(Person("it", "er", ""), lex.FALL, past(time=YESTERDAY), complement=lex.FALLS[0]),
            "it fell into the water yesterday",
            "er ist gestern ins Wasser gefallen",
        ),
        (Clause(Person("it", "er", ""), lex.BELONG, NOW, recipient=MAN), "it belongs to the man", "er gehört dem Mann"),
        (Clause(Person("it", "er", ""), lex.LIE, PAST, complement=GARDEN), "it lay in the garden", "er lag im Garten"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_statements(clause: Clause, english: str, german: str) -> None:
    assert statement(clause) == Phrase(english, german)


@pytest.mark.parametrize(
    ("clause", "german"),
    [
        (Clause(ANNA, lex.NEED, NOW, IT, PRONOUN), "dass Anna ihn braucht"),
        (Clause(ANNA, lex.TAKE, NOW, IT, PRONOUN), "dass Anna ihn mitnimmt"),
        (Clause(ANNA, lex.TAKE, PAST, IT, PRONOUN), "dass Anna ihn mitgenommen hat"),
        (Clause(ANNA, lex.BUY, FUTURE, IT, PRONOUN), "dass Anna ihn kaufen wird"),
        (Clause(ANNA, lex.BUY, Setting(Tense.MODAL, Modal.MUST), IT, PRONOUN), "dass Anna ihn kaufen muss"),
        (Clause(Person("it", "er", ""), lex.LOOK, NOW, complement=Phrase("old", "alt")), "dass er alt aussieht"),
        (Clause(CHILDREN, lex.SLEEP, PAST), "dass die Kinder geschlafen haben"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_subordinate_clauses_end_with_the_verb(clause: Clause, german: str) -> None:
    made = subordinate(clause, Phrase("that", "dass"))
    assert made.de == german
    assert made.en == "that " + statement(clause).en


@pytest.mark.parametrize(
    ("clause", "word", "english", "german"),
    [
        (Clause(ANNA, lex.NEED, NOW, IT, PRONOUN), None, "does Anna need it", "braucht Anna ihn"),
        (Clause(CHILDREN, lex.NEED, NOW, IT, PRONOUN), None, "do the children need it", "brauchen die Kinder ihn"),
        (Clause(ANNA, lex.FIND, PAST, IT, PRONOUN), "where wo", "where did Anna find it", "wo hat Anna ihn gefunden"),
        (Clause(ANNA, lex.BUY, FUTURE, IT, PRONOUN), None, "will Anna buy it", "wird Anna ihn kaufen"),
        (Clause(Person("it", "er", ""), lex.BE, NOW), "where wo", "where is it", "wo ist er"),
        (
            Clause(ANNA, lex.SELL, Setting(Tense.MODAL, Modal.WANT), IT, PRONOUN),
            None,
            "does Anna want to sell it",
            "will Anna ihn verkaufen",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_questions(clause: Clause, word: str | None, english: str, german: str) -> None:
    asked = Phrase(*word.split()) if word else None
    assert question(clause, asked) == Phrase(english, german)
