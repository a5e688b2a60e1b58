"""Worker threads for everything whose time grows with a text: parsing, splitting, tokenizing and filling.

The event loop answers all clients, so it only does work of bounded size. A thread cannot be
stopped from outside. These guarantees hold instead:

* A client gets its answer at the deadline of its request, whatever its text does to a parser.
* Work that has not started by then never starts; what has started ends on its own, and its result is discarded.
* The threads are daemons: neither a shutdown nor the end of the process waits for them.

What has started ends soon, because the length of a text is checked before it is parsed, and
every format needs time in proportion to that length.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

THREADS = 4

Result = TypeVar("Result")


class Workers:
    """A few daemon threads that call functions in the order of their submission.

    `concurrent.futures.ThreadPoolExecutor` would not do: the end of the process waits for its threads.

    Example:
        >>> workers = Workers()
        >>> workers.submit(lambda: 6 * 7).result()
        42
        >>> workers.close()
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Submits a function.

        Args:
            call: The function.

        Returns:
            The future of its return value or exception; the function is not called if it is cancelled before.
        """
        future: Future[Result] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call())
            except BaseException as error:  # it belongs to whoever waits for the future
                future.set_exception(error)

        self._queue.put(work)
        if len(self._threads) < THREADS:
            thread = threading.Thread(target=self._run, name=f"reluformer-worker-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Ends the threads after what they were given, without waiting for them; `submit` starts new ones."""
        for _ in self._threads:
            self._queue.put(None)
        self._threads = []

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
