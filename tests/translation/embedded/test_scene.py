"""Draws are the same everywhere; what is held out never reaches training, shown by scanning texts."""

import re
from collections import Counter
from functools import cache
from itertools import pairwise

import pytest

from reluformer.translation.embedded import EmbeddedDocument, Split, generate
from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.grammar import Gender
from reluformer.translation.embedded.scene import HELD_OUT_TOPICS, Draws, held_out, partition, stable_hash
from reluformer.translation.embedded.sentences import OBJECT_PREDICATES, SUBJECT_PREDICATES, TRANSITIVE

ADJECTIVES = {adjective.en for adjective in lex.THING_ADJECTIVES.items}
TOPICS = {noun.en for noun in lex.TOPICS.items}
OBJECTS = {
    noun.en
    for pool in (lex.FOOD, lex.FURNITURE, lex.WRITING, lex.ANIMALS, lex.FOOD_TERMS, lex.FURNITURE_TERMS)
    for noun in pool.items
}
NOUNS = TOPICS | OBJECTS | {place.en for place in lex.PLACES.items}
OBJECT_VERBS = (*(verb for verb, _ in TRANSITIVE), lex.HAVE, lex.GIVE)
FORMS = {form: verb.en for verb in OBJECT_VERBS for form in (verb.en, verb.third, verb.past)}
PLACE_STATE = re.compile(rf"The ({'|'.join(place.en for place in lex.PLACES.items)}) (?:is|was)(?: not)? (\w+)\.")
PARTICLES = {"look": "for", "take": "along"}


@cache
def documents(split: Split) -> list[EmbeddedDocument]:
    return list(generate({"train": 1500, "valid": 250, "test": 400}[split], split=split))


def combinations(document: EmbeddedDocument) -> set[tuple[str, str, str]]:
    """Every combination that the English text shows, found without the generator's help."""
    found: set[tuple[str, str, str]] = set()
    topic = ""
    for sentence in document.document.src:
        words = re.findall(r"\w+", sentence)
        found |= {("adjective", b, a) for a, b in pairwise(words) if a in ADJECTIVES and b in NOUNS}
        if state := PLACE_STATE.fullmatch(sentence):
            found.add(("adjective", state[1], state[2]))
        topic = next((word for word in words if word in TOPICS), topic)
        if "it" in map(str.lower, words):
            found |= {("topic", topic, name) for name in predicates(words)}
        verb = ""
        for word in words:
            verb = FORMS.get(word, verb)
            if word in OBJECTS and verb:
                found.add(("object", verb, word))
                verb = ""
    return found


def predicates(words: list[str]) -> set[str]:
    """What is said of 'it' in a sentence."""
    text = [word.lower() for word in words]
    it = text.index("it")
    names = set()
    for predicate in OBJECT_PREDICATES.items:
        verb = predicate.verb
        before_it = text[it - 2] if verb.before else text[it - 1]
        if before_it in (verb.en, verb.third, verb.past) and PARTICLES.get(verb.en, "it") in text:
            names.add(predicate.en)
    after = text[it + 1 :]
    for predicate in SUBJECT_PREDICATES.items:
        verb, last = predicate.verb, predicate.adjective.en if predicate.adjective else ""
        forms = {verb.en, verb.third, verb.past}
        if predicate.en == "be where":
            found = text[:3] == ["where", "is", "it"]
        elif verb is lex.BE:
            found = last in after and (after[0] in forms or text[it - 1] in forms)
        elif last:
            found = last in after and bool(forms & set(after))
        else:
            found = bool(forms & set(after))
        if found:
            names.add(predicate.en)
    return names


def test_every_sentence_with_it_shows_exactly_one_predicate() -> None:
    sentences = {
        sentence
        for document in documents("train")
        for sentence in document.document.src
        if "it" in re.findall(r"\w+", sentence.lower())
    }
    assert len(sentences) > 1000
    assert [sentence for sentence in sentences if len(predicates(re.findall(r"\w+", sentence))) != 1] == []


@pytest.mark.parametrize("split", ["train", "valid"])
def test_held_out_combinations_never_occur_outside_test(split: Split) -> None:
    shown = set().union(*(combinations(document) for document in documents(split)))
    assert {kind for kind, _, _ in shown} == {"adjective", "object", "topic"}
    assert [combination for combination in shown if held_out(*combination)] == []  # type: ignore[arg-type]


def test_every_test_document_shows_a_combination_that_training_never_does() -> None:
    novel = [{c for c in combinations(document) if held_out(*c)} for document in documents("test")]  # type: ignore[arg-type]
    assert all(novel)
    assert {kind for found in novel for kind, _, _ in found} == {"adjective", "object", "topic"}


def test_test_also_shows_combinations_that_training_knows() -> None:
    assert any(not held_out(*c) for document in documents("test") for c in combinations(document))  # type: ignore[arg-type]


def test_no_text_is_in_two_splits() -> None:
    """With documents of two sentences, where chance would soon repeat one."""
    train, valid, test = (
        {document.document.src for document in generate(count, split=split, sentences=(2, 2))}
        for split, count in (("train", 4000), ("valid", 500), ("test", 1000))
    )
    assert len(train) < 4000, "texts this short should repeat within a split, or this test shows nothing"
    assert train.isdisjoint(valid)
    assert train.isdisjoint(test)
    assert valid.isdisjoint(test)


def test_every_word_keeps_partners_in_training() -> None:
    for topic in lex.TOPICS.items:
        for pool in (OBJECT_PREDICATES, SUBJECT_PREDICATES):
            shared, novel = partition("topic", topic.en, pool)
            assert len(shared) > len(pool.items) / 2
            assert set(shared) | set(novel) == set(pool.items)


def test_topics_are_held_out_evenly_over_the_genders() -> None:
    for predicate in (*OBJECT_PREDICATES.items, *SUBJECT_PREDICATES.items):
        genders = Counter(noun.gender for noun in lex.TOPICS.items if held_out("topic", noun.en, predicate.en))
        assert genders == dict.fromkeys(Gender, HELD_OUT_TOPICS)


def test_hash_and_draws_are_pinned() -> None:
    """Values that every Python version and machine must give; a change of them is another corpus."""
    assert stable_hash("reluformer") == 11000406266409497327
    draws = Draws("reluformer", "train")
    assert [draws.between(0, 999) for _ in range(5)] == [996, 17, 456, 491, 337]
