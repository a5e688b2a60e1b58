"""The page at `/`: files of the package, kept in memory."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

INDEX = "index.html"
ABSENT = "This is a reluformer server. It has no page in this installation; /openapi.json describes its API.\n"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}


@dataclass(frozen=True)
class PageFile:
    """A file of the page and where it is served."""

    path: str
    content: bytes
    media_type: str

    @property
    def etag(self) -> str:
        """Changes with the content."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


def page_files(root: Traversable | None = None) -> list[PageFile]:
    """Everything in the folder `page`, index.html as `/`; a sentence in its place where there is none."""
    root = files("reluformer.integrations.server") / "page" if root is None else root
    found = dict(_walk(root)) if root.is_dir() else {}
    pages = [PageFile("/" + name, content, _type_of(name)) for name, content in found.items()]
    if INDEX in found:
        return [PageFile("/", found[INDEX], _type_of(INDEX)), *pages]
    return [PageFile("/", ABSENT.encode(), "text/plain; charset=utf-8"), *pages]


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith((".", "__")):
            continue
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_bytes()


def _type_of(name: str) -> str:
    suffix = "." + name.rpartition(".")[2]
    kind = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
