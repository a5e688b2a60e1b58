"""A request's documents as one piece of work for the engine.

Whoever asked waits for `Job.result`, and cancels it when nobody wants it any more; the
engine then drops what is left. A job is built outside of the engine's thread, because
splitting and tokenising long texts takes time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import accumulate
from typing import Any

from reluformer.integrations.server.served import ServedModel
from reluformer.translation.documents import Passage, Translation

OnSentence = Callable[[int, str], None]
"""Called with the number of a sentence and its translation, from the engine's thread."""


class Work:
    """What waits for the engine; its result, and how much of the engine's time it had."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.result: Future[Any] = Future()
        self.since = time.monotonic()
        self.served = 0
        """Tokens decoded for it so far, on the engine's clock: who had least comes next."""
        self.largest_batch = 0

    @property
    def abandoned(self) -> bool:
        """Nobody waits for it any more."""
        return self.result.cancelled()

    def finish(self, value: Any) -> None:
        """Hand over the result, if it is still wanted."""
        with suppress(InvalidStateError):
            self.result.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Hand over what went wrong instead."""
        with suppress(InvalidStateError):
            self.result.set_exception(error)


class Call(Work):
    """Something to do with a model in the engine's thread, between two steps of decoding."""

    def __init__(self, model: ServedModel, call: Callable[[], Any], tokens: int) -> None:
        super().__init__(model)
        self.call = call
        self.tokens = tokens


class Job(Work):
    """Documents to translate: the result is a list of n best translations for each of them."""

    def __init__(
        self,
        model: ServedModel,
        documents: Sequence[Sequence[str]],
        n_best: int = 1,
        on_sentence: OnSentence | None = None,
    ) -> None:
        super().__init__(model)
        base = model.translator.config
        self.config = base.replace(n_best=n_best, beam=max(n_best, base.beam))
        self.passages = [Passage(document, model.translator.tokenizer, self.config) for document in documents]
        self.alone = False
        """Decoded without neighbours, because a batch with it failed."""
        self._on_sentence = on_sentence
        self._first_sentence = [0, *accumulate(map(len, documents))]
        self._told = [0] * len(documents)
        self._ready = {place: None for place, passage in enumerate(self.passages) if not passage.done}
        self._decoding: set[int] = set()

    @property
    def done(self) -> bool:
        """Every document is translated."""
        return not self._ready and not self._decoding

    @property
    def streams(self) -> bool:
        """Somebody wants each sentence as soon as it is settled."""
        return self._on_sentence is not None

    def ready(self) -> Iterator[int]:
        """The documents that have a window to decode and are not being decoded."""
        return iter(self._ready)

    def size(self, place: int) -> int:
        """Tokens of a document's next window."""
        return len(self.passages[place].window().source)

    def may_join(self, other: Job) -> bool:
        """Whether one search can decode both."""
        return not self.alone and not other.alone and self.model is other.model and self.config == other.config

    def take(self, place: int, batch: int) -> None:
        """The next window of a document goes into a batch of so many."""
        del self._ready[place]
        self._decoding.add(place)
        self.largest_batch = max(self.largest_batch, batch)
        self.served += self.size(place)

    def release(self, place: int) -> None:
        """The document's window left its batch, translated or not."""
        self._decoding.discard(place)
        if not self.passages[place].done:
            self._ready[place] = None

    def tell(self, place: int, sentences: Sequence[str]) -> None:
        """These are the first sentences of a document; tell those that are new."""
        if self._on_sentence is None:
            return
        for number in range(self._told[place], len(sentences)):
            self._on_sentence(self._first_sentence[place] + number, sentences[number])
        self._told[place] = max(self._told[place], len(sentences))

    def translations(self) -> list[list[Translation]]:
        """The n best of each document."""
        return [passage.translations() for passage in self.passages]
