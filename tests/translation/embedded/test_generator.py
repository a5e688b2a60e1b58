"""Whole documents: golden texts, determinism, balance, and what 'it' may mean."""

import re
from collections import Counter, defaultdict
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reluformer.errors import ArgumentError
from reluformer.translation.embedded import SPLITS, EmbeddedDocument, Split, document_at, document_from_id, generate
from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.grammar import PRONOUNS, Variety

GOLDEN = {
    "embedded/seed=0/train/sentences=6-9/2": [
        ("This story is for readers in Germany.", "Diese Geschichte ist für Leser in Deutschland."),
        ("This is the story of a broken rope.", "Dies ist die Geschichte von einem kaputten Seil."),
        ("The girl has no big cupboard.", "Das Mädchen hat keinen großen Schrank."),
        ("Paul and Clara will wait at the market.", "Paul und Clara werden auf dem Markt warten."),
        ("The man sings behind the house.", "Der Mann singt hinter dem Haus."),
        ("It was white.", "Es war weiß."),
        (
            "The children are happy because the woman must find it.",
            "Die Kinder sind froh, weil die Frau es finden muss.",
        ),
    ],
    "embedded/seed=0/valid/sentences=6-9/1": [
        ("This story is for readers in Austria.", "Diese Geschichte ist für Leser in Österreich."),
        ("This chapter is about a white clock.", "Dieses Kapitel handelt von einer weißen Uhr."),
        ("It is very expensive.", "Sie ist sehr teuer."),
        ("Peter sometimes sees the bicycle under the bridge.", "Peter sieht das Fahrrad manchmal unter der Brücke."),
        ("The dog will sleep in the yard.", "Der Hund wird im Hof schlafen."),
        ("My parents will sleep soon.", "Meine Eltern werden bald schlafen."),
        ("Paul needs a heavy dustbin now.", "Paul braucht jetzt einen schweren Mistkübel."),
        ("Jonas found it on Monday.", "Jonas hat sie am Montag gefunden."),
    ],
    "embedded/seed=0/test/sentences=6-9/2": [
        ("Our story begins with a rope.", "Unsere Geschichte beginnt mit einem Seil."),
        ("We write for readers in Austria.", "Wir schreiben für Leser in Österreich."),
        ("My grandmother must find a big pancake.", "Meine Großmutter muss eine große Palatschinke finden."),
        ("Now we talk about a beautiful coat.", "Jetzt sprechen wir über einen schönen Mantel."),
        ("Maria will clean it soon.", "Maria wird ihn bald putzen."),
        ("Yesterday my sister saw it in the room.", "Gestern hat meine Schwester ihn im Zimmer gesehen."),
    ],
}
GENDER = {noun.en: noun.gender for noun in lex.TOPICS.items}


@cache
def sample() -> tuple[EmbeddedDocument, ...]:
    return tuple(generate(2500))


def words(sentence: str) -> list[str]:
    return re.findall(r"\w+", sentence)


def target(document: EmbeddedDocument) -> tuple[str, ...]:
    assert document.document.tgt is not None
    return document.document.tgt


@pytest.mark.parametrize("id", GOLDEN)
def test_golden_documents(id: str) -> None:
    made = document_from_id(id)
    assert list(zip(made.document.src, target(made), strict=True)) == GOLDEN[id]


def test_annotations_of_a_golden_document() -> None:
    notes = document_from_id("embedded/seed=0/valid/sentences=6-9/1").annotations
    assert [(note.kind, note.sentence, note.expected, note.wrong, note.distance, note.gap) for note in notes] == [
        ("pronoun", 2, ("sie",), ("er", "ihn", "es"), 1, 1),
        ("term", 6, ("Mistkübel",), ("Mülleimer",), 6, 6),
        ("pronoun", 7, ("sie",), ("er", "ihn", "es"), 6, 5),
    ]


@pytest.mark.parametrize("split", SPLITS)
def test_random_access_equals_iteration(split: Split) -> None:
    listed = list(generate(30, seed=7, split=split, sentences=(3, 9)))
    assert [document_at(index, seed=7, split=split, sentences=(3, 9)) for index in reversed(range(30))] == listed[::-1]
    assert [document_from_id(document.document.id) for document in listed] == listed


def test_seed_and_split_change_the_documents() -> None:
    texts = {
        tuple(document.document.src for document in generate(5, seed=seed, split=split))
        for seed in (0, 1, -1)
        for split in SPLITS
    }
    assert len(texts) == 9


@given(
    seed=st.integers(-(10**9), 10**9), low=st.integers(2, 200), more=st.integers(0, 198), split=st.sampled_from(SPLITS)
)
@settings(max_examples=40, deadline=None)
def test_lengths_and_annotations_stay_in_bounds(seed: int, low: int, more: int, split: Split) -> None:
    high = min(200, low + more)
    made = document_at(3, seed=seed, split=split, sentences=(low, high))
    assert low <= len(made.document.src) == len(target(made)) <= high
    for note in made.annotations:
        assert 0 < note.gap <= note.distance <= note.sentence < len(made.document.src)


def test_text_is_plain() -> None:
    pattern = re.compile(r"[A-ZÄÖÜ][A-Za-zäöüßÄÖÜ]*(,? [A-Za-zäöüßÄÖÜ]+)*[.?]")
    sentences = {sentence for document in sample() for sentence in (*document.document.src, *target(document))}
    assert [sentence for sentence in sentences if not pattern.fullmatch(sentence)] == []


def test_it_is_always_the_topic_introduced_last() -> None:
    """Reads the English text alone, as a model would, and finds every pronoun's gender from it."""
    checked = 0
    for document in sample():
        topic = ""
        notes = {note.sentence: note for note in document.annotations if note.kind == "pronoun"}
        for number, (english, german) in enumerate(zip(document.document.src, target(document), strict=True)):
            topic = next((word for word in words(english) if word in GENDER), topic)
            has_it = "it" in words(english.lower())
            pronouns = [word for word in words(german.lower()) if word in ("er", "sie", "es", "ihn")]
            assert has_it == bool(pronouns) == (number in notes)
            if has_it:
                assert pronouns == list(notes[number].expected)
                assert pronouns[0] in PRONOUNS[GENDER[topic]]
                checked += 1
    assert checked > 5000


def test_terms_follow_the_audience() -> None:
    german = {term.en: (term.germany, term.austria) for term in lex.TERMS}
    seen: Counter[tuple[str, Variety]] = Counter()
    for document in sample():
        text = " ".join(document.document.src)
        variety = Variety.AUSTRIA if "Austria" in text else Variety.GERMANY if "Germany" in text else None
        used = [word for word in words(text) if word in german]
        if variety is None:
            assert used == []
            continue
        translated = words(" ".join(target(document)))
        for term in lex.TERMS:
            assert not set(term.wrong_forms(variety)) & set(translated)
        notes = [note for note in document.annotations if note.kind == "term"]
        assert len(notes) == len(used)
        assert all(form in words(target(document)[note.sentence]) for note in notes for form in note.expected)
        seen.update((word, variety) for word in used)
    assert len(seen) == 2 * len(lex.TERMS)


def test_a_sentence_has_one_translation_once_gender_and_variety_are_known() -> None:
    translations: defaultdict[tuple[Any, ...], set[str]] = defaultdict(set)
    for document in sample():
        for number, (english, german) in enumerate(zip(document.document.src, target(document), strict=True)):
            answers = [note.expected for note in document.annotations if note.sentence == number]
            translations[(english, *answers)].add(german)
    assert [pair for pair in translations.items() if len(pair[1]) > 1] == []


def test_nobody_occurs_twice_in_a_sentence() -> None:
    names = [person.en for person in lex.RECIPIENTS] + ["the boy"]
    sentences = {sentence for document in sample() for sentence in document.document.src}
    twice = [s for s in sentences if any(len(re.findall(rf"\b{name}\b", s, re.IGNORECASE)) > 1 for name in names)]
    assert twice == []


def test_genders_are_balanced_and_not_told_by_the_sentence() -> None:
    genders: Counter[str] = Counter()
    by_sentence: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for document in sample():
        for note in document.annotations:
            if note.kind == "pronoun":
                gender = {"ihn": "m", "er": "m", "sie": "f", "es": "n"}[note.expected[0]]
                genders[gender] += 1
                by_sentence[document.document.src[note.sentence]][gender] += 1
    total = sum(genders.values())
    assert all(abs(count / total - 1 / 3) < 0.02 for count in genders.values())
    frequent = [counts for counts in by_sentence.values() if sum(counts.values()) >= 60]
    assert len(frequent) > 5
    assert all(max(counts.values()) / sum(counts.values()) < 0.65 for counts in frequent)


def test_pronouns_are_frequent_and_distances_wide() -> None:
    sentences = sum(len(document.document.src) for document in sample())
    distances = [note.distance for document in sample() for note in document.annotations if note.kind == "pronoun"]
    assert 0.3 < len(distances) / sentences < 0.5
    assert sum(distance >= 5 for distance in distances) / len(distances) > 0.3
    long = [note for document in generate(10, sentences=(200, 200)) for note in document.annotations]
    assert max(note.distance for note in long if note.kind == "pronoun") > 40


def test_the_vocabulary_is_a_few_hundred_words() -> None:
    english = {word.lower() for document in sample() for sentence in document.document.src for word in words(sentence)}
    german = {word.lower() for document in sample() for sentence in target(document) for word in words(sentence)}
    assert 250 < len(english) < 300
    assert 300 < len(german) < 350


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": -1}, "count must be"),
        ({"count": 1.5}, "count must be"),
        ({"count": 1, "seed": "0"}, "seed must be"),
        ({"count": 1, "split": "tset"}, "did you mean 'test'"),
        ({"count": 1, "sentences": (1, 5)}, "2 <= low <= high <= 200"),
        ({"count": 1, "sentences": (9, 5)}, "2 <= low <= high <= 200"),
        ({"count": 1, "sentences": (2, 201)}, "2 <= low <= high <= 200"),
        ({"count": 1, "sentences": (2,)}, "2 <= low <= high <= 200"),
        ({"count": 1, "sentences": 5}, "2 <= low <= high <= 200"),
        ({"count": 1, "sentences": (2.0, 5.0)}, "2 <= low <= high <= 200"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        generate(**arguments)


def test_wrong_index_and_id_are_refused() -> None:
    with pytest.raises(ArgumentError, match="index must be"):
        document_at(-1)
    with pytest.raises(ArgumentError, match="not the id of an embedded document"):
        document_from_id("europarl/17")
    with pytest.raises(ArgumentError, match="did you mean 'train'"):
        document_from_id("embedded/seed=0/trian/sentences=2-3/0")


def test_no_documents() -> None:
    assert list(generate(0)) == []
