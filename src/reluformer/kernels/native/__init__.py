"""The CPU kernel in C++: its sources, their hash, and the file name of the compiled library.

The hash is compiled into the library and compared on loading. setup.py reads this file by itself, so it imports
nothing of the package.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path


def library_name(platform: str = sys.platform) -> str:
    """Returns the file name of the compiled library on a platform, as `sys.platform` names it.

    Example:
        >>> library_name("linux"), library_name("darwin"), library_name("win32")
        ('_library.so', '_library.dylib', '_library.dll')
    """
    return "_library" + {"win32": ".dll", "darwin": ".dylib"}.get(platform, ".so")


def source_hash(directory: Path | None = None) -> str:
    """Returns the hash of all C++ files beside this one (or in `directory`), by name and content."""
    directory = Path(__file__).parent if directory is None else directory
    digest = hashlib.sha256()
    for path in sorted([*directory.glob("*.cpp"), *directory.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
