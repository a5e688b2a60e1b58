"""Tar archives from strangers: only the files that were asked for, only inside the directory."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from reluformer.errors import DataError, StorageError


def extract(archive: Path, names: Iterable[str], directory: Path) -> dict[str, Path]:
    """Unpack the files called `names` (without their folders) into `directory`.

    An archive with a member that would end up elsewhere, or a link that points elsewhere, is refused whole.
    """
    if not hasattr(tarfile, "data_filter"):
        raise DataError(f"{archive}: unpacking what strangers packed needs Python 3.11.4 or newer; unpack it elsewhere")
    wanted = set(names)
    found: dict[str, Path] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                checked = tarfile.data_filter(member, str(directory))
                name = PurePosixPath(checked.name).name
                if name in wanted and name not in found and checked.isreg():
                    tar.extract(member, directory, filter="data")
                    found[name] = directory / checked.name
    except tarfile.FilterError as error:
        raise DataError(f"{archive}: refused, it would write outside its directory: {error}") from None
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{archive}: cannot be unpacked: {error}; delete it and download it again") from None
    except OSError as error:
        raise StorageError(
            f"{archive}: cannot be unpacked to {directory}: {error.strerror or error}; free some space"
        ) from None
    if missing := wanted - found.keys():
        raise DataError(f"{archive}: holds no {', '.join(sorted(missing))}; it is another release than expected")
    return found
