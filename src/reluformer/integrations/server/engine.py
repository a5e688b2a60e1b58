"""One thread owns the models and decodes the work of all clients together.

Whatever waits is decoded in batches of windows of similar length, up to a number of tokens.
No document waits for its neighbours in the batch: it is handed over when its own search
has ended. Who had least of the engine's time comes first, so a long document, or a file of
many, takes turns with everybody else; and short texts overtake a search that is long
under way, position by position.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import TYPE_CHECKING

from reluformer.integrations.server.jobs import Call, Job, Work
from reluformer.integrations.server.limits import Limits
from reluformer.integrations.server.refusals import busy, failed, shutting_down
from reluformer.translation.documents import padded
from reluformer.translation.search import Search

if TYPE_CHECKING:
    from reluformer.integrations.server.metrics import Metrics

_log = logging.getLogger("reluformer.integrations.server")

SEARCHES = 2
"""Searches under way at a time: one, and another one of much shorter texts."""
MUCH = 2
"""Windows share a batch while none is so many times as long as the seed, or as short."""
SHORT = 64
"""Windows of so few tokens always share a batch, and nothing overtakes them."""


@dataclass
class Seat:
    """The place of one document in a batch."""

    job: Job
    place: int
    source: int
    """Its number in the search."""


@dataclass
class Batch:
    """A search under way."""

    search: Search
    seats: list[Seat]
    longest: int


class Engine:
    """The queue and the thread that works it off."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._changed = threading.Condition()
        self._arrived: list[Work] = []
        self._unfinished = 0
        self._closing = False
        self._works: list[Work] = []  # from here on, only the thread's own
        self._batches: list[Batch] = []
        self._clock = 0
        self._mean_seconds = 0.0
        self._thread: threading.Thread | None = None
        metrics.watch_queue(lambda: self._unfinished)

    def start(self) -> None:
        """Begin to work, for the first time or again."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="reluformer-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take nothing more, finish what was taken, end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def submit(self, work: Work) -> None:
        """Take on `work`, or refuse it: when the queue is full, or when shutting down."""
        with self._changed:
            if self._closing:
                raise shutting_down()
            if self._unfinished >= self._limits.waiting:
                self._metrics.refused.inc()
                raise busy(self._patience())
            self._unfinished += 1
            self._arrived.append(work)
            self._changed.notify_all()

    @property
    def busy(self) -> bool:
        """Something waits or is decoded."""
        return bool(self._arrived or self._works or self._batches)

    def _patience(self) -> int:
        """Seconds to wait before asking again: what a request takes at present."""
        return min(60, max(1, math.ceil(self._mean_seconds)))

    def _run(self) -> None:
        while self._wait():
            try:
                self.turn()
            except Exception as error:  # nothing that a request does may end the thread
                self._give_up(error)

    def _wait(self) -> bool:
        """Wait for work; False when there will be none any more."""
        with self._changed:
            while not (self.busy or self._closing):
                self._changed.wait()
            return self.busy

    def turn(self) -> None:
        """Take on what arrived, begin what can begin, and decode one position of what is under way."""
        with self._changed:
            arrived, self._arrived = self._arrived, []
        for work in arrived:
            work.served = self._clock
        self._works += arrived
        for work in [work for work in self._works if work.abandoned]:
            self._leave(work)
        self._begin()
        for batch in list(self._batches):
            self._advance(batch)

    # ------------------------------------------------------------------ what comes next

    def _begin(self) -> None:
        """Start what comes next, where there is room for it."""
        while len(self._batches) < SEARCHES and (most := self._most()):
            seed = min((work for work in self._works if _may_begin(work, most)), key=_turn, default=None)
            if seed is None:
                return
            self._clock = max(self._clock, seed.served)
            if isinstance(seed, Call):
                self._call(seed)
            elif isinstance(seed, Job) and seed.done:
                self._deliver(seed)
            elif isinstance(seed, Job):
                self._search(seed, most)

    def _most(self) -> float:
        """Tokens of a window that may be begun: any, or much fewer than those of what is under way."""
        if not self._batches:
            return math.inf
        longest = min(batch.longest for batch in self._batches)
        return longest // MUCH if longest > MUCH * SHORT else 0

    def _search(self, seed: Job, most: float) -> None:
        """A batch around the seed's first window: first the windows of all jobs in turn, then by length."""
        seats: list[Seat] = []
        longest = 0
        for job, place in self._neighbours(seed, most):
            if len(seats) == self._limits.batch_texts:
                break
            size = max(longest, job.size(place))
            if not seats or (len(seats) + 1) * size <= self._limits.batch_tokens:
                seats.append(Seat(job, place, len(seats)))
                longest = size
        for seat in seats:
            seat.job.take(seat.place, len(seats))
        self._metrics.batch.observe(len(seats))
        windows = [seat.job.passages[seat.place].window() for seat in seats]
        self._metrics.source_tokens.inc(sum(len(window.source) for window in windows))
        try:
            stepper = seed.model.translator.stepper
            source, mask = padded([window.source for window in windows], stepper.device)
            search = Search(stepper, source, mask, [window.outline for window in windows], seed.config)
        except Exception as error:
            self._batch_failed(seats, error)
            return
        self._batches.append(Batch(search, seats, longest))

    def _neighbours(self, seed: Job, most: float) -> Iterator[tuple[Job, int]]:
        """Windows that may share a batch, those of all jobs in turn; the seed's first one comes first."""
        length = seed.size(next(_windows(seed, most)))
        low, high = (0 if length <= SHORT else length // MUCH), min(most, max(SHORT, length * MUCH))
        others = [work for work in self._works if isinstance(work, Job) and work is not seed and seed.may_join(work)]
        rows = 1 if seed.alone else self._limits.batch_texts
        offers = [
            [(job, place) for place in islice(_windows(job, high, low), rows)]
            for job in [seed, *sorted(others, key=_turn)]
        ]
        for turn in zip_longest(*offers):
            yield from (offer for offer in turn if offer is not None)

    # ------------------------------------------------------------------ work itself

    def _call(self, work: Call) -> None:
        work.served += work.tokens
        try:
            work.finish(work.call())
        except Exception as error:
            self._failed(work, error)
        self._leave(work)

    def _advance(self, batch: Batch) -> None:
        """One more position of a search; hand over what it finished."""
        if all(seat.job.abandoned for seat in batch.seats):
            self._batches.remove(batch)
            return
        try:
            batch.search.advance()
            for seat in list(batch.seats):
                self._look_at(batch, seat)
        except Exception as error:
            self._batches.remove(batch)
            self._batch_failed(batch.seats, error)
            return
        if not batch.seats:
            self._batches.remove(batch)

    def _look_at(self, batch: Batch, seat: Seat) -> None:
        """Take a document's window out of the batch when it is finished; tell what is settled."""
        job, passage = seat.job, seat.job.passages[seat.place]
        if not batch.search.ended(seat.source):
            if job.streams and not job.abandoned:
                job.tell(seat.place, passage.settled(batch.search.settled(seat.source)))
            return
        hypotheses = batch.search.finished[seat.source]
        self._metrics.target_tokens.inc(len(hypotheses[0].tokens))
        passage.accept(hypotheses)
        batch.seats.remove(seat)
        job.release(seat.place)
        if passage.done and job.streams:
            job.tell(seat.place, passage.translations()[0].sentences)
        if job.done:
            self._deliver(job)

    def _deliver(self, job: Job) -> None:
        job.finish(job.translations())
        self._leave(job)

    def _batch_failed(self, seats: list[Seat], error: Exception) -> None:
        """Each of them again, alone, so that one text cannot spoil another's; one that was alone fails."""
        for seat in seats:
            seat.job.release(seat.place)
            if len(seats) > 1:
                seat.job.alone = True
            else:
                self._failed(seat.job, error)
                self._leave(seat.job)

    def _give_up(self, error: Exception) -> None:
        """Everything fails that was taken on; the thread goes on with what comes next."""
        self._batches.clear()
        for work in list(self._works):
            self._failed(work, error)
            self._leave(work)

    def _failed(self, work: Work, error: Exception) -> None:
        _log.error("work failed", extra={"fields": {"event": "failure", "error": type(error).__name__}})
        work.fail(failed())

    def _leave(self, work: Work) -> None:
        """The work is finished, failed or given up."""
        if work not in self._works:  # given up while it was decoded
            return
        self._works.remove(work)
        self._mean_seconds += 0.1 * (time.monotonic() - work.since - self._mean_seconds)
        with self._changed:
            self._unfinished -= 1


def _turn(work: Work) -> tuple[int, float]:
    """Who had least comes first, then who waits longest."""
    return work.served, work.since


def _may_begin(work: Work, most: float) -> bool:
    """Whether there is something to begin that is not too long; calls are as long as anything."""
    if isinstance(work, Job):
        return work.done or next(_windows(work, most), None) is not None
    return most == math.inf


def _windows(job: Job, most: float, least: int = 0) -> Iterator[int]:
    """The documents of a job that are ready, with windows of so many tokens."""
    return (place for place in job.ready() if least <= job.size(place) <= most)
