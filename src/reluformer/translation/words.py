"""The words of a window of a document, and the tokens that each of them is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reluformer.translation.tokenizer import Tokenizer

SENTENCE_END, DOCUMENT_END = "<sep>", "<end>"


@dataclass(frozen=True)
class Word:
    """A word, or the mark behind a sentence, and the number of its sentence in the document."""

    text: str
    sentence: int
    is_mark: bool = False
    """Not of the text, which may hold the same letters: a token that ends a sentence or the window."""


def parts_of(tokenizer: Tokenizer, sentences: Sequence[str], window: int | str | None) -> Iterator[list[str]]:
    """Neighbouring sentences that fit into a window; a longer sentence alone."""
    from reluformer.translation.documents import TRAINED_WINDOW

    most = 0 if window == "sentence" else int(window or TRAINED_WINDOW)
    part: list[str] = []
    room = most
    for sentence, tokens in zip(sentences, tokenizer.encode_batch(sentences), strict=True):
        if part and len(tokens) + 1 > room:
            yield part
            part, room = [], most
        part.append(sentence)
        room -= len(tokens) + 1
    if part:
        yield part


def laid_out(tokenizer: Tokenizer, sentences: Sequence[str], first: int) -> tuple[list[tuple[int, int]], list[Word]]:
    """The tokens of a window, each with the place of its word, and the words; `first` numbers its sentences.

    The tokenizer never joins text across white space, so words are encoded one by one.
    """
    from reluformer.translation.tokenizer import END, SEPARATOR

    tokens: list[tuple[int, int]] = []
    words: list[Word] = []
    for number, sentence in enumerate(sentences, first):
        split = sentence.split()
        for word, pieces in zip(split, tokenizer.encode_batch(split), strict=True):
            tokens += [(piece, len(words)) for piece in pieces]
            words.append(Word(word, number))
        last = number == first + len(sentences) - 1
        tokens.append((END if last else SEPARATOR, len(words)))
        words.append(Word(DOCUMENT_END if last else SENTENCE_END, number, is_mark=True))
    return tokens, words
