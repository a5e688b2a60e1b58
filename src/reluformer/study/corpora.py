"""Where the corpora of the study are: a folder that holds one folder for each set.

DATA/multi30k/train.jsonl.gz, valid.jsonl.gz, test.jsonl.gz      as `reluformer data get` writes them
DATA/multi30k/train.en.gz, train.de.gz, ...                      or aligned text, one sentence a line
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reluformer.errors import DataError
from reluformer.translation.recipe import DataConfig

ALSO_CALLED = {"europarl7-doc": ("europarl7-doc", "europarl7")}
SPLITS = ("train", "valid", "test")


def data_config(content: Mapping[str, Any], root: Path | None) -> DataConfig:
    """The data section of a run with the files of its set; the embedded corpus names no files."""
    data = dict(content["data"])
    if content["dataset"] == "embedded":
        return DataConfig(**data)
    languages = (data.get("source_lang", "en"), data.get("target_lang", "de"))
    return DataConfig(**data, **find(str(content["dataset"]), root, languages)).resolved()


def find(name: str, root: Path | None, languages: tuple[str, str]) -> dict[str, Any]:
    """The files of a set, by split."""
    if root is None:
        raise DataError(f"the set '{name}' is needed; say with --data FOLDER where it is, FOLDER/{name}/train.jsonl.gz")
    folders = [root / called for called in ALSO_CALLED.get(name, (name,))]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        there = ", ".join(sorted(path.name for path in root.iterdir())[:8]) if root.is_dir() else "no such folder"
        raise DataError(f"{root}: expected a folder '{name}' in it, found: {there or 'nothing'}")
    return {split: _split(folder, split, languages) for split in SPLITS}


def _split(folder: Path, split: str, languages: tuple[str, str]) -> dict[str, Any]:
    for ending in ("jsonl.gz", "jsonl"):
        if (folder / f"{split}.{ending}").is_file():
            return {"path": folder / f"{split}.{ending}"}
    for ending in (".gz", ""):
        pair = [folder / f"{split}.{language}{ending}" for language in languages]
        if all(path.is_file() for path in pair):
            return {"src": pair[0], "tgt": pair[1], "documents": "line"}
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    names = " with ".join(f"{split}.{language}.gz" for language in languages)
    raise DataError(f"{folder}: expected {split}.jsonl.gz, or {names}; found: {there}")


def prepared_name(config: DataConfig) -> str:
    """A folder name that changes whenever the configuration or one of its files does."""
    state = [
        (str(path), path.stat().st_size, path.stat().st_mtime_ns) for s in config.splits.values() for path in s.files
    ]
    text = json.dumps([config.model_dump(mode="json"), state], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
