"""`reluformer inspect`: the history of a run, and what a translation read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from reluformer import load
from reluformer.cli.inspect import most_read, sparkline
from reluformer.errors import ArgumentError, DataError, StorageError
from reluformer.training.run import RunDirectory
from reluformer.translation.inspection import ReadWindow, Word, read_map
from reluformer.translation.recipe import Recipe
from reluformer.translation.tokenizer import END, SEPARATOR

Invoke = Callable[..., Result]
SENTENCES = ["Our readers live in Austria.", "It was very big."]


def test_history_of_a_finished_run(run: Path, invoke: Invoke) -> None:
    found = json.loads(invoke("inspect", run, "--json").stdout)
    log = RunDirectory(run).log
    assert (found["status"], found["reason"], found["updates"], found["updates_asked"]) == (
        "finished",
        "updates",
        20,
        20,
    )
    assert [event["step"] for event in found["validation"]] == [5, 10, 15, 20]
    assert found["best_loss"] == min(event["loss"] for event in log.events("valid"))
    assert found["telemetry"] == log.events("telemetry")[-1]
    assert found["tokens"] == RunDirectory(run).status["result"]["tokens"]


def test_a_damaged_line_of_the_log_is_reported(run: Path, invoke: Invoke, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    log = RunDirectory(copy).log
    log.path.write_bytes(log.path.read_bytes().replace(b'"step": 10', b'"step": 11', 1))
    (problem,) = log.problems()
    found = json.loads(invoke("inspect", copy, "--json").stdout)
    assert found["damaged"] == [problem]
    assert "left out a line of the log" in invoke("inspect", copy).stdout


@pytest.mark.parametrize("columns", ["80", "120"])
def test_history_fits_the_terminal(run: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    shown = invoke("inspect", run).stdout
    assert max(map(len, shown.splitlines())) <= int(columns)
    assert "…" not in shown
    for part in ("finished (updates)", "20 of 20", "best", "memories at update 20", "decoder.0.cross", "head 1"):
        assert part in shown
    assert ("relu_plain" in shown) == (columns == "120")


def test_history_of_a_run_that_has_not_got_far(invoke: Invoke, recipe: Recipe, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "young")
    directory.begin(recipe)
    directory.set_status("diverged", message="the loss of update 3 is not finite")
    shown = invoke("inspect", directory.path).stdout
    assert "diverged (the loss of update 3 is not finite)" in shown
    assert "0 of 20" in shown
    assert "The log has no telemetry of the memories yet" in shown
    directory.log.append("valid", 1, loss=float("nan"), perplexity=float("nan"), bleu=1.5)
    directory.log.append("valid", 2, loss=2.0, perplexity=7.4, bleu=2.25)
    shown = invoke("inspect", directory.path).stdout
    assert "2.25" in shown
    assert json.loads(invoke("inspect", directory.path, "--json").stdout)["best_step"] == 2


def test_many_validations_are_thinned_out_but_the_best_is_shown(invoke: Invoke, recipe: Recipe, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "long")
    directory.begin(recipe)
    for step in range(1, 101):
        directory.log.append("valid", step, loss=1.0 if step == 42 else 2.0, perplexity=3.0)
    lines = [line.split() for line in invoke("inspect", directory.path).stdout.splitlines()]
    rows = [line for line in lines if len(line) > 2 and line[2] == "3.00"]
    assert len(rows) <= 13
    assert ["42", "1.0000", "3.00", "best"] in rows
    assert rows[-1][0] == "100"


def test_sparkline() -> None:
    assert sparkline([0, 7, 3.5], 10) == "▁█▅"
    assert sparkline([1, 1], 10) == "▁▁"
    assert sparkline([0, 0, 7, 7], 2) == "▁█"


def read_by_hand(run: Path, **choice: Any) -> dict[str, Any]:
    """The reads of the two sentences, token by token, without the code that groups them."""
    translator = load(run)
    tokenizer = translator.tokenizer
    translation = translator.translate_documents([SENTENCES])[0]

    def tokens(sentences: list[str]) -> list[int]:
        first, second = (tokenizer.encode(sentence) for sentence in sentences)
        return [*first, SEPARATOR, *second, END]

    found = read_map(translator.model, tokens(SENTENCES), tokens(translation), **choice)
    weights = [weight for head in found.heads for row in head.rows for _, weight in row]
    return {"zero_fraction": found.zero_fraction, "total": sum(weights)}


@pytest.mark.parametrize("choice", [{}, {"layer": 0, "head": 1}])
def test_reads_by_word_lose_no_weight(run: Path, invoke: Invoke, tmp_path: Path, choice: dict[str, int]) -> None:
    document = tmp_path / "document.txt"
    document.write_text(" ".join(SENTENCES) + "\n")
    options = [text for name, value in choice.items() for text in (f"--{name}", str(value))]
    found = json.loads(invoke("inspect", run, document, *options, "--json").stdout)
    expected = read_by_hand(run, **choice)
    assert found["zero_fraction"] == pytest.approx(expected["zero_fraction"])
    (window,) = found["windows"]
    words = [word["text"] for word in window["source"]]
    assert words == [*SENTENCES[0].split(), "<sep>", *SENTENCES[1].split(), "<end>"]
    assert [word["sentence"] for word in window["source"]] == [0] * 6 + [1] * 5
    reads = [read for word in window["target"] for read in word["reads"]]
    assert sum(weight for _, weight in reads) == pytest.approx(expected["total"], rel=1e-4)
    assert all(weight > 0 and place < len(words) for place, weight in reads)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_self_attention_by_word_loses_no_weight(run: Path, invoke: Invoke, kind: Any) -> None:
    found = json.loads(
        invoke("inspect", run, "-", "--attention", kind, "--layer", "0", "--json", stdin=" ".join(SENTENCES)).stdout
    )
    expected = read_by_hand(run, layer=0, attention=kind)
    assert (found["attention"], found["zero_fraction"]) == (kind, pytest.approx(expected["zero_fraction"]))
    (window,) = found["windows"]
    readers, others = (window["source"], window["target"])[:: 1 if kind == "encoder" else -1]
    assert not any("reads" in word for word in others)
    weights = [weight for word in readers for _, weight in word["reads"]]
    assert sum(weights) == pytest.approx(expected["total"], rel=1e-4)
    if kind == "decoder":
        assert [word["text"] for word in window["readable"][:2]] == ["<begin>", window["target"][0]["text"]]
        for place, word in enumerate(readers):
            assert all(read <= place + 1 for read, _ in word["reads"]), "nothing after the word itself"
        assert [read for read, _ in readers[0]["reads"]][:1] in ([], [0], [1])
    else:
        assert window["readable"] == [{k: v for k, v in word.items() if k != "reads"} for word in readers]
    shown = invoke("inspect", run, "-", "--attention", kind, "--top", "2", stdin=" ".join(SENTENCES)).stdout
    assert all(word in shown for word in [read["text"] for read in readers if not read["is_mark"]])


def test_reads_in_the_terminal(run: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = invoke("inspect", run, "-", "--top", "2", stdin=" ".join(SENTENCES))
    lines = result.stdout.splitlines()
    assert "  1  Our readers live in Austria." in [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= 80
    assert "of the weights are exactly zero" in result.stdout


def test_words_are_shown_with_their_shares_and_sentences() -> None:
    source = tuple(Word(text, number) for number, text in enumerate(("dog", "ran", "home")))
    window = ReadWindow(source, (), (), 0.0, 1)

    def shown(reads: dict[int, float], top: int, width: int = 80) -> str:
        return most_read(window, Word("Hund", 0), reads, top, width).plain

    assert shown({0: 3.0, 1: 1.0}, top=5) == "dog 75%  ran [2] 25%"
    assert shown({0: 3.0, 1: 1.0, 2: 4.0}, top=1) == "home [3] 50%  +2"
    assert shown({0: 3.0, 1: 1.0}, top=5, width=10) == "dog 75%\nran [2] 25%"
    assert shown({}, top=5) == "nothing"


def test_a_document_longer_than_a_window_is_read_in_parts(run: Path, invoke: Invoke) -> None:
    options = ("--set", "window_tokens=20", "--json")
    found = json.loads(invoke("inspect", run, "-", *options, stdin=" ".join(SENTENCES * 2)).stdout)
    assert len(found["windows"]) > 1
    words = [word for window in found["windows"] for word in window["source"]]
    assert [word["text"] for word in words if not word["text"].startswith("<")] == " ".join(SENTENCES * 2).split()
    assert sorted({word["sentence"] for word in words}) == [0, 1, 2, 3]
    assert "window 2 of" in invoke("inspect", run, "-", *options[:2], stdin=" ".join(SENTENCES * 2)).stdout


def test_wrong_use(run: Path, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(DataError, match=r"empty\.txt: holds no sentence"):
        invoke("inspect", run, tmp_path / "empty.txt")
    with pytest.raises(DataError, match="standard input: not valid UTF-8"):
        invoke("inspect", run, "-", stdin=b"\xff")
    with pytest.raises(DataError, match=r"none\.txt: cannot be read"):
        invoke("inspect", run, tmp_path / "none.txt")
    with pytest.raises(ArgumentError, match="give a DOCUMENT"):
        invoke("inspect", run, "--layer", "0")
    with pytest.raises(ArgumentError, match="--attention encode: did you mean 'encoder'"):
        invoke("inspect", run, "-", "--attention", "encode", stdin="A dog.")
    with pytest.raises(ArgumentError, match="layer 7 does not exist"):
        invoke("inspect", run, "-", "--layer", "7", stdin="A dog.")
    with pytest.raises(StorageError, match="no such directory"):
        invoke("inspect", tmp_path / "none")
    with pytest.raises(StorageError, match="not a run"):
        invoke("inspect", tmp_path)
