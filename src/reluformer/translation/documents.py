"""Documents of any length through a model that reads windows of a certain length.

A document is cut at sentence borders into windows of at most so many source tokens. Each
window begins with the last sentences before it and, as a forced prefix of the target,
their translations: so pronouns keep their antecedents and terms their translations. Every
sentence comes back as exactly one sentence. One that is longer than a window is cut
between words, and the translations of its pieces are joined; a blank one stays blank.

The windows of a document follow each other, those of different documents share batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from reluformer.translation.beam_search import Hypothesis, Outline, Search, beam_search
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.stepper import AnyStepper
from reluformer.translation.tokenizer import END, PAD, SEPARATOR, Tokenizer

TRAINED_WINDOW = 512
"""Source tokens of a window where neither the configuration nor the run says more."""

ReportProgress = Callable[[int, int], None]
"""Called with the sentences translated so far and the sentences in all."""


@dataclass(frozen=True)
class Translation:
    """A translated document."""

    sentences: tuple[str, ...]
    score: float
    """Log-probability of all windows together, each given the translations that it began with."""


def translate_documents(
    stepper: AnyStepper,
    tokenizer: Tokenizer,
    documents: Sequence[Sequence[str]],
    config: DecodingConfig,
    report: ReportProgress | None = None,
) -> list[list[Translation]]:
    """The n best translations of each document, best first.

    Those of a document of many windows are put together from the n best of each window,
    all of which began with the best translations of the windows before.
    """
    passages = [Passage(document, tokenizer, config) for document in documents]
    total = sum(map(len, documents))
    waiting = [passage for passage in passages if not passage.done]
    while waiting:
        for batch in _batches(waiting, config.batch_tokens):
            windows = [passage.window() for passage in batch]
            source, mask = padded([window.source for window in windows], stepper.device)
            outlines = [window.outline for window in windows]
            found = beam_search(stepper, source, mask, config=config, outlines=outlines)
            for passage, hypotheses in zip(batch, found, strict=True):
                passage.accept(hypotheses)
            if report is not None:
                report(sum(passage.finished_sentences for passage in passages), total)
        waiting = [passage for passage in waiting if not passage.done]
    if report is not None:
        report(total, total)
    return [passage.translations() for passage in passages]


def stream_document(
    stepper: AnyStepper, tokenizer: Tokenizer, document: Sequence[str], config: DecodingConfig
) -> Iterator[str]:
    """The best translation a sentence at a time, each as soon as nothing can change it any more.

    A sentence is settled when every hypothesis that can still win begins with it, so the
    sentences are exactly those of `translate_documents`.
    """
    config = config.replace(n_best=1)
    passage = Passage(document, tokenizer, config)
    sent = 0
    while not passage.done:
        window = passage.window()
        source, mask = padded([window.source], stepper.device)
        search = Search(stepper, source, mask, [window.outline], config)
        while not search.done:
            search.advance()
            settled = passage.settled(search.settled(0))
            yield from settled[sent:]
            sent = max(sent, len(settled))
        passage.accept(search.finished[0])
    yield from passage.translations()[0].sentences[sent:]


@dataclass(frozen=True)
class Window:
    """What the model reads and must begin its answer with; units `first` to `stop` are new."""

    source: tuple[int, ...]
    outline: Outline
    first: int
    stop: int


class Passage:
    """A document on its way through the model, window after window.

    Its units are what the model takes for sentences: a sentence, or a piece of one that is
    longer than a window.
    """

    def __init__(self, document: Sequence[str], tokenizer: Tokenizer, config: DecodingConfig) -> None:
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
        """Every unit is translated."""
        return len(self._done) == len(self._units)

    @property
    def finished_sentences(self) -> int:
        """Sentences that are translated, blank ones included."""
        return sum(end <= len(self._done) for end in self._first_unit[1:])

    def window(self) -> Window:
        """The next window: context, then as many new units as fit, at least one."""
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
        """Take the translations of the window."""
        window, self._window = self.window(), None
        new = window.stop - window.first
        ranked = [hypotheses[min(rank, len(hypotheses) - 1)] for rank in range(self._config.n_best)]
        by_rank = [_split(hypothesis.tokens)[-new:] for hypothesis in ranked]
        self._done += [list(unit) for unit in zip(*by_rank, strict=True)]
        self._score = [total + hypothesis.score for total, hypothesis in zip(self._score, ranked, strict=True)]

    def translations(self) -> list[Translation]:
        """The n best translations of the whole document."""
        return [
            Translation(tuple(self._sentences([unit[rank] for unit in self._done])), score)
            for rank, score in enumerate(self._score)
        ]

    def settled(self, tokens: Sequence[int]) -> list[str]:
        """The sentences that are complete when the next window's target begins with `tokens`."""
        window = self.window()
        context = window.outline.prefix.count(SEPARATOR)
        new = _split(tokens)[context:-1]
        return self._sentences([*(unit[0] for unit in self._done), *new])

    def _sentences(self, units: Sequence[Sequence[int]]) -> list[str]:
        """As many sentences as `units` complete."""
        spans = [span for span in pairwise(self._first_unit) if span[1] <= len(units)]
        return [" ".join(self._tokenizer.decode(unit) for unit in units[start:stop]) for start, stop in spans]

    def _context(self, first: int) -> int:
        """The first unit of the context: at most half of a window goes to it, and the next unit must fit."""
        if self._size == "sentence" or first >= len(self._units):
            return first
        room = min(self._size // 2, self._size - len(self._units[first]) - 1)
        start = first
        while start > 0 and first - start < self._config.context_sentences and len(self._units[start - 1]) < room:
            start -= 1
            room -= len(self._units[start]) + 1
        return start

    def _pieces(self, sentence: str) -> list[list[int]]:
        """The tokens of a sentence; cut between words, or inside a word, where they exceed a window."""
        if not sentence.strip():
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
    """Token rows as one tensor (B, T), and which of it are tokens; None = all."""
    longest = max(map(len, rows), default=0)
    tokens = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.long, device=device)
    tokens = tokens.view(len(rows), longest)
    if all(len(row) == longest for row in rows):
        return tokens, None
    lengths = torch.tensor([[len(row)] for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) < lengths


def _batches(passages: Sequence[Passage], batch_tokens: int) -> Iterator[list[Passage]]:
    """Passages whose next windows are of similar length; at least one, at most `batch_tokens` with padding."""
    measured = []
    for number, passage in enumerate(passages):
        window = passage.window()
        measured.append((len(window.source), len(window.outline.prefix), number))
    measured.sort(reverse=True)
    start = 0
    while start < len(measured):
        stop = start + max(1, batch_tokens // measured[start][0])
        yield [passages[number] for _, _, number in measured[start:stop]]
        start = stop


def _joined(sentences: Sequence[Sequence[int]], last: int) -> tuple[int, ...]:
    """Sentences with separators between them and `last` behind the last one."""
    tokens = [token for sentence in sentences for token in (*sentence, SEPARATOR)]
    return (*tokens[:-1], last) if tokens else ()


def _split(tokens: Sequence[int]) -> list[tuple[int, ...]]:
    """The sentences between separators."""
    sentences: list[list[int]] = [[]]
    for token in tokens:
        if token == SEPARATOR:
            sentences.append([])
        else:
            sentences[-1].append(token)
    return [tuple(sentence) for sentence in sentences]
