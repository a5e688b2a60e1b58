"""Translation of documents of any length with a model that reads windows of limited length.

A document is cut at sentence borders into windows of source tokens. Each window begins with
the last sentences before it; their translations are a forced prefix of its target. So
pronouns keep their antecedents and terms their translations. Every sentence comes back as
exactly one sentence. A sentence that is longer than a window is cut between words, and the
translations of its pieces are joined. A sentence without letters, such as `1,234` or an emoji, is
copied, and the model never sees it.

The windows of one document are translated in order. Windows of different documents share batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from reluformer.translation.beam_search import Hypothesis, Outline, Search, beam_search
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.sentence import has_letters
from reluformer.translation.stepper import AnyStepper
from reluformer.translation.tokenizer import END, PAD, SEPARATOR, Tokenizer

TRAINED_WINDOW = 512
"""The source tokens of a window, unless the configuration or the run says otherwise."""

ReportProgress = Callable[[int, int], None]
"""Is called with the number of translated sentences and the number of all sentences."""


@dataclass(frozen=True)
class Translation:
    """A translated document."""

    sentences: tuple[str, ...]
    score: float
    """The log-probability of all windows together, each given the translations that it began with."""


def translate_documents(
    stepper: AnyStepper,
    tokenizer: Tokenizer,
    documents: Sequence[Sequence[str]],
    config: DecodingConfig,
    report: ReportProgress | None = None,
) -> list[list[Translation]]:
    """Translates documents.

    The n best translations of a long document are joined from the n best of each window.
    Every window begins with the best translations of the windows before it.

    Args:
        stepper: The decoder.
        tokenizer: The tokenizer of its model.
        documents: Lists of sentences.
        config: How to search, and the size of windows and batches.
        report: Is called after each batch.

    Returns:
        The `config.n_best` translations of each document, best first.
    """
    windowed = [WindowedDocument(document, tokenizer, config) for document in documents]
    total = sum(map(len, documents))
    waiting = [document for document in windowed if not document.done]
    while waiting:
        for batch in _batches(waiting, config.batch_tokens):
            windows = [document.window() for document in batch]
            source, mask = padded([window.source for window in windows], stepper.device)
            outlines = [window.outline for window in windows]
            found = beam_search(stepper, source, mask, config=config, outlines=outlines)
            for document, hypotheses in zip(batch, found, strict=True):
                document.accept(hypotheses)
            if report is not None:
                report(sum(document.finished_sentences for document in windowed), total)
        waiting = [document for document in waiting if not document.done]
    if report is not None:
        report(total, total)
    return [document.translations() for document in windowed]


def stream_document(
    stepper: AnyStepper, tokenizer: Tokenizer, document: Sequence[str], config: DecodingConfig
) -> Iterator[str]:
    """Yields the sentences of the best translation, each as soon as nothing can change it.

    A sentence is settled when every hypothesis that can still win begins with it, so the
    sentences are exactly those of `translate_documents`.
    """
    config = config.replace(n_best=1)
    windowed = WindowedDocument(document, tokenizer, config)
    sent = 0
    while not windowed.done:
        window = windowed.window()
        source, mask = padded([window.source], stepper.device)
        search = Search(stepper, source, mask, [window.outline], config)
        while not search.done:
            search.advance()
            settled = windowed.settled(search.settled(0))
            yield from settled[sent:]
            sent = max(sent, len(settled))
        windowed.accept(search.finished[0])
    yield from windowed.translations()[0].sentences[sent:]


@dataclass(frozen=True)
class Window:
    """What the model reads, and the outline of its target. The units from `first` to before `stop` are new."""

    source: tuple[int, ...]
    outline: Outline
    first: int
    stop: int


class WindowedDocument:
    """A document that is translated window by window.

    It consists of units, which the model takes for sentences. A unit is a sentence, or a
    piece of a sentence that is longer than a window.

    Args:
        document: The sentences.
        tokenizer: The tokenizer of the model.
        config: The size of a window, its context, and the number of translations.
    """

    def __init__(self, document: Sequence[str], tokenizer: Tokenizer, config: DecodingConfig) -> None:
        self._document = document
        self._tokenizer = tokenizer
        self._config = config
        self._size = TRAINED_WINDOW if config.window_tokens is None else config.window_tokens
        self._units: list[list[int]] = []
        self._first_unit = [0]  # of each sentence, and where the last one ends
        for sentence in document:
            self._units += self._pieces(sentence)
            self._first_unit.append(len(self._units))
        self._done: list[list[tuple[int, ...]]] = []  # of each unit: its n best translations
        self._score = [0.0] * config.n_best
        self._window: Window | None = None

    @property
    def done(self) -> bool:
        """Whether every unit is translated."""
        return len(self._done) == len(self._units)

    @property
    def finished_sentences(self) -> int:
        """The number of translated sentences, copied ones included."""
        return sum(end <= len(self._done) for end in self._first_unit[1:])

    def window(self) -> Window:
        """Returns the next window: its context, then as many new units as fit, at least one."""
        if self._window is None:
            self._window = self._next_window()
        return self._window

    def _next_window(self) -> Window:
        first = len(self._done)
        context = self._context(first)
        stop = first + 1
        if self._size != "sentence":
            room = self._size - sum(len(unit) + 1 for unit in self._units[context:stop])
            while stop < len(self._units) and len(self._units[stop]) + 1 <= room:
                room -= len(self._units[stop]) + 1
                stop += 1
        source = _joined(self._units[context:stop], END)
        prefix = _joined([best[0] for best in self._done[context:first]], SEPARATOR)
        return Window(source, Outline.of(source, self._config, prefix), first, stop)

    def accept(self, hypotheses: Sequence[Hypothesis]) -> None:
        """Takes the translations of the window, best first, and moves on to the next one."""
        window, self._window = self.window(), None
        new = window.stop - window.first
        ranked = [hypotheses[min(rank, len(hypotheses) - 1)] for rank in range(self._config.n_best)]
        by_rank = [_split(hypothesis.tokens)[-new:] for hypothesis in ranked]
        self._done += [list(unit) for unit in zip(*by_rank, strict=True)]
        self._score = [total + hypothesis.score for total, hypothesis in zip(self._score, ranked, strict=True)]

    def translations(self) -> list[Translation]:
        """Returns the n best translations of the whole document."""
        return [
            Translation(tuple(self._sentences([unit[rank] for unit in self._done])), score)
            for rank, score in enumerate(self._score)
        ]

    def settled(self, tokens: Sequence[int]) -> list[str]:
        """Returns the sentences that are complete if the target of the window begins with `tokens`."""
        window = self.window()
        context = window.outline.prefix.count(SEPARATOR)
        new = _split(tokens)[context:-1]
        return self._sentences([*(unit[0] for unit in self._done), *new])

    def _sentences(self, units: Sequence[Sequence[int]]) -> list[str]:
        """Returns the sentences that `units` complete."""
        spans = [span for span in pairwise(self._first_unit) if span[1] <= len(units)]
        return [
            " ".join(map(self._tokenizer.decode, units[start:stop])) if stop > start else sentence
            for sentence, (start, stop) in zip(self._document, spans, strict=False)
        ]

    def _context(self, first: int) -> int:
        """Returns the first unit of the context, which takes at most half of a window and leaves room for a unit."""
        if self._size == "sentence" or first >= len(self._units):
            return first
        room = min(self._size // 2, self._size - len(self._units[first]) - 1)
        start = first
        while start > 0 and first - start < self._config.context_sentences and len(self._units[start - 1]) < room:
            start -= 1
            room -= len(self._units[start]) + 1
        return start

    def _pieces(self, sentence: str) -> list[list[int]]:
        """Returns the tokens of a sentence. Where they exceed a window, they are cut between or inside words."""
        if not has_letters(sentence):
            return []
        tokens = self._tokenizer.encode(sentence)
        most = (TRAINED_WINDOW if self._size == "sentence" else self._size) - 1
        if len(tokens) <= most:
            return [tokens]
        pieces: list[list[int]] = [[]]
        for word in self._tokenizer.encode_batch(sentence.split()):
            if len(pieces[-1]) + len(word) > most and pieces[-1]:
                pieces.append([])
            pieces[-1] += word
            while len(pieces[-1]) > most:
                pieces[-1:] = [pieces[-1][:most], pieces[-1][most:]]
        return pieces


def padded(rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor | None]:
    """Pads rows of tokens to one length.

    Returns:
        The tokens (B, T), and a mask (B, T) that is True at tokens, or None where nothing is padded.
    """
    longest = max(map(len, rows), default=0)
    tokens = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.long, device=device)
    tokens = tokens.view(len(rows), longest)
    if all(len(row) == longest for row in rows):
        return tokens, None
    lengths = torch.tensor([[len(row)] for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) < lengths


def _batches(documents: Sequence[WindowedDocument], batch_tokens: int) -> Iterator[list[WindowedDocument]]:
    """Yields documents whose next windows have similar lengths; a batch has at most `batch_tokens` with padding."""
    measured = []
    for number, document in enumerate(documents):
        window = document.window()
        measured.append((len(window.source), len(window.outline.prefix), number))
    measured.sort(reverse=True)
    start = 0
    while start < len(measured):
        stop = start + max(1, batch_tokens // measured[start][0])
        yield [documents[number] for _, _, number in measured[start:stop]]
        start = stop


def _joined(sentences: Sequence[Sequence[int]], last: int) -> tuple[int, ...]:
    """Joins sentences with separators, and `last` behind the last one."""
    tokens = [token for sentence in sentences for token in (*sentence, SEPARATOR)]
    return (*tokens[:-1], last) if tokens else ()


def _split(tokens: Sequence[int]) -> list[tuple[int, ...]]:
    """Splits tokens at separators into sentences."""
    sentences: list[list[int]] = [[]]
    for token in tokens:
        if token == SEPARATOR:
            sentences.append([])
        else:
            sentences[-1].append(token)
    return [tuple(sentence) for sentence in sentences]
