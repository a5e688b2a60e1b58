"""The engine: one thread owns the models and decodes the requests of all clients in shared batches.

A batch holds windows of similar length, up to a number of tokens. A document leaves its
batch as soon as its own search ends, so it never waits for the others. Short texts overtake
a long search: both advance position by position.

Requests share the engine as in fair queueing. The request that has had the fewest tokens
decoded comes first. A clock counts the tokens that each request in the queue has had on
average, and a new request starts at the clock. So new requests come before a long document
that has just had its turn, but they cannot keep it waiting: while they are decoded, the clock
passes the tokens of the document.

A `Job` holds the documents of one request. The handler waits for `Job.result` and cancels
it when the client disconnects; the engine then drops the rest. Jobs are built outside of
the engine's thread, because splitting and tokenizing long texts takes time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, islice, zip_longest
from typing import Any

from reluformer.integrations.server.limits import ServerLimits, busy, failed, shutting_down
from reluformer.integrations.server.middleware import LOGGER, Metrics
from reluformer.integrations.server.model_registry import ServedModel
from reluformer.translation.beam_search import start_search
from reluformer.translation.document import TranslatedSentence
from reluformer.translation.search import Search
from reluformer.translation.stepper import Decoder
from reluformer.translation.windows import Translation, WindowedDocument, accept_windows, add_window

_log = logging.getLogger(LOGGER)

SEARCHES = 2
"""The engine runs at most two searches at a time: one, and another one of much shorter texts."""
POSITIONS = 8
"""A search decodes so many positions in its turn, or one if somebody wants each sentence as soon as it is final."""
LENGTH_RATIO = 2
"""Windows share a batch if none is this many times as long, or as short, as the first one."""
SHORT = 64
"""Windows of at most this many tokens always share a batch, and nothing overtakes them."""

OnSentence = Callable[[int, TranslatedSentence], None]
"""The engine's thread calls it with the number of a sentence and its translation."""


class Work:
    """An item in the engine's queue, with its result and its share of the engine's time."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.result: Future[Any] = Future()
        self.submitted = time.monotonic()
        self.decoded = 0.0
        """Tokens decoded for it so far, plus the engine's clock when it arrived; the smallest number comes next."""
        self.largest_batch = 0

    @property
    def cancelled(self) -> bool:
        """True if nobody waits for the result any more."""
        return self.result.cancelled()

    def finish(self, value: Any) -> None:
        """Sets the result, unless it was cancelled."""
        with suppress(InvalidStateError):
            self.result.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Sets an error as the result, unless it was cancelled."""
        with suppress(InvalidStateError):
            self.result.set_exception(error)


class Call(Work):
    """A function that uses a model, called in the engine's thread between two decoding steps.

    Args:
        model: The model that the function uses.
        call: The function; its return value is the result.
        tokens: The number of tokens that it counts as.
    """

    def __init__(self, model: ServedModel, call: Callable[[], Any], tokens: int) -> None:
        super().__init__(model)
        self.call = call
        self.tokens = tokens


class Job(Work):
    """Documents to translate; the result is a list with the n-best translations of each document.

    Args:
        model: The model that translates them.
        documents: Each document is a sequence of sentences.
        n_best: The number of translations of each document.
        on_sentence: A function that receives each sentence as soon as it is final.
        aligned: Whether the sentences of each document need their alignments; by default none does.
    """

    def __init__(
        self,
        model: ServedModel,
        documents: Sequence[Sequence[str]],
        n_best: int = 1,
        on_sentence: OnSentence | None = None,
        aligned: Sequence[bool] | None = None,
    ) -> None:
        super().__init__(model)
        base = model.translator.config
        self.config = base.replace(n_best=n_best, beam=max(n_best, base.beam))
        self.passages = [
            WindowedDocument(document, model.translator.tokenizer, self.config, needs)
            for document, needs in zip(documents, aligned or [False] * len(documents), strict=True)
        ]
        self.alone = False
        """True if the job is decoded in batches of its own, because a shared batch failed."""
        self._on_sentence = on_sentence
        self._first_sentence = [0, *accumulate(map(len, documents))]
        self._reported = [0] * len(documents)
        self._ready = {index: None for index, passage in enumerate(self.passages) if not passage.done}
        self._decoding: set[int] = set()

    @property
    def done(self) -> bool:
        """True if every document is translated."""
        return not self._ready and not self._decoding

    @property
    def streams(self) -> bool:
        """True if somebody wants each sentence as soon as it is final."""
        return self._on_sentence is not None

    def ready(self) -> Iterator[int]:
        """Returns the documents that have a window to decode and are in no batch."""
        return iter(self._ready)

    def size(self, index: int) -> int:
        """Returns the number of tokens of a document's next window."""
        return len(self.passages[index].window().source)

    def can_share(self, other: Job) -> bool:
        """Returns True if one search can decode both jobs."""
        return not self.alone and not other.alone and self.model is other.model and self.config == other.config

    def take(self, index: int, batch: int) -> None:
        """Moves the next window of a document into a batch of `batch` windows."""
        del self._ready[index]
        self._decoding.add(index)
        self.largest_batch = max(self.largest_batch, batch)
        self.decoded += self.size(index)

    def release(self, index: int) -> None:
        """Takes a document's window out of its batch, translated or not."""
        self._decoding.discard(index)
        if not self.passages[index].done:
            self._ready[index] = None

    def report(self, index: int, sentences: Sequence[TranslatedSentence]) -> None:
        """Reports the new ones among the first sentences of a document."""
        if self._on_sentence is None:
            return
        for number in range(self._reported[index], len(sentences)):
            self._on_sentence(self._first_sentence[index] + number, sentences[number])
        self._reported[index] = max(self._reported[index], len(sentences))

    def translations(self) -> list[list[Translation]]:
        """Returns the n-best translations of each document."""
        return [passage.translations() for passage in self.passages]


@dataclass
class BatchRow:
    """The window of one document in a batch."""

    job: Job
    index: int
    """The number of the document in its job."""
    source: int = -1
    """The number of the window in the search."""


@dataclass
class SearchBatch:
    """A search that is running, with the rows that have not ended."""

    search: Search
    decoder: Decoder
    rows: list[BatchRow]
    longest: int


class Engine:
    """The queue of all work, and the thread that does it."""

    def __init__(self, limits: ServerLimits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._changed = threading.Condition()
        self._arrived: list[Work] = []
        self._unfinished = 0
        self._closing = False
        self._works: list[Work] = []  # the engine's thread alone uses this and what follows
        self._batches: list[SearchBatch] = []
        self._clock = 0.0
        self._mean_seconds = 0.0
        self._thread: threading.Thread | None = None
        metrics.watch_queue(lambda: self._unfinished)

    def start(self) -> None:
        """Starts the thread; a closed engine can be started again."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="reluformer-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops accepting work, finishes what was accepted, and ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def submit(self, work: Work) -> None:
        """Adds work to the queue.

        Raises:
            RequestError: The queue is full (429), or the engine is shutting down (503).
        """
        with self._changed:
            if self._closing:
                raise shutting_down()
            if self._unfinished >= self._limits.waiting:
                self._metrics.refused.inc()
                raise busy(self._retry_after())
            self._unfinished += 1
            self._arrived.append(work)
            self._changed.notify_all()

    @property
    def busy(self) -> bool:
        """True if work waits or is being done."""
        return bool(self._arrived or self._works or self._batches)

    def _retry_after(self) -> int:
        """Returns the mean duration of a request in seconds, between 1 and 60."""
        return min(60, max(1, math.ceil(self._mean_seconds)))

    def _run(self) -> None:
        while self._wait():
            try:
                self.step()
            except Exception as error:  # nothing that a request does may end the thread
                self._fail_all(error)

    def _wait(self) -> bool:
        """Waits for work; returns False when the engine was closed and everything is done."""
        with self._changed:
            while not (self.busy or self._closing):
                self._changed.wait()
            return self.busy

    def step(self) -> None:
        """Accepts what arrived, starts what can start, and decodes every batch a little further."""
        with self._changed:
            arrived, self._arrived = self._arrived, []
        for work in arrived:
            work.decoded = self._clock
        self._works += arrived
        for work in [work for work in self._works if work.cancelled]:
            self._remove(work)
        self.start_next()
        for batch in list(self._batches):
            self._advance(batch)

    # ------------------------------------------------------------------ scheduling

    def start_next(self) -> None:
        """Starts the work that comes next, while there is room for another search."""
        while len(self._batches) < SEARCHES and (most := self._max_tokens()):
            first = min((work for work in self._works if _can_start(work, most)), key=_priority, default=None)
            if first is None:
                return
            self._clock = max(self._clock, first.decoded)
            if isinstance(first, Call):
                self._call(first)
            elif isinstance(first, Job) and first.done:
                self._finish(first, first.translations())
            elif isinstance(first, Job):
                self._start_search(first, most)

    def _max_tokens(self) -> float:
        """Returns the length of a window that may start: any, or much less than that of a running search."""
        if not self._batches:
            return math.inf
        longest = min(batch.longest for batch in self._batches)
        return longest // LENGTH_RATIO if longest > LENGTH_RATIO * SHORT else 0

    def _start_search(self, first: Job, most: float) -> None:
        """Starts a batch around the first window of `first`."""
        rows: list[BatchRow] = []
        longest = 0
        for job, index in self._candidates(first, most):
            if len(rows) == self._limits.batch_texts:
                break
            size = max(longest, job.size(index))
            if not rows or (len(rows) + 1) * size <= self._limits.batch_tokens:
                rows.append(BatchRow(job, index))
                longest = size
        for row in rows:
            row.job.take(row.index, len(rows))
        self._metrics.batch.observe(len(rows))
        windows = [row.job.passages[row.index].window() for row in rows]
        tokens = sum(len(window.source) for window in windows)
        self._advance_clock(tokens)
        self._metrics.source_tokens.inc(tokens)
        try:
            decoder = first.model.translator.decoder
            search = start_search(decoder, first.config)
            for row in rows:
                row.source = add_window(search, row.job.passages[row.index])
        except Exception as error:
            self._batch_failed(rows, error)
            return
        self._batches.append(SearchBatch(search, decoder, rows, longest))

    def _advance_clock(self, tokens: int) -> None:
        """Advances the clock by the share of each request in the queue in tokens that are being decoded."""
        self._clock += tokens / max(1, len(self._works))

    def _candidates(self, first: Job, most: float) -> Iterator[tuple[Job, int]]:
        """Yields windows that may share a batch, one of each job in turn; that of `first` comes first."""
        length = first.size(next(_windows(first, most)))
        low, high = (0 if length <= SHORT else length // LENGTH_RATIO), min(most, max(SHORT, length * LENGTH_RATIO))
        others = [work for work in self._works if isinstance(work, Job) and work is not first and first.can_share(work)]
        rows = 1 if first.alone else self._limits.batch_texts
        offers = [
            [(job, index) for index in islice(_windows(job, high, low), rows)]
            for job in [first, *sorted(others, key=_priority)]
        ]
        for turn in zip_longest(*offers):
            yield from (offer for offer in turn if offer is not None)

    # ------------------------------------------------------------------ decoding

    def _call(self, work: Call) -> None:
        work.decoded += work.tokens
        self._advance_clock(work.tokens)
        try:
            value = work.call()
        except Exception as error:
            self._fail(work, error)
        else:
            self._finish(work, value)

    def _advance(self, batch: SearchBatch) -> None:
        """Decodes a search a little further, and collects the rows that ended."""
        if all(row.job.cancelled for row in batch.rows):
            self._batches.remove(batch)
            return
        try:
            batch.search.advance(1 if any(row.job.streams for row in batch.rows) else POSITIONS)
            for row in list(batch.rows):
                self._collect(batch, row)
        except Exception as error:
            self._batches.remove(batch)
            self._batch_failed(batch.rows, error)
            return
        if not batch.rows:
            self._batches.remove(batch)

    def _collect(self, batch: SearchBatch, row: BatchRow) -> None:
        """Takes a row out of the batch if its search ended; reports the sentences that are final."""
        job, passage = row.job, row.job.passages[row.index]
        if not batch.search.ended(row.source):
            if job.streams and not job.cancelled:
                job.report(row.index, passage.settled(batch.decoder, batch.search.settled(row.source)))
            return
        hypotheses = batch.search.hypotheses(row.source)
        self._metrics.target_tokens.inc(len(hypotheses[0].tokens))
        accept_windows(batch.decoder, [passage], [hypotheses])
        batch.rows.remove(row)
        job.release(row.index)
        if passage.done and job.streams:
            job.report(row.index, passage.translations()[0].translated)
        if job.done:
            self._finish(job, job.translations())

    def _finish(self, work: Work, value: Any) -> None:
        self._remove(work)  # first, so that the client finds the queue without it
        work.finish(value)

    # ------------------------------------------------------------------ failures

    def _batch_failed(self, rows: list[BatchRow], error: Exception) -> None:
        """Decodes each job again on its own, so that one text cannot fail the others; a lone one fails."""
        for row in rows:
            row.job.release(row.index)
            if len(rows) > 1:
                row.job.alone = True
            else:
                self._fail(row.job, error)

    def _fail_all(self, error: Exception) -> None:
        """Fails all accepted work; the thread continues with what arrives next."""
        self._batches.clear()
        for work in list(self._works):
            self._fail(work, error)

    def _fail(self, work: Work, error: Exception) -> None:
        _log.error("work failed", extra={"fields": {"event": "failure", "error": type(error).__name__}})
        self._remove(work)
        work.fail(failed())

    def _remove(self, work: Work) -> None:
        """Removes work that is finished, failed or cancelled."""
        if work not in self._works:  # it was cancelled while it was decoded
            return
        self._works.remove(work)
        self._mean_seconds += 0.1 * (time.monotonic() - work.submitted - self._mean_seconds)
        with self._changed:
            self._unfinished -= 1


def _priority(work: Work) -> tuple[float, float]:
    """Returns the sort key: fewest tokens decoded, then longest wait."""
    return work.decoded, work.submitted


def _can_start(work: Work, most: float) -> bool:
    """Returns True if the work has something to start that is short enough; a call never overtakes."""
    if isinstance(work, Job):
        return work.done or next(_windows(work, most), None) is not None
    return most == math.inf


def _windows(job: Job, most: float, least: int = 0) -> Iterator[int]:
    """Returns the documents of a job that are ready, with windows of `least` to `most` tokens."""
    return (index for index in job.ready() if least <= job.size(index) <= most)
