"""The generator: a document is a pure function of (seed, split, index, range of lengths)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reluformer.errors import ArgumentError, nearest
from reluformer.translation.document import Document
from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.discourse import Annotation, EmbeddedDocument
from reluformer.translation.embedded.grammar import PRONOUNS, Gender, Noun, Phrase, Variety
from reluformer.translation.embedded.scene import SPLITS, Draws, Scene, belongs_to_valid
from reluformer.translation.embedded.sentences import aside, audience, introduction, mention
from reluformer.translation.recipe import Split

MIN_SENTENCES, MAX_SENTENCES = 2, 200
_ID = re.compile(r"embedded/seed=(-?\d+)/(\w+)/sentences=(\d+)-(\d+)/(\d+)")
_GENDERS = tuple(Gender)
_TOPIC_SPANS = (3, 4, 5, 6, 8, 10, 13, 17, 22, 30, 40, 60)
_MENTION_RATES = (0.25, 0.5, 0.75)
_AUDIENCE_RATE, _AUDIENCE_FIRST_RATE = 0.75, 0.7
_PRONOUN_FORMS = tuple(dict.fromkeys(form for forms in PRONOUNS.values() for form in forms))


def generate(
    count: int, *, seed: int = 0, split: Split = "train", sentences: tuple[int, int] = (2, 20)
) -> Iterator[EmbeddedDocument]:
    """Generates the first `count` documents of a split.

    Args:
        count: How many documents to generate.
        seed: Another seed gives other documents.
        split: `train`, `valid` or `test`.
        sentences: The fewest and the most sentences of a document, from 2 to 200.

    Returns:
        An iterator of documents with their annotations.

    Raises:
        ArgumentError: An argument is of the wrong type or out of range.

    Example:
        >>> from reluformer.translation.embedded import generate
        >>> [len(document.document.src) for document in generate(2, sentences=(3, 3))]
        [3, 3]
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ArgumentError(f"count must be a whole number of documents, 0 or more, got {count!r}")
    _check(seed, split, sentences)
    return (_document(index, seed, split, sentences) for index in range(count))


def document_at(
    index: int, *, seed: int = 0, split: Split = "train", sentences: tuple[int, int] = (2, 20)
) -> EmbeddedDocument:
    """Generates the document that `generate` yields at `index`, without those before it.

    Example:
        >>> from reluformer.translation.embedded import document_at
        >>> document_at(1, split="valid", sentences=(6, 9)).document.tgt[2]
        'Sie ist sehr teuer.'
    """
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ArgumentError(f"index must be a whole number, 0 or more, got {index!r}")
    _check(seed, split, sentences)
    return _document(index, seed, split, sentences)


def document_from_id(id: str) -> EmbeddedDocument:
    """Generates the document, with its annotations, that has this `document.id`."""
    match = _ID.fullmatch(id)
    if match is None:
        raise ArgumentError(
            f"{id!r} is not the id of an embedded document; "
            "expected 'embedded/seed=<seed>/<split>/sentences=<low>-<high>/<index>'"
        )
    seed, split, low, high, index = match.groups()
    for name in SPLITS:
        if name == split:
            return document_at(int(index), seed=int(seed), split=name, sentences=(int(low), int(high)))
    raise ArgumentError(f"unknown split {split!r} in {id!r}; {nearest(split, SPLITS)}")


def _check(seed: int, split: Split, sentences: tuple[int, int]) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ArgumentError(f"seed must be a whole number, got {seed!r}")
    if split not in SPLITS:
        raise ArgumentError(f"unknown split {split!r}; {nearest(str(split), SPLITS)}")
    pair = isinstance(sentences, tuple | list) and len(sentences) == 2 and all(type(end) is int for end in sentences)
    if not pair or not MIN_SENTENCES <= sentences[0] <= sentences[1] <= MAX_SENTENCES:
        raise ArgumentError(
            f"sentences must be (low, high) with {MIN_SENTENCES} <= low <= high <= {MAX_SENTENCES}, got {sentences!r}"
        )


def _document(index: int, seed: int, split: Split, sentences: tuple[int, int]) -> EmbeddedDocument:
    """Draws until the text belongs to the split: by its content (train, valid) or its novelty (test).

    The gender of the first topic goes by the index, so that any run of documents is balanced.
    """
    low, high = sentences
    id = f"embedded/seed={seed}/{split}/sentences={low}-{high}/{index}"
    length = Draws(id, split).between(low, high)
    attempt = 0
    while True:
        draws = Draws(f"{id}/{attempt}", split)
        draft = _Draft(draws, length, _GENDERS[index % len(_GENDERS)])
        texts = draft.texts
        if draws.novel > 0 if split == "test" else belongs_to_valid([text.en for text in texts]) == (split == "valid"):
            document = Document(id, tuple(text.en for text in texts), tuple(text.de for text in texts))
            return EmbeddedDocument(document, tuple(draft.annotations))
        attempt += 1


class _Draft:
    """A draft is a document while it is written, sentence by sentence."""

    def __init__(self, draws: Draws, length: int, first_gender: Gender) -> None:
        self.texts: list[Phrase] = []
        self.annotations: list[Annotation] = []
        self._draws = draws
        self._scene = Scene(draws)
        self._audience_at = self._variety_shown = 0
        self._topic: Noun | None = None
        self._first_gender = first_gender
        self._topic_at = self._gender_shown = self._topic_until = 0
        self._mention_rate = 0.0
        self._open(length)
        while len(self.texts) < length:
            self._continue(length)

    def _open(self, length: int) -> None:
        """Writes audience and first topic, in either order; the shortest documents have room for one of them."""
        openings = [self._introduce]
        if self._draws.chance(_AUDIENCE_RATE):
            openings.insert(0 if self._draws.chance(_AUDIENCE_FIRST_RATE) else 1, self._address)
        for opening in openings[: length - 1]:
            opening()

    def _continue(self, length: int) -> None:
        here = len(self.texts)
        if self._topic is not None and here >= self._topic_until and here < length - 1:
            self._introduce()
        elif self._topic is not None and self._draws.chance(self._mention_rate):
            self._mention(self._topic)
        else:
            self._write(aside(self._scene))

    def _address(self) -> None:
        variety = self._draws.pick(tuple(Variety))
        self._audience_at = self._variety_shown = len(self.texts)
        self._write(audience(self._scene, variety))
        self._scene.variety = variety

    def _introduce(self) -> None:
        if self._topic is None:
            choices = [noun for noun in lex.TOPICS.items if noun.gender is self._first_gender]
        else:
            choices = [noun for noun in lex.TOPICS.items if noun is not self._topic]
        topic = self._draws.pick(choices)
        self._topic_at = self._gender_shown = len(self.texts)
        self._mention_rate = self._draws.pick(_MENTION_RATES)
        self._topic_until = len(self.texts) + self._draws.pick(_TOPIC_SPANS)
        self._write(introduction(self._scene, topic, first=self._topic is None))
        self._topic = topic

    def _mention(self, topic: Noun) -> None:
        made = mention(self._scene, topic)
        here = len(self.texts)
        wrong = tuple(form for form in _PRONOUN_FORMS if form != made.form)
        note = Annotation("pronoun", here, (made.form,), wrong, here - self._topic_at, here - self._gender_shown)
        self.annotations.append(note)
        self._gender_shown = here
        self._write(made.text)

    def _write(self, text: Phrase) -> None:
        """Adds the sentence, with notes on the terms that were used for it."""
        here = len(self.texts)
        for use in self._scene.terms:
            distance, gap = here - self._audience_at, here - self._variety_shown
            self.annotations.append(Annotation("term", here, (use.form,), use.wrong, distance, gap))
        if self._scene.terms:
            self._variety_shown = here
            self._scene.terms.clear()
        self.texts.append(text)
