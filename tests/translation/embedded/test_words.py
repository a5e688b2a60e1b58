"""German morphology against tables written by hand."""

import pytest

from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.words import (
    Adjective,
    Case,
    Gender,
    Noun,
    Phrase,
    Place,
    Variety,
    noun_phrase,
    place_phrase,
    pronoun,
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
    assert tuple(noun_phrase(article, noun, case, RED).de for case in Case) == forms


def test_stem_of_teuer_loses_its_e() -> None:
    assert noun_phrase("a", HAT, Case.NOMINATIVE, EXPENSIVE) == Phrase("an expensive hat", "ein teurer Hut")


def test_weak_nouns_take_an_ending_outside_the_nominative() -> None:
    boys = [lex.BOY.noun(variety) for variety in Variety]
    assert [noun_phrase("the", boy, Case.NOMINATIVE).de for boy in boys] == ["der Junge", "der Bub"]
    assert [noun_phrase("the", boy, Case.DATIVE).de for boy in boys] == ["dem Jungen", "dem Buben"]


@pytest.mark.parametrize(("noun", "forms"), [(HAT, ("er", "ihn")), (LAMP, ("sie", "sie")), (BOOK, ("es", "es"))])
def test_pronouns(noun: Noun, forms: tuple[str, str]) -> None:
    assert (pronoun(noun.gender, Case.NOMINATIVE), pronoun(noun.gender, Case.ACCUSATIVE)) == forms


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
        (noun_phrase("a", HAT, Case.NOMINATIVE), "a hat"),
        (noun_phrase("a", Noun("apple", "Apfel", Gender.MASCULINE), Case.NOMINATIVE), "an apple"),
        (noun_phrase("a", Noun("apple", "Apfel", Gender.MASCULINE), Case.NOMINATIVE, RED), "a red apple"),
    ],
)
def test_english_indefinite_article(phrase: Phrase, english: str) -> None:
    assert phrase.en == english


def test_wrong_forms_of_a_term_are_those_of_the_other_variety() -> None:
    assert lex.BOY.wrong_forms(Variety.GERMANY) == ("Bub", "Buben")
    assert lex.BOY.wrong_forms(Variety.AUSTRIA) == ("Junge", "Jungen")
