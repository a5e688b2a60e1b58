"""`reluformer score`: figures of files, and whether a difference is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from reluformer.errors import DataError
from reluformer.translation import scoring

Invoke = Callable[..., Result]
REFERENCES = [["Der Hund läuft nach Hause.", "Er ist sehr müde heute."], ["Die alte Katze schläft im Haus."]]
GOOD = [["Der Hund läuft nach Hause.", "Er ist sehr müde."], ["Die alte Katze schläft im Haus."]]
BAD = [["Ein Hund ging nach Hause.", "Es ist müde."], ["Alte Katze schläft."]]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Each system as text; references also as JSONL with a hypothesis beside them."""
    found = {}
    for name, documents in {"ref": REFERENCES, "good": GOOD, "bad": BAD}.items():
        found[name] = tmp_path / f"{name}.txt"
        found[name].write_text("\n\n".join("\n".join(document) for document in documents) + "\n", encoding="utf-8")
    found["both"] = tmp_path / "both.jsonl"
    pairs = zip(REFERENCES, BAD, strict=True)
    found["both"].write_text("".join(json.dumps({"tgt": t, "hyp": h}) + "\n" for t, h in pairs), encoding="utf-8")
    return found


def test_figures_are_those_of_the_library(invoke: Invoke, files: dict[str, Path]) -> None:
    figures = json.loads(invoke("score", files["good"], files["ref"], "--json").stdout)
    assert figures["scores"] == json.loads(json.dumps(scoring.score(GOOD, REFERENCES).to_dict()))
    assert (figures["against"], figures["comparisons"]) == ([], [])


def test_jsonl_holds_hypotheses_and_references_at_once(invoke: Invoke, files: dict[str, Path]) -> None:
    figures = json.loads(invoke("score", files["both"], files["both"], "--json").stdout)
    assert figures["scores"]["bleu"]["value"] == scoring.score(BAD, REFERENCES).bleu.value < 100


def test_paired_bootstrap_against_a_baseline(invoke: Invoke, files: dict[str, Path]) -> None:
    arguments = ("score", files["good"], files["ref"], "--against", files["bad"])
    figures = json.loads(invoke(*arguments, "--json").stdout)
    assert [comparison["metric"] for comparison in figures["comparisons"]] == ["bleu", "d_bleu"]
    assert figures["comparisons"][0]["b"]["system"] == str(files["good"])
    assert figures["comparisons"][0]["difference"] > 0
    assert figures["against"][0]["scores"]["bleu"]["value"] < figures["scores"]["bleu"]["value"]
    shown = invoke(*arguments).stdout
    assert "paired bootstrap resampling" in shown
    assert "tok:13a" in shown


def test_a_system_equals_itself(invoke: Invoke, files: dict[str, Path]) -> None:
    figures = json.loads(invoke("score", files["good"], files["ref"], "--against", files["good"], "--json").stdout)
    assert [comparison["p_value"] for comparison in figures["comparisons"]] == [1.0, 1.0]


def test_a_single_document_is_compared_by_sentences_only(invoke: Invoke, tmp_path: Path) -> None:
    for name, document in {"ref": REFERENCES[0], "hyp": GOOD[0]}.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"tgt": document}), encoding="utf-8")
    hyp, ref = tmp_path / "hyp.jsonl", tmp_path / "ref.jsonl"
    assert "d-BLEU is not compared" in invoke("score", hyp, ref, "--against", hyp).stdout


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, r"none\.txt: cannot be read"),
        ("latin1.txt", b"caf\xe9", r"latin1\.txt: not valid UTF-8"),
        ("empty.txt", b"", r"empty\.txt"),
        ("broken.jsonl", b"{", r"broken\.jsonl, line 1: not JSON"),
        ("source.jsonl", b'{"src": ["a"]}', r"source\.jsonl, line 1: expected"),
        ("short.txt", b"Ein Satz.\n", r"short\.txt.*documents"),
    ],
)
@pytest.mark.parametrize("as_references", [False, True])
def test_wrong_files(
    invoke: Invoke,
    files: dict[str, Path],
    tmp_path: Path,
    name: str,
    content: bytes | None,
    message: str,
    as_references: bool,
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    arguments = (files["good"], path) if as_references else (path, files["ref"])
    with pytest.raises(DataError, match=message):
        invoke("score", *arguments)
