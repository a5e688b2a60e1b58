"""Obtains a public set: from its servers to `DIR/NAME/{train,valid,test}.jsonl.gz`.

`DIR/NAME/raw` holds the files as they were downloaded, `DIR/NAME/downloads.json` what they
were: a file without a published checksum is trusted once it was converted, and must be the
same ever after.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from reluformer.errors import DataError, StorageError
from reluformer.files import alone_in, write_text
from reluformer.translation.document import Skipped
from reluformer.translation.downloads.catalogue import Dataset, RemoteFile
from reluformer.translation.downloads.convert import CONVERTERS, Workspace, write_documents
from reluformer.translation.downloads.fetch import Digests, DownloadProgress, Patience, check_content, fetch, silent
from reluformer.translation.recipe import Split

FORMAT = 1
RECORD = "downloads.json"
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True)
class ObtainedSet:
    """An obtained set says where it is and what is in it; `fresh` when this call made it."""

    directory: Path
    fresh: bool
    record: dict[str, Any]

    @property
    def paths(self) -> dict[Split, Path]:
        """The file of each split."""
        return {split: path_of(self.directory, split) for split in SPLITS}


def path_of(directory: Path, split: Split) -> Path:
    """Returns the file of a split."""
    return directory / f"{split}.jsonl.gz"


def obtain(
    dataset: Dataset,
    to: Path,
    *,
    mirror: str | None = None,
    progress: DownloadProgress = silent,
    patience: Patience | None = None,
) -> ObtainedSet:
    """Downloads what is missing of a set and converts it; a complete set is left as it is.

    A second process that obtains it at the same time waits for the first.

    Args:
        dataset: An entry of the catalogue.
        to: The directory that gets the folder of the set.
        mirror: Scheme and host of another server with the same paths.
        progress: Called with name, bytes received and bytes in all.
        patience: How often and how long a failing server is tried.

    Raises:
        DataError: A file cannot be downloaded, or is not the published one.
        StorageError: A file cannot be written.
    """
    directory = to / dataset.name
    addresses = [file.address(mirror) for file in dataset.files]
    with alone_in(directory):
        record = _read_record(directory / RECORD, dataset.name)
        if _complete(directory, record):
            return ObtainedSet(directory, fresh=False, record=record)
        files = {}
        for file, address in zip(dataset.files, addresses, strict=True):
            found = _obtain_file(file, address, directory / "raw", record, progress, patience)
            checksum = "unknown" if file.checksum is None else f"{file.checksum.algorithm} of {file.checksum.source}"
            files[file.name] = {"url": file.url, "published_checksum": checksum, **found}
        for split in SPLITS:
            progress(f"{split}.jsonl.gz", 0, None)
            record["splits"][split] = _convert(dataset.name, split, directory)
        record["files"] = files  # not before: what cannot be converted is not what was looked for
        _write_record(directory / RECORD, record)
        return ObtainedSet(directory, fresh=True, record=record)


def _obtain_file(
    file: RemoteFile,
    address: str,
    raw: Path,
    record: dict[str, Any],
    progress: DownloadProgress,
    patience: Patience | None,
) -> dict[str, Any]:
    """Returns the digests of the file in `raw`, which is downloaded unless it is there."""
    first = record["files"].get(file.name, {}).get("sha256")
    target = raw / file.name
    if target.exists():
        digests = Digests.of(target)
        _verifier(file, first, "delete it and run the command again")(target, digests)
        check_content(target, target.name, address)
    else:
        verify = _verifier(file, first, "the download was deleted; run the command again")
        digests = fetch(address, target, size=file.size, verify=verify, progress=progress, patience=patience)
    return {"sha256": digests.sha256, "size": digests.size}


def _verifier(file: RemoteFile, first: str | None, remedy: str) -> Callable[[Path, Digests], None]:
    """Returns a check against the published checksum and against the first download."""

    def verify(path: Path, digests: Digests) -> None:
        if (expected := file.checksum) and not digests.match(expected):
            found = digests.sha256 if expected.algorithm == "sha256" else digests.md5
            raise DataError(
                f"{path}: {expected.algorithm} is {found}, but {expected.source} publishes {expected.digest}: "
                f"truncated or tampered with; {remedy}, and if this stays, the file was changed at {file.url}"
            )
        if first is not None and digests.sha256 != first:
            raise DataError(
                f"{path}: sha256 is {digests.sha256}, but the first download had {first} (see {RECORD}): "
                f"truncated, tampered with, or a new version; {remedy}, and if this stays and the new version "
                f"is right, delete {RECORD}"
            )

    return verify


def _convert(name: str, split: Split, directory: Path) -> dict[str, Any]:
    path, skipped = path_of(directory, split), Skipped()
    with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=directory) as scratch:
        work = Workspace(directory / "raw", Path(scratch).resolve())
        documents, sentences = write_documents(CONVERTERS[name](split, work, skipped), path)
    digests = Digests.of(path)
    return {
        "documents": documents,
        "sentences": sentences,
        "sha256": digests.sha256,
        "size": digests.size,
        "left_out": skipped.to_json(),
    }


def _complete(directory: Path, record: dict[str, Any]) -> bool:
    """Returns whether all splits are there as they were written."""
    for split in SPLITS:
        path, written = path_of(directory, split), record["splits"].get(split)
        if written is None or not path.exists() or path.stat().st_size != written["size"]:
            return False
        if Digests.of(path).sha256 != written["sha256"]:
            return False
    return True


def _write_record(path: Path, record: dict[str, Any]) -> None:
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def _read_record(path: Path, name: str) -> dict[str, Any]:
    """Returns the record of earlier calls; it is empty where there was none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"format": FORMAT, "name": name, "files": {}, "splits": {}}
    except (OSError, ValueError, RecursionError):
        record = None
    if not _well_formed(record, name):
        raise StorageError(f"{path}: not a record of downloads of '{name}'; delete it to trust the files anew")
    return dict(record)


def _well_formed(record: Any, name: str) -> bool:
    if not isinstance(record, dict) or record.get("format") != FORMAT or record.get("name") != name:
        return False
    for section in ("files", "splits"):
        entries = record.get(section)
        if not isinstance(entries, dict):
            return False
        if not all(isinstance(entry, dict) and {"sha256", "size"} <= entry.keys() for entry in entries.values()):
            return False
    return True
