"""What each route does: read the body, build the work, wait for the engine, answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from reluformer.integrations.server import bodies, inspections
from reluformer.integrations.server.engine import Engine
from reluformer.integrations.server.gate import Account
from reluformer.integrations.server.inspections import Part
from reluformer.integrations.server.jobs import Call, Job, Work
from reluformer.integrations.server.kept_files import KeptFiles
from reluformer.integrations.server.limits import Limits
from reluformer.integrations.server.metrics import CONTENT_TYPE, Metrics
from reluformer.integrations.server.refusals import Refusal, timed_out, too_large
from reluformer.integrations.server.served import ANY_LANGUAGE, ServedModel, ServedModels, language_name
from reluformer.integrations.server.shapes import DetectBody, FileBody, InspectBody, StreamBody, TranslateBody
from reluformer.integrations.server.streams import Stream, has_left
from reluformer.integrations.server.texts import Texts, file_suffixes

Built = TypeVar("Built")
INLINE = 2000
"""Texts of fewer characters are split at once."""


class Api:
    """The routes' work; `app` says under which paths."""

    def __init__(self, models: ServedModels, limits: Limits, key: bodies.Key, engine: Engine, metrics: Metrics) -> None:
        self.models = models
        self.limits = limits
        self.key = key
        self.engine = engine
        self.metrics = metrics
        self.files = KeptFiles(limits)

    async def translate(self, request: Request) -> Response:
        """Translate a text or a list of texts."""
        body = await bodies.read(request, TranslateBody)
        self.key.check(request, body.api_key)
        texts = [body.q] if isinstance(body.q, str) else body.q
        size = self._check_texts(request, texts, body.alternatives)
        model = self.models.pick(body.model, body.source, body.target)
        split = await _built(size, lambda: Texts.of(model, texts, body.format))
        job = await _built(size, lambda: Job(model, split.documents, body.alternatives + 1))
        found = await self._result(request, job)
        ranked = [split.fill(found, rank) for rank in range(body.alternatives + 1)]
        answer: dict[str, Any] = {"translatedText": ranked[0]}
        if body.alternatives:
            answer["alternatives"] = [_others(choices) for choices in zip(*ranked, strict=True)]
        if body.source == ANY_LANGUAGE:
            answer["detectedLanguage"] = [{"confidence": self._confidence, "language": model.source} for _ in texts]
        if isinstance(body.q, str):
            answer = {name: values[0] for name, values in answer.items()}
        return JSONResponse(answer)

    async def stream(self, request: Request) -> Response:
        """Translate a text; each sentence is sent as soon as it is settled."""
        body = await bodies.read(request, StreamBody)
        self.key.check(request, body.api_key)
        size = self._check_texts(request, [body.q])
        model = self.models.pick(body.model, body.source, body.target)
        loop = asyncio.get_running_loop()
        stream = await _built(size, lambda: Stream(model, body.q, body.format, loop))
        self.engine.submit(stream.job)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        events = stream.events(request, self.limits.request_seconds)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    async def translate_file(self, request: Request) -> Response:
        """Translate a file; the answer says where to fetch it."""
        body, name, content = await bodies.read_file(request, FileBody)
        self.key.check(request, body.api_key)
        model = self.models.pick(body.model, body.source, body.target)
        name = name.replace("\\", "/").rpartition("/")[2]
        split = await _built(len(content), lambda: Texts.of_file(model, name, content))
        self._check_texts(request, ["".join(document) for document in split.documents], count=False)
        found = await self._result(request, await _built(len(content), lambda: Job(model, split.documents)))
        (text,) = await _built(len(content), lambda: split.fill(found))
        stem, _, suffix = name.rpartition(".")
        kept = f"{stem}_{model.target}.{suffix}"
        secret = self.files.keep(kept, text.encode())
        return JSONResponse({"translatedFileUrl": f"{request.base_url}download_file/{secret}/{quote(kept, safe='')}"})

    async def download_file(self, request: Request) -> Response:
        """A file that was translated a while ago."""
        file = self.files.fetch(request.path_params["secret"])
        disposition = f"attachment; filename*=UTF-8''{quote(file.name, safe='')}"
        headers = {"Content-Disposition": disposition, "Cache-Control": "no-store"}
        return Response(file.content, media_type="text/plain; charset=utf-8", headers=headers)

    async def inspect(self, request: Request) -> Response:
        """What each token of a translation read of the source, and which slots fired for it."""
        body = await bodies.read(request, InspectBody)
        self.key.check(request, body.api_key)
        given = body.text
        size = self._check_texts(request, [body.q, *([given] if isinstance(given, str) else given or [])], count=False)
        model = self.models.named(body.model)
        parts = await _built(size, lambda: inspections.source_parts(model, body.q))
        sources = await _built(size, lambda: inspections.lay_out(model, parts, self.limits, "'q'"))
        if given is None:
            found = await self._result(request, await _built(size, lambda: Job(model, parts)))
            translated = [list(best[0].sentences) for best in found]
        else:
            translated = await _built(size, lambda: inspections.target_parts(model, parts, given))
        targets = await _built(size, lambda: inspections.lay_out(model, translated, self.limits, "'text'"))
        text = given if isinstance(given, str) else " ".join(sentence for part in translated for sentence in part)
        answer = await self._look(request, model, text, sources, targets)
        return Response(answer, media_type="application/json")

    async def _look(
        self, request: Request, model: ServedModel, text: str, sources: list[Part], targets: list[Part]
    ) -> bytes:
        inspections.check_weights(model, sources, targets)
        tokens = sum(len(part.tokens) for part in [*sources, *targets])
        maps = await self._result(request, Call(model, lambda: inspections.look(model, sources, targets), tokens))
        return await asyncio.to_thread(lambda: inspections.to_json(model, text, sources, targets, maps))

    async def detect(self, request: Request) -> Response:
        """The languages that the models translate from; the text itself is not looked at."""
        body = await bodies.read(request, DetectBody)
        self.key.check(request, body.api_key)
        self._check_texts(request, [body.q])
        found = [{"confidence": self._confidence, "language": code} for code in self.models.sources]
        return JSONResponse(found)

    async def list_languages(self, request: Request) -> Response:
        """Every language that a model knows, and what it is translated into."""
        return JSONResponse(self.models.languages())

    async def list_models(self, request: Request) -> Response:
        """Every model with its rules."""
        return JSONResponse([model.describe(model is self.models[0]) for model in self.models])

    async def health(self, request: Request) -> Response:
        """Whether requests are taken."""
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, request: Request) -> Response:
        """Figures for Prometheus."""
        self.key.check(request)
        return Response(self.metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def settings(self, request: Request) -> Response:
        """What front ends of LibreTranslate ask for."""
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
        """We do not look at the text: as sure as there are languages to choose from."""
        return round(100 / len(self.models.sources), 1)

    def _check_texts(self, request: Request, texts: list[str], alternatives: int = 0, count: bool = True) -> int:
        """Refuse what is too long; its characters."""
        account: Account = request.state.account
        account.characters = sum(map(len, texts))
        if count and len(texts) > self.limits.texts:
            raise too_large("the list of texts", self.limits.texts, "entries")
        if account.characters > self.limits.characters:
            raise too_large("the text", self.limits.characters, "characters")
        if alternatives > self.limits.alternatives:
            sentence = f"{alternatives} alternatives are too many"
            raise Refusal(422, "invalid_field", sentence, f"ask for at most {self.limits.alternatives}")
        self.metrics.characters.inc(account.characters)
        return account.characters

    async def _result(self, request: Request, work: Work) -> Any:
        """Hand over to the engine and wait: not for ever, and not for a client that is gone."""
        account: Account = request.state.account
        self.engine.submit(work)
        result = asyncio.wrap_future(work.result)
        gone = asyncio.ensure_future(has_left(request))
        try:
            left = account.deadline - time.monotonic()
            done, _ = await asyncio.wait((result, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            account.batch = max(account.batch, work.largest_batch)
            if result in done:
                return result.result()
            raise ClientDisconnect if gone in done else timed_out(self.limits.request_seconds)
        finally:
            result.cancel()
            gone.cancel()


async def _built(size: int, build: Callable[[], Built]) -> Built:
    """What splits and tokenises long texts does so beside the event loop; short ones are not worth a thread."""
    return build() if size < INLINE else await asyncio.to_thread(build)


def _others(choices: tuple[str, ...]) -> list[str]:
    """What is neither the best nor there already."""
    return list(dict.fromkeys(choice for choice in choices[1:] if choice != choices[0]))


def _sides(model: ServedModel) -> dict[str, str]:
    return {"source": model.source, "target": model.target}
