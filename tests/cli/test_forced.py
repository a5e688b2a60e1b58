"""`reluformer translate --score`: which sentences are judged as translations of which."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from reluformer.errors import DataError
from reluformer.translation.translator import load

Invoke = Callable[..., Result]
SOURCE, TARGET = ["The bag is old.", "It is big."], ["Die Tasche ist alt.", "Sie ist groß."]


@pytest.fixture
def judge(run: Path, invoke: Invoke, tmp_path: Path) -> Callable[..., Any]:
    """The figures of some documents and their translations in JSONL."""

    def judge(sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> Any:
        for name, key, documents in (("a.jsonl", "src", sources), ("b.jsonl", "tgt", targets)):
            lines = [json.dumps({"id": f"d{number}", key: one}) for number, one in enumerate(documents)]
            (tmp_path / name).write_text("\n".join(lines))
        return json.loads(
            invoke("translate", run, tmp_path / "a.jsonl", "--score", tmp_path / "b.jsonl", "--json").stdout
        )

    return judge


def test_score_of_a_given_translation(run: Path, invoke: Invoke, tmp_path: Path) -> None:
    source, target = ("The bag is old.", "It is big."), ("Die Tasche ist alt.", "Sie ist groß.")
    given = tmp_path / "given.txt"
    given.write_text("\n".join(target) + "\n", encoding="utf-8")
    expected = load(run).score([source], [target])[0]
    result = invoke("translate", run, "--score", given, stdin="\n".join(source))
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [(row[0], row[1], row[3]) for row in rows] == [("1", "1", target[0]), ("1", "2", target[1])]
    assert [float(row[2]) for row in rows] == pytest.approx(expected.sentences, abs=1e-3)
    assert f"log-probability {expected.total:.2f} of {len(expected.tokens)} tokens" in result.stderr
    as_jsonl = tmp_path / "given.NDJSON"
    as_jsonl.write_text(json.dumps({"hyp": target}), encoding="utf-8")
    figures = json.loads(invoke("translate", run, "--score", as_jsonl, "--json", stdin="\n".join(source)).stdout)
    assert figures["total"] == pytest.approx(expected.total, abs=1e-3)
    assert figures["perplexity"] == pytest.approx(math.exp(-expected.total / len(expected.tokens)), rel=1e-3)


def test_the_format_of_the_source_is_not_that_of_the_translation(run: Path, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("\n".join(SOURCE), encoding="utf-8")
    (tmp_path / "given.txt").write_text("\n".join(TARGET), encoding="utf-8")
    expected = load(run).score([SOURCE], [TARGET])[0]
    arguments = ("--format", "tsv", "--score", tmp_path / "given.txt", "--json")
    figures = json.loads(invoke("translate", run, tmp_path / "source", *arguments).stdout)
    assert figures["total"] == pytest.approx(expected.total, abs=1e-3)


def test_blank_sentences_are_in_nobodys_way(run: Path, judge: Callable[..., Any]) -> None:
    expected = load(run).score([SOURCE], [TARGET])[0]
    (found,) = judge([[SOURCE[0], "", SOURCE[1]]], [[TARGET[0], " ", TARGET[1]]])["documents"]
    assert (found["src"], found["tgt"]) == (SOURCE, TARGET)
    assert found["log_probability"] == pytest.approx(expected.total)


def test_what_is_empty_in_both_is_left_out(judge: Callable[..., Any]) -> None:
    found = judge([SOURCE, [], SOURCE], [TARGET, [""], TARGET])["documents"]
    assert [document["id"] for document in found] == ["d0", "d2"]


def test_what_is_empty_in_one_is_refused(judge: Callable[..., Any]) -> None:
    with pytest.raises(DataError, match=r"b\.jsonl: document d1 is empty, but .*a\.jsonl has sentences for it"):
        judge([SOURCE, SOURCE], [TARGET, [""]])
    with pytest.raises(DataError, match=r"a\.jsonl: document d0 is empty, but .*b\.jsonl has sentences for it"):
        judge([[" "], SOURCE], [TARGET, TARGET])
    with pytest.raises(DataError, match="holds no sentence, so there is nothing to score"):
        judge([[]], [[]])


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("both.tsv", "The bag is old.\tDie Tasche ist alt.\n", ()),
        ("both.po", 'msgid "The bag is old."\nmsgstr "Die Tasche ist alt."\n', ()),
        ("both.txt", '{"src": ["The bag is old."]}\n', ("--format", "jsonl")),
    ],
)
def test_a_column_of_sources_is_not_judged(
    run: Path, invoke: Invoke, tmp_path: Path, name: str, text: str, options: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "source.jsonl").write_text(json.dumps({"src": SOURCE[:1]}))
    with pytest.raises(
        DataError, match=rf"{name}: read as \w+, whose sentences are sources; give the translations alone"
    ):
        invoke("translate", run, tmp_path / "source.jsonl", "--score", tmp_path / name, *options)
