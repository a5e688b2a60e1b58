"""A data folder is found as `data get` writes it or as aligned text; another layout is told what is expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from reluformer.errors import DataError
from reluformer.study.corpora import data_config, find

CONTENT = {"dataset": "multi30k", "data": {"segments": {"segment_tokens": "sentence"}}}


def fill(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("", encoding="utf-8")


def test_both_layouts_are_found(tmp_path: Path) -> None:
    fill(
        tmp_path / "multi30k", *(f"{split}.{lang}.gz" for split in ("train", "valid", "test") for lang in ("en", "de"))
    )
    config = data_config(CONTENT, tmp_path)
    assert config.train.src == tmp_path / "multi30k" / "train.en.gz"
    assert config.train.documents == "line"
    fill(tmp_path / "multi30k", *(f"{split}.jsonl.gz" for split in ("train", "valid", "test")))
    assert data_config(CONTENT, tmp_path).train.path == tmp_path / "multi30k" / "train.jsonl.gz"


def test_europarl_under_either_name(tmp_path: Path) -> None:
    fill(tmp_path / "europarl7", *(f"{split}.jsonl.gz" for split in ("train", "valid", "test")))
    assert find("europarl7-doc", tmp_path, ("en", "de"))["test"] == {"path": tmp_path / "europarl7" / "test.jsonl.gz"}


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="say with --data FOLDER where it is"):
        data_config(CONTENT, None)
    (tmp_path / "wmt").mkdir()
    with pytest.raises(DataError, match="expected a folder 'multi30k' in it, found: wmt"):
        data_config(CONTENT, tmp_path)
    fill(tmp_path / "multi30k", "train.en.gz", "notes.txt")
    with pytest.raises(
        DataError, match=r"expected train\.jsonl\.gz, or train\.en\.gz with train\.de\.gz; found: notes"
    ):
        data_config(CONTENT, tmp_path)
