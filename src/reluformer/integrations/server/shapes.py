"""What requests and answers look like, for clients and for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    """What every request may hold; keys that are not known are ignored, as LibreTranslate does."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    api_key: str = ""
    """The server's key, where it has one; also taken from the header `Authorization: Bearer`."""
    model: str = ""
    """Name of a model of `/models`; else the first that knows the languages."""


class TranslateBody(Body):
    """`POST /translate`."""

    q: str | list[str]
    """A text, or several."""
    source: str = "auto"
    """Language of the texts, or `auto`."""
    target: str
    """Language to translate into."""
    format: Literal["text", "html"] = "text"
    """In `html`, tags stay."""
    alternatives: int = Field(default=0, ge=0)
    """Further translations, next best first."""


class StreamBody(Body):
    """`POST /translate/stream`."""

    q: str
    """The text."""
    source: str = "auto"
    """Language of the text, or `auto`."""
    target: str = ""
    """Language to translate into; may be left out."""
    format: Literal["text", "html"] = "text"
    """In `html`, tags stay."""


class DetectBody(Body):
    """`POST /detect`."""

    q: str
    """A text."""


class FileBody(Body):
    """`POST /translate_file`, apart from the file."""

    source: str = "auto"
    """Language of the file, or `auto`."""
    target: str
    """Language to translate into."""


class InspectBody(Body):
    """`POST /inspect`."""

    q: str
    """The source text."""
    text: str | list[str] | None = None
    """Its translation, or that of each of its sentences; without one it is translated first."""


class DetectedLanguage(BaseModel):
    """A language, and how sure we are, out of 100."""

    confidence: float
    language: str


class Translated(BaseModel):
    """An answer of `/translate`; lists where `q` was one."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None


class TranslatedFile(BaseModel):
    """Where the file can be fetched, for a while."""

    translatedFileUrl: str


class Language(BaseModel):
    """A language and what it is translated into."""

    code: str
    name: str
    targets: list[str]


class ModelDescription(BaseModel):
    """A model that the server has."""

    model_config = ConfigDict(populate_by_name=True)

    name: str
    rule: dict[str, dict[str, Any]]
    source: str
    target: str
    layers: int
    heads: int
    slots: int
    default: bool
    zero_weights: bool = Field(alias="zero-weights")


class Health(BaseModel):
    """`ok` while requests are taken."""

    status: Literal["ok"]


class Error(BaseModel):
    """Any answer that is not 200."""

    error: str
    code: str
    hint: str


class Token(BaseModel):
    """A token, the number of its word, and that of its sentence."""

    text: str
    word: int
    sentence: int


class FiredSlots(BaseModel):
    """Slots of a feed-forward memory that fired for one target token, the strongest first."""

    fired: int
    of: int
    top: list[tuple[int, float]]


class Inspection(BaseModel):
    """What each target token read of the source, and which slots fired for it."""

    model: str
    text: str
    source_tokens: list[Token]
    target_tokens: list[Token]
    layers: int
    heads: int
    reads: list[list[list[list[tuple[int, float]]]]]
    slots: list[list[FiredSlots]]
    zero_fraction: float
