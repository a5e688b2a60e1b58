"""A fingerprint of the C++ sources: compiled into the library, and compared when it is loaded.

Read by setup.py as a file of its own, so it imports nothing of the package.
"""

from __future__ import annotations

import hashlib
from pathlib import Path


def source_hash(directory: Path | None = None) -> str:
    """Of all C++ files beside this one (or in `directory`), by name and content."""
    directory = Path(__file__).parent if directory is None else directory
    digest = hashlib.sha256()
    for path in sorted([*directory.glob("*.cpp"), *directory.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
