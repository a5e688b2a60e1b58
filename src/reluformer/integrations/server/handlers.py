"""The request handlers: each one parses the body, submits work to the engine, and sends a response.

A stream sends a translation as server-sent events, sentence by sentence:

    start     {"model", "sentences": [{"index", "source", "before"}], "after"}
    sentence  {"index", "source", "text"}; in order
    done      {"text", "seconds"}
    error     {"error", "code", "hint"}; it is the last event
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from reluformer.integrations.server import read_maps
from reluformer.integrations.server.engine import Call, Engine, Job, Work
from reluformer.integrations.server.limits import ApiKey, RequestError, ServerLimits, Workers, timed_out, too_large
from reluformer.integrations.server.middleware import CONTENT_TYPE, Metrics, RequestRecord
from reluformer.integrations.server.model_registry import ANY_LANGUAGE, ModelRegistry, ServedModel, language_name
from reluformer.integrations.server.read_maps import TokenizedPart
from reluformer.integrations.server.schemas import (
    DetectRequest,
    FileRequest,
    FileStorage,
    InspectRequest,
    Payload,
    SizedCall,
    StreamRequest,
    TextLayout,
    TranslateRequest,
    file_suffixes,
    read_body,
    read_file,
)
from reluformer.translation.document import TranslatedSentence
from reluformer.translation.formats import FillReport, decode_text
from reluformer.translation.inspection import AttentionKind

INLINE = 2000
"""Texts of fewer characters are parsed in the event loop; longer ones, and all files, in a worker thread."""


class Handlers:
    """The handlers of all routes; `application` assigns their paths."""

    def __init__(
        self,
        models: ModelRegistry,
        limits: ServerLimits,
        key: ApiKey,
        engine: Engine,
        workers: Workers,
        metrics: Metrics,
    ) -> None:
        self.models = models
        self.limits = limits
        self.key = key
        self.engine = engine
        self.workers = workers
        self.metrics = metrics
        self.files = FileStorage(limits)

    async def translate(self, request: Request) -> Response:
        """Translate a text or a list of texts."""
        run = self._runner(request)
        body = await read_body(request, TranslateRequest, run)
        self.key.check(request, body.api_key)
        texts = [body.q] if isinstance(body.q, str) else body.q
        size = self._check_texts(request, texts, body.alternatives)
        model = self.models.pick(body.model, body.source, body.target)
        split: Payload = await run(size, lambda: Payload.from_texts(model, texts, body.format))
        job = await run(size, lambda: Job(model, split.documents, body.alternatives + 1, aligned=split.aligned))
        found = await self._result(request, job)
        filling = FillReport()
        ranks = range(body.alternatives + 1)
        ranked = await run(size, lambda: [split.fill(found, rank, None if rank else filling) for rank in ranks])
        self.metrics.count_filling(filling)
        answer: dict[str, Any] = {"translatedText": ranked[0]}
        if body.alternatives:
            answer["alternatives"] = [_alternatives(choices) for choices in zip(*ranked, strict=True)]
        if body.source == ANY_LANGUAGE:
            answer["detectedLanguage"] = [{"confidence": self._confidence, "language": model.source} for _ in texts]
        if isinstance(body.q, str):
            answer = {name: values[0] for name, values in answer.items()}
        return JSONResponse(answer)

    async def stream(self, request: Request) -> Response:
        """Translate a text; each sentence is sent as soon as it is final."""
        run = self._runner(request)
        body = await read_body(request, StreamRequest, run)
        self.key.check(request, body.api_key)
        size = self._check_texts(request, [body.q])
        model = self.models.pick(body.model, body.source, body.target)
        loop = asyncio.get_running_loop()
        stream: Stream = await run(size, lambda: Stream(model, body.q, body.format, loop, self.metrics))
        self.engine.submit(stream.job)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        events = stream.events(request, self.limits.request_seconds, run)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    async def translate_file(self, request: Request) -> Response:
        """Translate a file; the response holds the address of the translated file."""
        body, name, content = await read_file(request, FileRequest)
        self.key.check(request, body.api_key)
        model = self.models.pick(body.model, body.source, body.target)
        name = name.replace("\\", "/").rpartition("/")[2]
        run = self._runner(request)
        size = max(INLINE, len(content))
        text = await run(size, lambda: decode_text(content, "the file"))
        self._check_texts(request, [text])
        split: Payload = await run(size, lambda: Payload.from_file(model, name, text))
        job = await run(size, lambda: Job(model, split.documents, aligned=split.aligned))
        found = await self._result(request, job)
        filling = FillReport()
        (translated,) = await run(size, lambda: split.fill(found, report=filling))
        self.metrics.count_filling(filling)
        stem, _, suffix = name.rpartition(".")
        stored = f"{stem}_{model.target}.{suffix}"
        secret = self.files.store(stored, translated.encode())
        return JSONResponse({"translatedFileUrl": f"{request.base_url}download_file/{secret}/{quote(stored, safe='')}"})

    async def download_file(self, request: Request) -> Response:
        """Download a translated file."""
        file = self.files.fetch(request.path_params["secret"])
        disposition = f"attachment; filename*=UTF-8''{quote(file.name, safe='')}"
        headers = {"Content-Disposition": disposition, "Cache-Control": "no-store"}
        return Response(file.content, media_type="text/plain; charset=utf-8", headers=headers)

    async def inspect(self, request: Request) -> Response:
        """Show what each token read in one kind of attention, and which slots fired for it."""
        run = self._runner(request)
        body = await read_body(request, InspectRequest, run)
        self.key.check(request, body.api_key)
        given = body.text
        size = self._check_texts(request, [body.q, *([given] if isinstance(given, str) else given or [])], count=False)
        model = self.models.named(body.model)
        parts = await run(size, lambda: read_maps.source_parts(model, body.q))
        sources = await run(size, lambda: read_maps.tokenize(model, parts, self.limits, "'q'"))
        if given is None:
            found = await self._result(request, await run(size, lambda: Job(model, parts)))
            translated = [list(best[0].sentences) for best in found]
        else:
            translated = await run(size, lambda: read_maps.target_parts(model, parts, given))
        targets = await run(size, lambda: read_maps.tokenize(model, translated, self.limits, "'text'"))
        text = given if isinstance(given, str) else " ".join(sentence for part in translated for sentence in part)
        answer = await self._read_maps(request, model, text, sources, targets, body.attention)
        return Response(answer, media_type="application/json")

    async def _read_maps(
        self,
        request: Request,
        model: ServedModel,
        text: str,
        sources: list[TokenizedPart],
        targets: list[TokenizedPart],
        attention: AttentionKind,
    ) -> bytes:
        read_maps.check_weights(model, sources, targets, attention)
        tokens = sum(len(part.tokens) for part in [*sources, *targets])
        call = Call(model, lambda: read_maps.compute(model, sources, targets, attention), tokens)
        maps = await self._result(request, call)
        run = self._runner(request)
        answer: bytes = await run(INLINE, lambda: read_maps.to_json(model, text, sources, targets, maps))
        return answer

    async def detect(self, request: Request) -> Response:
        """List the source languages of the models; the text itself is not examined."""
        body = await read_body(request, DetectRequest, self._runner(request))
        self.key.check(request, body.api_key)
        self._check_texts(request, [body.q])
        found = [{"confidence": self._confidence, "language": code} for code in self.models.sources]
        return JSONResponse(found)

    async def list_languages(self, request: Request) -> Response:
        """List every language of the models with its targets."""
        return JSONResponse(self.models.languages())

    async def list_models(self, request: Request) -> Response:
        """List every model with its rules."""
        return JSONResponse([model.describe(model is self.models[0]) for model in self.models])

    async def health(self, request: Request) -> Response:
        """Check whether the server accepts requests."""
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, request: Request) -> Response:
        """Show the metrics for Prometheus."""
        self.key.check(request)
        return Response(self.metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def settings(self, request: Request) -> Response:
        """Show the settings that front ends of LibreTranslate ask for."""
        first = self.models[0]
        languages = {side: {"code": code, "name": language_name(code)} for side, code in _sides(first).items()}
        return JSONResponse(
            {
                "apiKeys": self.key.required,
                "keyRequired": self.key.required,
                "charLimit": self.limits.characters,
                "batchLimit": self.limits.texts,
                "alternativesLimit": self.limits.alternatives,
                "filesTranslation": True,
                "supportedFilesFormat": list(file_suffixes()),
                "frontendTimeout": 500,
                "language": languages,
                "suggestions": False,
            }
        )

    @property
    def _confidence(self) -> float:
        """The same for every source language, since the text is not examined."""
        return round(100 / len(self.models.sources), 1)

    def _check_texts(self, request: Request, texts: list[str], alternatives: int = 0, count: bool = True) -> int:
        """Checks the limits and returns the number of characters."""
        record: RequestRecord = request.state.record
        record.characters = sum(map(len, texts))
        if count and len(texts) > self.limits.texts:
            raise too_large("the list of texts", self.limits.texts, "entries")
        if record.characters > self.limits.characters:
            raise too_large("the text", self.limits.characters, "characters")
        if alternatives > self.limits.alternatives:
            sentence = f"{alternatives} alternatives are too many"
            raise RequestError(422, "invalid_field", sentence, f"ask for at most {self.limits.alternatives}")
        self.metrics.characters.inc(record.characters)
        return record.characters

    def _runner(self, request: Request) -> SizedCall:
        """Returns a function that calls others until the deadline of the request, for long texts in a worker thread."""
        record: RequestRecord = request.state.record

        async def run(size: int, call: Callable[[], Any]) -> Any:
            if size < INLINE:
                return call()
            result = asyncio.wrap_future(self.workers.submit(call))
            done, _ = await asyncio.wait((result,), timeout=record.deadline - time.monotonic())
            if not done:
                result.cancel()
                raise timed_out(self.limits.request_seconds)
            return result.result()

        return run

    async def _result(self, request: Request, work: Work) -> Any:
        """Submits work and waits for its result, until the deadline or until the client disconnects."""
        record: RequestRecord = request.state.record
        self.engine.submit(work)
        result = asyncio.wrap_future(work.result)
        disconnected = asyncio.ensure_future(_disconnected(request))
        try:
            left = record.deadline - time.monotonic()
            done, _ = await asyncio.wait((result, disconnected), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            record.batch = max(record.batch, work.largest_batch)
            if result in done:
                return result.result()
            raise ClientDisconnect if disconnected in done else timed_out(self.limits.request_seconds)
        finally:
            result.cancel()
            disconnected.cancel()


def _alternatives(choices: tuple[str, ...]) -> list[str]:
    """Returns the alternatives that differ from the best translation and from each other."""
    return list(dict.fromkeys(choice for choice in choices[1:] if choice != choices[0]))


def _sides(model: ServedModel) -> dict[str, str]:
    return {"source": model.source, "target": model.target}


_ENDED, _DISCONNECTED = object(), object()


class Stream:
    """The translation of one text for one client, as server-sent events."""

    def __init__(
        self, model: ServedModel, text: str, format: str, loop: asyncio.AbstractEventLoop, metrics: Metrics
    ) -> None:
        self._metrics = metrics
        self._payload = Payload.from_texts(model, [text], format)
        self._layout = TextLayout(self._payload.skeletons[0])
        self._start = event("start", {"model": model.name, **self._layout.to_json()})
        self._size = len(text)
        self._loop = loop
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self.job = Job(
            model,
            self._payload.documents,
            on_sentence=lambda *sentence: self._notify(sentence),
            aligned=self._payload.aligned,
        )
        self.job.result.add_done_callback(lambda _: self._notify(_ENDED))

    def _notify(self, message: Any) -> None:
        """Adds a message to the queue; the engine calls it from its own thread."""
        self._loop.call_soon_threadsafe(self._messages.put_nowait, message)

    async def events(self, request: Request, seconds: float, run: SizedCall) -> AsyncIterator[str]:
        """Yields the events, until the client disconnects.

        Args:
            request: The request of the client.
            seconds: The time of a request, for the message when it is over.
            run: Calls what fills a long text.
        """
        record: RequestRecord = request.state.record
        disconnected = asyncio.ensure_future(_disconnected(request))
        disconnected.add_done_callback(lambda _: self._messages.put_nowait(_DISCONNECTED))
        filling = FillReport()
        try:
            yield self._start
            while (message := await self._next(record.deadline)) not in (_ENDED, _DISCONNECTED):
                size = len(self._layout.units[message[0]].raw)
                yield await run(size, partial(self._sentence, *message))
            record.batch = self.job.largest_batch
            if message is _ENDED:
                found = self.job.result.result()
                (text,) = await run(self._size, lambda: self._payload.fill(found, report=filling))
                self._metrics.count_filling(filling)
                yield event("done", {"text": text, "seconds": round(time.monotonic() - record.started, 3)})
        except TimeoutError:
            yield event("error", timed_out(seconds).body())
        except RequestError as error:
            yield event("error", error.body())
        finally:
            self.job.result.cancel()
            disconnected.cancel()

    async def _next(self, deadline: float) -> Any:
        async with asyncio.timeout(deadline - time.monotonic()):
            return await self._messages.get()

    def _sentence(self, index: int, translation: TranslatedSentence) -> str:
        unit = self._layout.units[index]
        return event("sentence", {"index": index, "source": unit.source, "text": unit.fill(translation)})


def event(name: str, data: Mapping[str, Any]) -> str:
    """Returns one server-sent event as text."""
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


async def _disconnected(request: Request) -> None:
    """Returns when the client disconnects; its body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        continue
