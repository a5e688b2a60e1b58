"""The catalogue of public sets, and `obtain`, which downloads and converts one of them.

A checksum stands here only where somebody publishes it; `source` says who. Everywhere else it
is None: such a file is trusted once it was converted, and must be the same ever after.
A set goes from its servers to `DIR/NAME/{train,valid,test}.jsonl.gz`. `DIR/NAME/raw` holds the
files as they were downloaded, and `DIR/NAME/downloads.json` records what they were.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from reluformer.downloads import (
    Checksum,
    Digests,
    DownloadProgress,
    Patience,
    RemoteFile,
    check_content,
    fetch,
    silent,
)
from reluformer.errors import DataError, StorageError, UnknownNameError, nearest
from reluformer.files import alone_in, write_text
from reluformer.translation.document import Skipped
from reluformer.translation.downloads.convert import CONVERTERS, Workspace, write_documents
from reluformer.translation.recipe import Split

FORMAT = 1
RECORD = "downloads.json"
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True)
class Dataset:
    """A dataset says what a public set is, where its files are, and what the conversion makes of them."""

    name: str
    title: str
    languages: tuple[str, str]
    files: tuple[RemoteFile, ...]
    licence: str
    citation: str
    conversion: str

    @property
    def sizes(self) -> str:
        """The size of the download, as far as it is published."""
        known = [file.size for file in self.files if file.size is not None]
        unknown = len(self.files) - len(known)
        parts = [f"{sum(known) / 1e6:,.0f} MB in {_files(len(known))}"] if known else []
        return ", ".join(parts + [f"unknown for {_files(unknown)}"] * bool(unknown))

    @property
    def checksums(self) -> str:
        """The checksums that are published, and by whom."""
        known = [(file.checksum.algorithm, file.checksum.source) for file in self.files if file.checksum]
        unknown = len(self.files) - len(known)
        parts = [f"{key[0]} for {_files(known.count(key))} ({key[1]})" for key in dict.fromkeys(known)]
        return ", ".join(parts + [f"unknown for {_files(unknown)}"] * bool(unknown))


def _files(number: int) -> str:
    return f"{number} file{'s' if number != 1 else ''}"


def find(name: str, others: Iterable[str] = ()) -> Dataset:
    """Returns the set called `name`; raises `UnknownNameError`, which also names the `others`, if there is none."""
    if name not in DATASETS:
        raise UnknownNameError(f"unknown set '{name}'; {nearest(name, [*DATASETS, *others])}")
    return DATASETS[name]


def _by_name(datasets: Iterable[Dataset]) -> dict[str, Dataset]:
    return {dataset.name: dataset for dataset in datasets}


def _multi30k(name: str, md5: str) -> RemoteFile:
    url = f"https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/{name}.gz"
    return RemoteFile(url, Checksum("md5", md5, "torchtext"))


def _maruf(name: str) -> RemoteFile:
    commit = "1cb44c5ddd2cdf4f32ea74768a3389b52fc4db27"
    return RemoteFile(f"https://raw.githubusercontent.com/sameenmaruf/selective-attn/{commit}/data/Europarl7/{name}")


def _statmt(path: str, algorithm: Literal["sha256", "md5"], digest: str, size: int | None = None) -> RemoteFile:
    source = "TensorFlow Datasets" if algorithm == "sha256" else "sacreBLEU"
    return RemoteFile(f"https://www.statmt.org/{path}", Checksum(algorithm, digest, source), size)


DATASETS: dict[str, Dataset] = _by_name(
    [
        Dataset(
            name="multi30k",
            title="Multi30k task 1: descriptions of 31,014 images",
            languages=("en", "de"),
            files=(
                _multi30k("train.en", "0065d13af80720a55ca8153d126e6627"),
                _multi30k("train.de", "81ff90b99829c0cd4b1b587d394afd39"),
                _multi30k("val.en", "2b69aa9253948ac9f67e94917272dd40"),
                _multi30k("val.de", "6e0e229eb049e3fc99a1ef02fb2d5f91"),
                _multi30k("test_2016_flickr.en", "ff2c0fcb4893a13bd73414306bc250ae"),
                _multi30k("test_2016_flickr.de", "efd67d314d98489b716b145475101932"),
            ),
            licence="research use; the images belong to their Flickr owners",
            citation="Elliott et al. (2016), Multi30K: Multilingual English-German Image Descriptions",
            conversion="a sentence pair is a document; test is test_2016_flickr",
        ),
        Dataset(
            name="iwslt14",
            title="IWSLT 2014: TED talks",
            languages=("de", "en"),
            files=(RemoteFile("https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"),),
            licence="CC BY-NC-ND 3.0 (TED)",
            citation="Cettolo et al. (2014), Report on the 11th IWSLT Evaluation Campaign",
            conversion=(
                "a talk is a document, without its title and description; every 23rd training talk is valid; "
                "test joins dev2010, dev2012 (TEDx), tst2010, tst2011 and tst2012, as fairseq does"
            ),
        ),
        Dataset(
            name="europarl7",
            title="Europarl: valid and test of Maruf et al. (2019), train from Europarl v9",
            languages=("en", "de"),
            files=(
                _maruf("concatenated_en2de_dev_en.txt"),
                _maruf("concatenated_en2de_dev_de.txt"),
                _maruf("concatenated_en2de_test_en.txt"),
                _maruf("concatenated_en2de_test_de.txt"),
                _statmt(
                    "europarl/v9/training/europarl-v9.de-en.tsv.gz",
                    "sha256",
                    "c2aef75d81bf06b22e4a9237319c1d53ba9668a13cb155c6b1361182cd3abc84",
                    204_454_328,
                ),
            ),
            licence="no known copyright restrictions (Europarl)",
            citation=(
                "Koehn (2005), Europarl: A Parallel Corpus for Statistical Machine Translation; "
                "Maruf et al. (2019), Selective Attention for Context-aware Neural Machine Translation"
            ),
            conversion=(
                "documents as marked in the sources; train is not the one of Maruf et al., which is not public: "
                "it is Europarl v9 without the documents that share a sentence of ten words with valid or test"
            ),
        ),
        Dataset(
            name="wmt14",
            title="WMT 2014: Europarl v7, Common Crawl, News Commentary v9; newstest2013 and 2014",
            languages=("en", "de"),
            files=(
                _statmt(
                    "wmt13/training-parallel-europarl-v7.tgz",
                    "sha256",
                    "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
                    657_632_379,
                ),
                _statmt(
                    "wmt13/training-parallel-commoncrawl.tgz",
                    "sha256",
                    "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
                    918_311_367,
                ),
                _statmt(
                    "wmt14/training-parallel-nc-v9.tgz",
                    "sha256",
                    "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
                    80_418_416,
                ),
                _statmt("wmt13/test.tgz", "md5", "48eca5d02f637af44e85186847141f67"),
                _statmt("wmt14/test-full.tgz", "md5", "a8cd784e006feb32ac6f3d9ec7eb389a"),
            ),
            licence="research use (WMT)",
            citation="Bojar et al. (2014), Findings of the 2014 Workshop on Statistical Machine Translation",
            conversion=(
                "in train a sentence pair is a document, for its sources mark none; "
                "valid (newstest2013) and test (newstest2014, all 3,003 sentences) keep theirs"
            ),
        ),
    ]
)


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
