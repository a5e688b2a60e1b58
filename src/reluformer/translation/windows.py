"""Translation of documents of any length with a model that reads windows of limited length.

A document is cut at sentence borders into windows of source tokens. Each window begins with
the last sentences before it; their translations are a forced prefix of its target. So
pronouns keep their antecedents and terms their translations. Every sentence comes back as
exactly one sentence. A sentence that is longer than a window is cut between words, and the
translations of its pieces are joined. A sentence without words, such as `1,234`, `x = y` or an emoji, is
copied, and the model never sees it.

The model may still write the translation of one sentence in the place of another. Cross-attention
shows it: the tokens of a translation then read another sentence more than their own. Such a
sentence is translated anew, by itself, and is marked as doubtful (`DecodingConfig.check_alignment`).

The windows of one document are translated in order. Windows of different documents share batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from reluformer.translation.alignment import Shares, WindowReads, read_windows
from reluformer.translation.beam_search import start_search
from reluformer.translation.document import Alignment, Range, TranslatedSentence, has_letters
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.search import Hypothesis, Outline, Search, Settled
from reluformer.translation.stepper import Decoder
from reluformer.translation.tokenizer import END, SEPARATOR, Tokenizer

TRAINED_WINDOW = 512
"""The source tokens of a window, unless the configuration or the run says otherwise."""

MOST_ALIGNED = 2**20
"""A sentence keeps its alignment if it has at most so many pairs of a source and a target token."""

ReportProgress = Callable[[int, int], None]
"""Is called with the number of translated sentences and the number of all sentences."""


@dataclass(frozen=True)
class Translation:
    """A translated document."""

    translated: tuple[TranslatedSentence, ...]
    score: float
    """The log-probability of all windows together, each given the translations that it began with. Sentences that
    were translated anew by themselves count as the window had them."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The translation of each sentence."""
        return tuple(sentence.text for sentence in self.translated)


def translate_documents(
    decoder: Decoder,
    tokenizer: Tokenizer,
    documents: Sequence[Sequence[str]],
    config: DecodingConfig,
    report: ReportProgress | None = None,
    aligned: Sequence[bool] | None = None,
) -> list[list[Translation]]:
    """Translates documents.

    The n best translations of a long document are joined from the n best of each window.
    Every window begins with the best translations of the windows before it.

    Args:
        decoder: The decoder.
        tokenizer: The tokenizer of its model.
        documents: Lists of sentences.
        config: How to search, and the size of windows and batches.
        report: Is called whenever windows are finished.
        aligned: Whether the sentences of each document need their alignments; by default none does.

    Returns:
        The `config.n_best` translations of each document, best first.
    """
    wanted = aligned or [False] * len(documents)
    windowed = [
        WindowedDocument(document, tokenizer, config, needs) for document, needs in zip(documents, wanted, strict=True)
    ]
    total, finished = sum(map(len, documents)), sum(document.finished_sentences for document in windowed)
    search = start_search(decoder, config)
    decoding: dict[int, WindowedDocument] = {}

    def add(document: WindowedDocument) -> None:
        decoding[add_window(search, document)] = document

    waiting = [document for document in windowed if not document.done]
    for document in sorted(waiting, key=lambda document: len(document.window().source), reverse=True):
        add(document)
    while decoding:
        numbers = search.run()
        batch = [decoding.pop(number) for number in numbers]
        finished -= sum(document.finished_sentences for document in batch)
        accept_windows(decoder, batch, [search.hypotheses(number) for number in numbers])
        finished += sum(document.finished_sentences for document in batch)
        for document in batch:
            if not document.done:
                add(document)
        if report is not None and batch:
            report(finished, total)
    if report is not None:
        report(total, total)
    return [document.translations() for document in windowed]


def add_window(search: Search, document: WindowedDocument) -> int:
    """Adds the next window of a document to a search; returns its number."""
    window = document.window()
    return search.add(window.source, window.outline, document.needs_reads and not document.aligned)


def accept_windows(
    decoder: Decoder, documents: Sequence[WindowedDocument], found: Sequence[Sequence[Hypothesis]]
) -> None:
    """Gives each document the hypotheses of its window, with what they read where that is needed.

    A search that sums its reads by sentence has stored them in its hypotheses. One batch computes all others.

    Args:
        decoder: The decoder that found them.
        documents: The documents whose windows were translated.
        found: The hypotheses of each window, best first.
    """
    reads: dict[int, list[WindowReads]] = {}
    unknown: dict[bool, list[int]] = {False: [], True: []}
    for number, document in enumerate(documents):
        told = [one.reads for one in found[number] if one.reads is not None]
        if not document.needs_reads:
            continue
        if len(told) == len(found[number]) and not document.aligned:
            reads[number] = [WindowReads(shares) for shares in told]
        else:
            unknown[document.aligned].append(number)
    for by_token, numbers in unknown.items():
        pairs = [(documents[number].window().source, one.tokens) for number in numbers for one in found[number]]
        read = read_windows(decoder, [one for one, _ in pairs], [one for _, one in pairs], by_token)
        remaining = iter(read or ())
        if read is not None:
            reads.update((number, [next(remaining) for _ in found[number]]) for number in numbers)
    for number, (document, hypotheses) in enumerate(zip(documents, found, strict=True)):
        document.accept(hypotheses, reads.get(number))


def stream_document(
    decoder: Decoder, tokenizer: Tokenizer, document: Sequence[str], config: DecodingConfig, aligned: bool = False
) -> Iterator[TranslatedSentence]:
    """Yields the sentences of the best translation, each as soon as nothing can change it.

    A sentence is settled when every hypothesis that can still win begins with it, and when it did
    not read another sentence. So the sentences are exactly those of `translate_documents`.
    """
    config = config.replace(n_best=1)
    windowed = WindowedDocument(document, tokenizer, config, aligned)
    sent = 0
    while not windowed.done:
        search = start_search(decoder, config)
        number = add_window(search, windowed)
        while not search.ended(number):
            search.advance()
            settled = windowed.settled(decoder, search.settled(number))
            yield from settled[sent:]
            sent = max(sent, len(settled))
        accept_windows(decoder, [windowed], [search.hypotheses(number)])
    yield from windowed.translations()[0].translated[sent:]


@dataclass(frozen=True)
class Window:
    """What the model reads, and the outline of its target. The units from `first` to before `stop` are new."""

    source: tuple[int, ...]
    outline: Outline
    first: int
    stop: int


@dataclass(frozen=True)
class SourceUnit:
    """What the model takes for a sentence: a sentence, or a piece of one that is longer than a window."""

    tokens: list[int]
    ranges: tuple[Range, ...] = ()
    """Where the tokens stand in the sentence; empty if no alignment is wanted."""


@dataclass(frozen=True)
class TargetUnit:
    """The translation of a unit."""

    tokens: tuple[int, ...]
    reads: Shares | None = None
    """What its tokens read of their own source unit, (T, S), where that is known and wanted."""
    misread: bool = False
    """Whether its tokens read another unit more than their own."""


class WindowedDocument:
    """A document that is translated window by window.

    Args:
        document: The sentences.
        tokenizer: The tokenizer of the model.
        config: The size of a window, its context, and the number of translations.
        aligned: Whether sentences need their alignments.
    """

    def __init__(
        self, document: Sequence[str], tokenizer: Tokenizer, config: DecodingConfig, aligned: bool = False
    ) -> None:
        self._document = document
        self._tokenizer = tokenizer
        self._config = config
        self.aligned = aligned
        """Whether sentences need their alignments."""
        self._size = TRAINED_WINDOW if config.window_tokens is None else config.window_tokens
        self._units: list[SourceUnit] = []
        self._first_unit = [0]  # of each sentence, and where the last one ends
        for sentence in document:
            self._units += self._pieces(sentence)
            self._first_unit.append(len(self._units))
        self._done: list[list[TargetUnit]] = []  # of each unit: its n best translations
        self._misread: list[int] = []  # units that wait to be translated anew, in order
        self._anew: set[int] = set()  # units that were
        self._score = [0.0] * config.n_best
        self._window: Window | None = None
        self._begun: list[TargetUnit] = []  # of the window: what a stream knows already

    @property
    def done(self) -> bool:
        """Whether every unit is translated."""
        return len(self._done) == len(self._units) and not self._misread

    @property
    def finished_sentences(self) -> int:
        """The number of translated sentences, copied ones included."""
        final = self._final_units()
        return sum(end <= final for end in self._first_unit[1:])

    @property
    def needs_reads(self) -> bool:
        """Whether the translation of the window is to be compared with what it read."""
        window = self.window()
        several = window.outline.prefix.count(SEPARATOR) + window.stop - window.first > 1
        return self.aligned or (several and self._config.check_alignment)

    def window(self) -> Window:
        """Returns the next window: its context, then as many new units as fit, at least one.

        A unit that read another one comes first, in a window of its own.
        """
        if self._window is None:
            self._window = self._alone(self._misread[0]) if self._misread else self._next_window()
        return self._window

    def _alone(self, unit: int) -> Window:
        source = (*self._units[unit].tokens, END)
        return Window(source, Outline.of(source, self._config), unit, unit + 1)

    def _next_window(self) -> Window:
        first = len(self._done)
        context = self._context(first)
        stop = first + 1
        if self._size != "sentence":
            room = self._size - sum(len(unit.tokens) + 1 for unit in self._units[context:stop])
            while stop < len(self._units) and len(self._units[stop].tokens) + 1 <= room:
                room -= len(self._units[stop].tokens) + 1
                stop += 1
        source = _joined([unit.tokens for unit in self._units[context:stop]], END)
        prefix = _joined([best[0].tokens for best in self._done[context:first]], SEPARATOR)
        return Window(source, Outline.of(source, self._config, prefix), first, stop)

    def accept(self, hypotheses: Sequence[Hypothesis], reads: Sequence[WindowReads] | None = None) -> None:
        """Takes the translations of the window, and moves on to the next one.

        Args:
            hypotheses: The translations, best first.
            reads: What the tokens of each of them read, where that is known.
        """
        window = self.window()
        ranked = [min(rank, len(hypotheses) - 1) for rank in range(self._config.n_best)]
        by_rank = [
            self._target_units(hypotheses[number].tokens, None if reads is None else reads[number]) for number in ranked
        ]
        units = [list(unit) for unit in zip(*by_rank, strict=True)]
        self._window, self._begun = None, []
        if self._misread:
            self._anew.add(self._misread.pop(0))
            self._done[window.first] = units[0]
            return
        self._done += units
        self._score = [total + hypotheses[number].score for total, number in zip(self._score, ranked, strict=True)]
        self._misread = [number for number, unit in enumerate(units, window.first) if unit[0].misread]

    def _target_units(self, tokens: Sequence[int], reads: WindowReads | None) -> list[TargetUnit]:
        """Returns the new units of the window if its target is `tokens`, with what they read."""
        window = self.window()
        context = window.outline.prefix.count(SEPARATOR)
        rows = _split(tokens)
        if reads is None:
            return [TargetUnit(row) for row in rows[context:]]
        targets = _borders(rows)
        sources = _borders([unit.tokens for unit in self._units[window.first - context : window.stop]])
        found = []
        for number in range(context, len(rows)):
            rows_of_unit = slice(*targets[number])
            shares = reads.by_sentence[rows_of_unit].sum(0)
            misread = self._config.check_alignment and bool(shares.max() > shares[number])
            own = None if reads.by_token is None else reads.by_token[rows_of_unit, slice(*sources[number])].copy()
            found.append(TargetUnit(rows[number], own, misread))
        return found

    def translations(self) -> list[Translation]:
        """Returns the n best translations of the whole document."""
        return [
            Translation(tuple(self._sentences([unit[rank] for unit in self._done])), score)
            for rank, score in enumerate(self._score)
        ]

    def settled(self, decoder: Decoder, begun: Settled) -> list[TranslatedSentence]:
        """Returns the sentences that are final if the target of the window begins with `begun`.

        A sentence that read another one is not final before it was translated anew.

        Args:
            decoder: The decoder, which computes what the tokens read if the search has not stored it.
            begun: The first tokens of the target.
        """
        final = [unit[0] for unit in self._done[: self._final_units()]]
        if self._misread:
            return self._sentences(final)
        context = self.window().outline.prefix.count(SEPARATOR)
        complete = _split(begun.tokens)[:-1]
        if len(complete) - context > len(self._begun):
            tokens = _joined(complete, SEPARATOR)[:-1]
            reads = None
            if self.needs_reads and begun.reads is not None and not self.aligned:
                reads = [WindowReads(begun.reads)]
            elif self.needs_reads:
                reads = read_windows(decoder, [self.window().source], [tokens], self.aligned)
            self._begun = self._target_units(tokens, None if reads is None else reads[0])
        for unit in self._begun:
            if unit.misread:
                break
            final.append(unit)
        return self._sentences(final)

    def _final_units(self) -> int:
        """Returns how many units, from the first on, no window can change any more."""
        return self._misread[0] if self._misread else len(self._done)

    def _sentences(self, units: Sequence[TargetUnit]) -> list[TranslatedSentence]:
        """Returns the sentences that `units` complete."""
        spans = [span for span in pairwise(self._first_unit) if span[1] <= len(units)]
        return [
            self._sentence(units[start:stop], start) if stop > start else TranslatedSentence(sentence)
            for sentence, (start, stop) in zip(self._document, spans, strict=False)
        ]

    def _sentence(self, units: Sequence[TargetUnit], first: int) -> TranslatedSentence:
        """Joins the units of a sentence, the first of which has the number `first`."""
        texts = [self._tokenizer.decode(unit.tokens) for unit in units]
        doubtful = any(number in self._anew for number in range(first, first + len(units)))
        sources = self._units[first : first + len(units)]
        reads = [unit.reads for unit in units if unit.reads is not None]
        source = tuple(place for unit in sources for place in unit.ranges)
        pairs = len(source) * sum(len(unit.tokens) for unit in units)
        if len(reads) < len(units) or pairs > MOST_ALIGNED:
            return TranslatedSentence(" ".join(texts), None, doubtful)
        target: list[Range] = []
        weights = np.zeros((sum(len(unit.tokens) for unit in units), len(source)), np.float32)
        start = column = 0
        for unit, text, own in zip(units, texts, reads, strict=True):
            row = len(target)
            weights[row : row + own.shape[0], column : column + own.shape[1]] = own
            target += [(start + low, start + high) for low, high in self._tokenizer.ranges(unit.tokens, text)]
            start += len(text) + 1
            column += own.shape[1]
        return TranslatedSentence(" ".join(texts), Alignment(source, tuple(target), weights), doubtful)

    def _context(self, first: int) -> int:
        """Returns the first unit of the context, which takes at most half of a window and leaves room for a unit."""
        if self._size == "sentence" or first >= len(self._units):
            return first
        room = min(self._size // 2, self._size - len(self._units[first].tokens) - 1)
        start = first
        while (
            start > 0 and first - start < self._config.context_sentences and len(self._units[start - 1].tokens) < room
        ):
            start -= 1
            room -= len(self._units[start].tokens) + 1
        return start

    def _pieces(self, sentence: str) -> list[SourceUnit]:
        """Returns the tokens of a sentence. Where they exceed a window, they are cut between or inside words."""
        if not has_letters(sentence):
            return []
        most = (TRAINED_WINDOW if self._size == "sentence" else self._size) - 1
        tokens, ranges = self._encode(sentence)
        if len(tokens) <= most:
            return [SourceUnit(tokens, ranges)]
        pieces: list[tuple[list[int], list[Range]]] = [([], [])]
        for match in re.finditer(r"\S+", sentence):
            word, places = self._encode(match[0])
            if len(pieces[-1][0]) + len(word) > most and pieces[-1][0]:
                pieces.append(([], []))
            pieces[-1][0].extend(word)
            pieces[-1][1].extend((low + match.start(), high + match.start()) for low, high in places)
            while len(pieces[-1][0]) > most:
                whole, of_whole = pieces.pop()
                pieces += [(whole[:most], of_whole[:most]), (whole[most:], of_whole[most:])]
        return [SourceUnit(tokens, tuple(ranges)) for tokens, ranges in pieces]

    def _encode(self, text: str) -> tuple[list[int], tuple[Range, ...]]:
        """Returns tokens, and their places where alignments are wanted."""
        return self._tokenizer.encode_with_ranges(text) if self.aligned else (self._tokenizer.encode(text), ())


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


def _borders(rows: Sequence[Sequence[int]]) -> list[Range]:
    """Returns where each of some sentences stands when separators join them."""
    places, start = [], 0
    for row in rows:
        places.append((start, start + len(row)))
        start += len(row) + 1
    return places
