"""What clients send, as JSON or as a form, checked and turned into a shape."""

from __future__ import annotations

import hmac
import json
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from reluformer.integrations.server.refusals import Refusal
from reluformer.integrations.server.shapes import Body

Shape = TypeVar("Shape", bound=Body)

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"


async def read(request: Request, shape: type[Shape]) -> Shape:
    """The body of a request; JSON or a form, as its content type says."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == JSON:
        return checked(shape, _object(await request.body()))
    if kind in (FORM, MULTIPART):
        async with request.form(max_files=1) as form:
            return checked(shape, _fields(form, shape))
    sentence = f"a body of the type {kind[:64]!r} is not understood" if kind else "the request has no content type"
    raise Refusal(415, "unsupported_media_type", sentence, f"send {JSON}, {FORM} or {MULTIPART}")


async def read_file(request: Request, shape: type[Shape]) -> tuple[Shape, str, bytes]:
    """A multipart body with a file: its fields, the file's name and its content."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != MULTIPART:
        raise Refusal(415, "unsupported_media_type", "a file comes as multipart/form-data", "see /openapi.json")
    async with request.form(max_files=1) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise Refusal(400, "missing_field", "the form has no file", "send it in the field 'file', with its name")
        return checked(shape, _fields(form, shape)), file.filename or "", await file.read()


def _object(content: bytes) -> dict[str, Any]:
    try:
        values = json.loads(content)
        whole = _is_unicode(values)
    except (ValueError, RecursionError):
        raise Refusal(400, "malformed_json", "the body is not valid JSON", "check quotes, commas and UTF-8") from None
    if not isinstance(values, dict):
        raise Refusal(400, "malformed_json", "the body is no JSON object", 'send {"q": ...}')
    if not whole:
        raise Refusal(422, "invalid_field", "a text holds half of a character", "send both surrogates, or neither")
    return values


def _is_unicode(values: Any) -> bool:
    """Whether every text can be written: JSON lets half of a character through, escaped or as bytes."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _fields(form: FormData, shape: type[Body]) -> dict[str, Any]:
    """The fields of a form; one that is there several times is a list, which a shape that has none refuses."""
    values: dict[str, Any] = {}
    for name in shape.model_fields:
        found = [value for value in form.getlist(name) if isinstance(value, str)]
        if found:
            values[name] = found if len(found) > 1 else found[0]
    return values


def checked(shape: type[Shape], values: dict[str, Any]) -> Shape:
    """The values as a shape; refused with the first thing that does not fit, never with its text."""
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return shape.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)[0]
        name = str(found["loc"][0])
        if found["type"] == "missing":
            raise Refusal(400, "missing_field", f"{name!r} is missing", "see /openapi.json") from None
        sentence = f"{name!r} does not fit: {found['msg'][:1].lower()}{found['msg'][1:]}"
        raise Refusal(422, "invalid_field", sentence, "see /openapi.json") from None


class Key:
    """The key that clients must know; without one, everybody may ask."""

    def __init__(self, secret: str | None) -> None:
        self._secret = None if secret is None else secret.encode()

    @property
    def required(self) -> bool:
        """Whether there is one."""
        return self._secret is not None

    def check(self, request: Request, given: str = "") -> None:
        """Refuse a request that does not know the key."""
        if self._secret is None:
            return
        sent = [given.encode()] if given else _bearer(request)
        if not sent:
            headers = {"WWW-Authenticate": "Bearer"}
            raise Refusal(401, "key_missing", "this server wants a key", "send it as api_key", headers)
        if not any(hmac.compare_digest(key, self._secret) for key in sent):
            raise Refusal(403, "key_wrong", "this is not the server's key", "ask its operator for one")


def _bearer(request: Request) -> list[bytes]:
    """The key of the header in UTF-8, whether a client sent it in that or in Latin-1, as which headers are read."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip(" ")
    return [token.encode("latin-1"), token.encode()] if scheme.lower() == "bearer" and token else []
