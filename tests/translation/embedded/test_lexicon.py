"""Properties of the lexicon that the phenomena rest on."""

from collections import Counter
from itertools import chain

from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.words import Case, Gender, Variety

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
    forms = [term.noun(variety).form(case) for term in lex.TERMS for variety in Variety for case in Case]
    assert plain.isdisjoint(forms)
    owners = Counter(form for term in lex.TERMS for form in {term.germany.de, term.austria.de})
    assert set(owners.values()) == {1}


def test_german_nouns_are_capitalised() -> None:
    assert all(noun.de[0].isupper() for noun in PLAIN_NOUNS)
