"""What a request may ask for, and how much the server takes on at once."""

from __future__ import annotations

from pydantic import Field

from reluformer.config import Config


class Limits(Config):
    """Every number that protects the server, or the clients from each other."""

    characters: int = Field(default=50_000, ge=1)
    """Characters of all texts of a request together."""
    texts: int = Field(default=256, ge=1)
    """Texts in the list of one request."""
    body_bytes: int = Field(default=4 << 20, ge=1024)
    """Bytes of a request's body, a file included."""
    alternatives: int = Field(default=8, ge=0)
    """Further translations that a request may ask for."""
    inspected_tokens: int = Field(default=1024, ge=8)
    """Tokens of a source, and of its translation, that `/inspect` looks into."""
    waiting: int = Field(default=256, ge=1)
    """Requests that wait or are translated; the next one is told to come back later."""
    request_seconds: float = Field(default=120.0, gt=0)
    """A request is given up after this time."""
    receive_seconds: float = Field(default=30.0, gt=0)
    """The body of a request must have arrived after this time."""
    batch_tokens: int = Field(default=4096, ge=1)
    """Source tokens, padding included, that are decoded together."""
    batch_texts: int = Field(default=64, ge=1)
    """Windows of texts that are decoded together; 1 decodes one after the other."""
    kept_files: int = Field(default=64, ge=1)
    """Translated files that wait to be fetched; the oldest gives way."""
    kept_seconds: float = Field(default=1800.0, gt=0)
    """A translated file is forgotten after this time."""
