"""The schemas of requests and responses, the parser of request bodies, and the texts and files inside them.

Clients send JSON or forms. The OpenAPI document is made from the same schemas. A `Payload` is
what a request asks to translate; `FileStorage` keeps translated files for their download.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from reluformer.integrations.server.limits import RequestError, ServerLimits
from reluformer.integrations.server.model_registry import ServedModel
from reluformer.translation import formats
from reluformer.translation.formats import FillReport, Skeleton, TextSkeleton, TextUnit
from reluformer.translation.inspection import AttentionKind
from reluformer.translation.windows import Translation

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
FORMATS = {"text": "plain", "html": "html"}
"""The name of each format of LibreTranslate in this package."""
MOST_FIELDS = 1000
"""The most fields of a form."""


def _only_texts(value: Any) -> Any:
    """Refuses a list at its first entry that is no text; pydantic would describe millions of them one by one."""
    if isinstance(value, list) and not all(isinstance(entry, str) for entry in value):
        raise ValueError("every entry should be a string")
    return value


Texts = Annotated[list[str], BeforeValidator(_only_texts)]


class RequestBody(BaseModel):
    """The fields of every request; unknown keys are ignored, as in LibreTranslate."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    api_key: str = ""
    """The server's key, if it has one; the header `Authorization: Bearer` works as well."""
    model: str = ""
    """Name of a model of `/models`; default: the first one that knows the languages."""


class TranslateRequest(RequestBody):
    """The body of `POST /translate`."""

    q: str | Texts
    """A text, or several."""
    source: str = "auto"
    """Language of the texts, or `auto`."""
    target: str
    """Language to translate into."""
    format: Literal["text", "html"] = "text"
    """In `html`, tags stay."""
    alternatives: int = Field(default=0, ge=0)
    """Further translations, next best first."""


class StreamRequest(RequestBody):
    """The body of `POST /translate/stream`."""

    q: str
    """The text."""
    source: str = "auto"
    """Language of the text, or `auto`."""
    target: str = ""
    """Language to translate into; may be left out."""
    format: Literal["text", "html"] = "text"
    """In `html`, tags stay."""


class DetectRequest(RequestBody):
    """The body of `POST /detect`."""

    q: str
    """A text."""


class FileRequest(RequestBody):
    """The body of `POST /translate_file`, apart from the file."""

    source: str = "auto"
    """Language of the file, or `auto`."""
    target: str
    """Language to translate into."""


class InspectRequest(RequestBody):
    """The body of `POST /inspect`."""

    q: str
    """The source text."""
    text: str | Texts | None = None
    """Its translation, or a list with the translation of each sentence; default: the server translates it."""
    attention: AttentionKind = "cross"
    """Cross-attention, or the self-attention of `encoder` or `decoder`."""


class DetectedLanguage(BaseModel):
    """A language and the confidence in it, from 0 to 100."""

    confidence: float
    language: str


class TranslateResponse(BaseModel):
    """The response of `/translate`; the fields are lists if `q` is one."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None


class FileResponse(BaseModel):
    """The address of the translated file, which is deleted after a while."""

    translatedFileUrl: str


class LanguageDescription(BaseModel):
    """A language and the languages that it can be translated into."""

    code: str
    name: str
    targets: list[str]


class ModelDescription(BaseModel):
    """A model of the server."""

    model_config = ConfigDict(populate_by_name=True)

    name: str
    rule: dict[str, dict[str, Any]]
    source: str
    target: str
    layers: int
    encoder_layers: int = Field(alias="encoder-layers")
    heads: int
    slots: int
    default: bool
    zero_weights: bool = Field(alias="zero-weights")


class HealthResponse(BaseModel):
    """The status is `ok` while the server accepts requests."""

    status: Literal["ok"]


class ErrorResponse(BaseModel):
    """The response with any status other than 200."""

    error: str
    code: str
    hint: str


class InspectedToken(BaseModel):
    """A token with the numbers of its word and its sentence; a mark begins a text or ends a sentence."""

    text: str
    word: int
    sentence: int
    mark: bool


class FiredSlots(BaseModel):
    """The slots of a feed-forward memory that fired for one target token, strongest first."""

    fired: int
    of: int
    top: list[tuple[int, float]]


class InspectResponse(BaseModel):
    """The response of `/inspect`: what each token read, and which slots fired for it.

    The rows of `reads` and `slots` are source tokens for `encoder`, otherwise target tokens. A read is a pair of a
    place in `read_tokens` and a weight.
    """

    model: str
    text: str
    attention: AttentionKind
    source_tokens: list[InspectedToken]
    target_tokens: list[InspectedToken]
    read_tokens: list[InspectedToken]
    layers: int
    heads: int
    reads: list[list[list[list[tuple[int, float]]]]]
    slots: list[list[FiredSlots]]
    zero_fraction: float


Schema = TypeVar("Schema", bound=RequestBody)


SizedCall = Callable[[int, Callable[[], Any]], Awaitable[Any]]
"""Calls a function for an input of some length: in a worker thread if the input is long."""


class _MemoryParser(MultiPartParser):
    """A parser that writes nothing to disk: a file stays in memory, where the limit of a body bounds it."""

    spool_max_size = sys.maxsize
    max_file_size = sys.maxsize  # its name in older versions of Starlette

    async def parse(self) -> FormData:
        """Parses the form; a part without an end is left out, and its file is closed."""
        form = await super().parse()
        kept = {id(value.file) for _, value in form.multi_items() if isinstance(value, UploadFile)}
        for file in self._files_to_close_on_error:
            if id(file) not in kept:
                file.close()
        return form


async def read_body(request: Request, schema: type[Schema], run: SizedCall) -> Schema:
    """Reads the body of a request, which is JSON or a form.

    Args:
        request: A request with a content type.
        schema: The schema of the body.
        run: Calls the parser of JSON.

    Raises:
        RequestError: The body is malformed (400, 422) or its content type is unknown (415).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in (JSON, FORM):
        content, parse = await request.body(), _object if kind == JSON else _urlencoded
        found: Schema = await run(len(content), lambda: validated(schema, parse(content)))
        return found
    if kind == MULTIPART:
        async with _form(request) as form:
            return validated(schema, _fields(form.multi_items()))
    sentence = f"a body of the type {kind[:64]!r} is not understood" if kind else "the request has no content type"
    raise RequestError(415, "unsupported_media_type", sentence, f"send {JSON}, {FORM} or {MULTIPART}")


async def read_file(request: Request, schema: type[Schema]) -> tuple[Schema, str, bytes]:
    """Reads a multipart body with a file.

    Returns:
        The fields of the form, the name of the file, and its content.

    Raises:
        RequestError: The body is malformed (400, 422) or no form with a file (415).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != MULTIPART:
        raise RequestError(415, "unsupported_media_type", "a file comes as multipart/form-data", "see /openapi.json")
    async with _form(request) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise RequestError(
                400, "missing_field", "the form has no file", "send it in the field 'file', with its name"
            )
        return validated(schema, _fields(form.multi_items())), file.filename or "", await file.read()


@asynccontextmanager
async def _form(request: Request) -> AsyncIterator[FormData]:
    async with aclosing(request.stream()) as stream:
        try:
            form = await _MemoryParser(request.headers, stream, max_files=1).parse()
        except MultiPartException:
            raise _unreadable_form() from None
    try:
        yield form
    finally:
        await form.close()


def _unreadable_form() -> RequestError:
    sentence = "the body is no form that can be read"
    return RequestError(400, "malformed", sentence, "check the form's encoding and its size")


def _urlencoded(content: bytes) -> dict[str, Any]:
    """Returns the fields of a form without files."""
    try:
        text = content.decode("utf-8", "replace")
        return _fields(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise _unreadable_form() from None


def _object(content: bytes) -> dict[str, Any]:
    try:
        values = json.loads(content)
        whole = _is_unicode(values)
    except (ValueError, RecursionError):
        raise RequestError(
            400, "malformed_json", "the body is not valid JSON", "check quotes, commas and UTF-8"
        ) from None
    if not isinstance(values, dict):
        raise RequestError(400, "malformed_json", "the body is no JSON object", 'send {"q": ...}')
    if not whole:
        raise RequestError(422, "invalid_field", "a text holds half of a character", "send both surrogates, or neither")
    return values


def _is_unicode(values: Any) -> bool:
    """Returns False for text with a lone surrogate, which JSON allows but UTF-8 cannot encode."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _fields(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the fields of a form that are no files; a field that occurs several times becomes a list."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        if isinstance(value, str):
            values.setdefault(name, []).append(value)
    return {name: found if len(found) > 1 else found[0] for name, found in values.items()}


def validated(schema: type[Schema], values: dict[str, Any]) -> Schema:
    """Validates values; the error names the first field that does not fit, without its text."""
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)[0]
        name = str(found["loc"][0])
        if found["type"] == "missing":
            raise RequestError(400, "missing_field", f"{name!r} is missing", "see /openapi.json") from None
        sentence = f"{name!r} does not fit: {found['msg'][:1].lower()}{found['msg'][1:]}"
        raise RequestError(422, "invalid_field", sentence, "see /openapi.json") from None


@dataclass(frozen=True)
class Payload:
    """The texts of a request, each as a skeleton without its sentences."""

    skeletons: tuple[Skeleton, ...]

    @classmethod
    def from_texts(cls, model: ServedModel, texts: Sequence[str], format: str) -> Payload:
        """Splits texts into sentences.

        Args:
            model: The model, whose languages choose the sentence splitter.
            texts: The texts of the request.
            format: A format of LibreTranslate, `text` or `html`.
        """
        layout = formats.get(FORMATS[format], source=model.source, target=model.target)
        return cls(tuple(layout.skeleton(text) for text in texts))

    @classmethod
    def from_file(cls, model: ServedModel, name: str, text: str) -> Payload:
        """Splits the text of a file into sentences; its name decides the format.

        Raises:
            RequestError: Files of this type are not supported (415).
        """
        if not name.lower().endswith(file_suffixes()):
            sentence = f"files named like {name.rpartition('.')[2][:16]!r} are not translated"
            raise RequestError(
                415, "unsupported_file", sentence, "give it a name that ends in " + ", ".join(file_suffixes())
            )
        layout = formats.detect(name, source=model.source, target=model.target)
        return cls((layout.skeleton(text),))

    @property
    def documents(self) -> list[tuple[str, ...]]:
        """The sentences of each document of each text."""
        return [document.src for skeleton in self.skeletons for document in skeleton.documents]

    @property
    def aligned(self) -> list[bool]:
        """Whether the translations of each document need alignments."""
        return formats.alignment_needs(self.skeletons)

    def fill(
        self, translations: Sequence[Sequence[Translation]], rank: int = 0, report: FillReport | None = None
    ) -> list[str]:
        """Returns the translated texts.

        Args:
            translations: The n-best translations of each of `documents`.
            rank: The rank of the translation to take; 0 is the best.
            report: Counts what happened to sentences and marks.
        """
        return formats.fill_all(self.skeletons, [found[rank].translated for found in translations], report)


class TextLayout:
    """The characters of one text before each of its sentences, and after the last one."""

    def __init__(self, skeleton: Skeleton) -> None:
        assert isinstance(skeleton, TextSkeleton)
        self.units: list[TextUnit] = []
        self._before: list[list[str]] = [[]]
        for part in skeleton.parts:
            if isinstance(part, TextUnit):
                self.units.append(part)
                self._before.append([])
            else:
                self._before[-1].append(part)

    def to_json(self) -> dict[str, Any]:
        """Returns the sentences; all `before + text`, followed by `after`, make up the whole text."""
        return {
            "sentences": [
                {"index": index, "source": unit.source, "before": "".join(self._before[index])}
                for index, unit in enumerate(self.units)
            ],
            "after": "".join(self._before[-1]),
        }


def file_suffixes() -> tuple[str, ...]:
    """Returns the suffixes of the files that the server translates."""
    found = (suffix for name in formats.names() for suffix in formats.get(name).suffixes)
    return tuple(dict.fromkeys(suffix for suffix in found if not suffix.endswith(".gz")))


@dataclass(frozen=True)
class StoredFile:
    """A translated file."""

    name: str
    content: bytes
    expires: float


class FileStorage:
    """Translated files that wait for their download, in memory, under names that nobody can guess.

    The newest `ServerLimits.stored_files` files are stored, each for `ServerLimits.stored_seconds`.
    """

    def __init__(self, limits: ServerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._files: OrderedDict[str, StoredFile] = OrderedDict()

    def store(self, name: str, content: bytes) -> str:
        """Stores a file and returns the secret part of its address."""
        self._delete_expired()
        while len(self._files) >= self._limits.stored_files:
            self._files.popitem(last=False)
        secret = secrets.token_urlsafe(24)
        self._files[secret] = StoredFile(name, content, self._clock() + self._limits.stored_seconds)
        return secret

    def fetch(self, secret: str) -> StoredFile:
        """Returns a stored file.

        Raises:
            RequestError: The file is unknown or was deleted (404).
        """
        self._delete_expired()
        if secret not in self._files:
            raise RequestError(404, "no_such_file", "there is no such file (any more)", "translate it again")
        return self._files[secret]

    def _delete_expired(self) -> None:
        now = self._clock()
        for secret in [secret for secret, file in self._files.items() if file.expires <= now]:
            del self._files[secret]
