"""A translation as server-sent events, sentence by sentence.

start     {"model", "sentences": [{"index", "source", "before"}], "after"}
sentence  {"index", "source", "text"}; in order
done      {"text", "seconds"}
error     {"error", "code", "hint"}; then nothing follows
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request

from reluformer.integrations.server.gate import Account
from reluformer.integrations.server.jobs import Job
from reluformer.integrations.server.refusals import Refusal, timed_out
from reluformer.integrations.server.served import ServedModel
from reluformer.integrations.server.texts import Layout, Texts

_ENDED, _GONE = object(), object()


class Stream:
    """One text on its way to one client."""

    def __init__(self, model: ServedModel, text: str, format: str, loop: asyncio.AbstractEventLoop) -> None:
        self._model = model
        self._texts = Texts.of(model, [text], format)
        self._layout = Layout(self._texts.skeletons[0])
        self._loop = loop
        self._news: asyncio.Queue[Any] = asyncio.Queue()
        self.job = Job(model, self._texts.documents, on_sentence=lambda *news: self._tell(news))
        self.job.result.add_done_callback(lambda _: self._tell(_ENDED))

    def _tell(self, news: Any) -> None:
        """Called by the engine, from its thread."""
        self._loop.call_soon_threadsafe(self._news.put_nowait, news)

    async def events(self, request: Request, seconds: float) -> AsyncIterator[str]:
        """What the client reads; ends early when it does."""
        account: Account = request.state.account
        gone = asyncio.ensure_future(has_left(request))
        gone.add_done_callback(lambda _: self._news.put_nowait(_GONE))
        try:
            yield event("start", {"model": self._model.name, **self._layout.to_json()})
            while (news := await self._next(account.deadline)) not in (_ENDED, _GONE):
                yield self._sentence(*news)
            account.batch = self.job.largest_batch
            if news is _ENDED:
                (text,) = self._texts.fill(self.job.result.result())
                yield event("done", {"text": text, "seconds": round(time.monotonic() - account.started, 3)})
        except TimeoutError:
            yield event("error", timed_out(seconds).body())
        except Refusal as refusal:
            yield event("error", refusal.body())
        finally:
            self.job.result.cancel()
            gone.cancel()

    async def _next(self, deadline: float) -> Any:
        async with asyncio.timeout(deadline - time.monotonic()):
            return await self._news.get()

    def _sentence(self, index: int, translation: str) -> str:
        slot = self._layout.slots[index]
        return event("sentence", {"index": index, "source": slot.source, "text": slot.fill(translation)})


def event(name: str, data: Mapping[str, Any]) -> str:
    """One event as it goes over the line."""
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


async def has_left(request: Request) -> None:
    """Ends when the client does, once its body has arrived."""
    while (await request.receive())["type"] != "http.disconnect":
        continue
