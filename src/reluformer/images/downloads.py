"""Public sets of images: where they are, and `obtain`, which downloads one.

The files stay as their publishers wrote them. A set goes to `DIR/NAME`, where `data.directory` of a recipe finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reluformer.downloads import Checksum, Digests, DownloadProgress, Patience, RemoteFile, fetch, silent
from reluformer.errors import DataError
from reluformer.files import alone_in
from reluformer.images.dataset import FILES, read_split

_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_MD5 = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}


@dataclass(frozen=True)
class ImageSet:
    """What a public set of images is, and where its four files are."""

    name: str
    title: str
    files: tuple[RemoteFile, ...]
    licence: str
    citation: str


SETS = {
    found.name: found
    for found in (
        ImageSet(
            name="fashion-mnist",
            title="Fashion-MNIST: 70,000 grey images of clothes, 28 x 28 pixels, ten classes",
            files=tuple(
                RemoteFile(f"{_ADDRESS}/{name}.gz", Checksum("md5", digest, "Zalando Research"))
                for name, digest in _MD5.items()
            ),
            licence="MIT (Zalando SE)",
            citation="Xiao, Rasul, Vollgraf (2017), Fashion-MNIST: a Novel Image Dataset",
        ),
    )
}
"""The public sets by name. Debian's package dataset-fashion-mnist has the first one, too."""


def obtain(
    chosen: ImageSet,
    to: Path,
    *,
    mirror: str | None = None,
    progress: DownloadProgress = silent,
    patience: Patience | None = None,
) -> dict[str, int]:
    """Downloads what is missing of a set and reads it; a complete set is left as it is.

    Args:
        chosen: An entry of `SETS`.
        to: The directory that gets the folder of the set.
        mirror: Scheme and host of another server with the same paths.
        progress: Called with name, bytes received and bytes in all.
        patience: How often and how long a failing server is tried.

    Returns:
        The number of images in each split.

    Raises:
        DataError: A file cannot be downloaded, is not the published one, or cannot be read.
        StorageError: A file cannot be written.
    """
    directory = to / chosen.name
    with alone_in(directory):
        for file in chosen.files:
            target = directory / file.name
            if not target.is_file() and not target.with_suffix("").is_file():
                fetch(
                    file.address(mirror),
                    target,
                    size=file.size,
                    verify=_verifier(file),
                    progress=progress,
                    patience=patience,
                )
        return {split: len(read_split(directory, split).labels) for split in FILES}


def _verifier(file: RemoteFile) -> Callable[[Path, Digests], None]:
    """Returns a check against the published checksum."""

    def verify(path: Path, digests: Digests) -> None:
        expected = file.checksum
        if expected is not None and not digests.match(expected):
            raise DataError(
                f"{path}: {expected.algorithm} is not the one that {expected.source} publishes, {expected.digest}: "
                f"truncated or tampered with; the download was deleted, run the command again"
            )

    return verify
