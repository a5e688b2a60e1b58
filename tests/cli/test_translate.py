"""`reluformer translate`: where texts come from, where they go, and what is never lost."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from reluformer import load, loading
from reluformer.cli import app, translate
from reluformer.errors import ArgumentError, ConfigError, DataError, StorageError, UnknownNameError
from reluformer.translation import formats
from reluformer.translation.document import Alignment, TranslatedSentence
from reluformer.translation.formats import FillReport
from reluformer.translation.translator import Translator
from reluformer.translation.windows import Translation

Invoke = Callable[..., Result]
SOURCE, TARGET = ["The bag is old.", "It is big."], ["Die Tasche ist alt.", "Sie ist groß."]
TEXT = "Our readers live in Austria. The bag is old.\n\n  It was very big.\n"


def in_capitals(sentence: str) -> TranslatedSentence:
    """A translation as long as its source, in which every character read the one that it translates."""
    return TranslatedSentence(sentence.upper(), Alignment.identity(sentence))


@pytest.fixture(scope="module")
def translator(run: Path) -> Translator:
    return load(run)


@pytest.fixture
def shouting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A translator whose work can be told from the text: it shouts."""

    class Shouting:
        def translate_n_best(
            self, documents: Sequence[Sequence[str]], n: int, progress: Any, aligned: Any
        ) -> list[list[Translation]]:
            return [[Translation(tuple(map(in_capitals, document)), 0.0)] for document in documents]

        def stream_translations(self, document: Sequence[str], aligned: bool) -> Iterator[TranslatedSentence]:
            return map(in_capitals, document)

    monkeypatch.setattr(loading, "load_translator", lambda run, device, **decoding: Shouting())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"a.txt": "One dog.\n", "deep/b.md": "# Two *cats*\n", "deep/.hidden.txt": "No.", "picture.png": "\x00"}
    for name, text in files.items():
        path = tmp_path / "letters" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "letters"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "1,234\n\n🎉 12!\n"),
        ("a.md", "| 1,234 | 12 % |\n|---|---|\n| 3 + 4 | – |\n"),
        ("a.html", "<table><tr><td>12</td><td>1,234 &amp; 5</td></tr></table>"),
        ("a.srt.txt", "1 2 3\n"),
        ("formulas.txt", "12\nE=mc^2\n\n$E = mc^2$\n$$\\frac{a}{b}$$\n"),
        ("formulas.md", "12\n\nE=mc^2\n\n$E = mc^2$\n\n$$\\frac{a}{b}$$\n"),
    ],
)
def test_what_has_no_letters_is_copied_exactly(run: Path, invoke: Invoke, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    result = invoke("translate", run, tmp_path / name)
    assert result.stdout == text
    assert "which hold no words" in result.stderr


def test_the_number_of_copied_sentences_is_in_the_summary(run: Path, invoke: Invoke) -> None:
    text = "A dog.\n12\n\n1,234\n"
    listed = json.loads(invoke("translate", run, "--format", "aligned", "--json", stdin=text).stdout)
    assert (listed["summary"]["sentences"], listed["summary"]["copied"]) == (3, 2)
    assert listed["documents"][1]["translations"][0]["sentences"] == ["1,234"]
    assert "copied 2 of 3 sentences" in invoke("translate", run, "--format", "aligned", stdin=text).stderr


def test_standard_input_becomes_standard_output(run: Path, invoke: Invoke, translator: Translator) -> None:
    result = invoke("translate", run, stdin=TEXT)
    assert result.exit_code == 0
    report = FillReport()
    assert result.stdout == translator.translate([TEXT], report=report)[0]
    assert result.stderr == (f"{report}\n" if str(report) else "")


@pytest.mark.usefixtures("shouting")
def test_a_dash_is_standard_input_and_standard_output(
    run: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.md").write_text("# A *dog*\n\n12!\n")
    result = invoke("translate", run, "a.md", "--to", "-")
    assert (result.stdout, result.stderr) == ("# A *DOG*\n\n12!\n", "copied 1 of 2 sentences, which hold no words\n")
    assert invoke("translate", run, "-", "--to", "-", stdin=TEXT).stdout == TEXT.upper()
    assert invoke("translate", run, "--to", "-", "--stream", stdin=TEXT).stdout == TEXT.upper()
    assert not Path("-").exists()
    for wrong, message in (
        (["a.md", "-"], "- is standard input, which is translated alone"),
        (["a.md", "a.md", "--to", "-"], "name it with --to DIR"),
    ):
        with pytest.raises(ArgumentError, match=message):
            invoke("translate", run, *wrong)


def test_options_reach_the_search(run: Path, invoke: Invoke) -> None:
    options = (
        "--beam",
        "1",
        "--length-penalty",
        "0.3",
        "--set",
        "decoding.window_tokens=sentence",
        "--set",
        "stop=beam",
    )
    result = invoke("translate", run, *options, stdin=TEXT)
    other = load(run, beam=1, length_penalty=0.3, window_tokens="sentence", stop="beam")
    assert result.stdout == other.translate([TEXT])[0]


def test_int8_weights(run: Path, invoke: Invoke) -> None:
    quantised = load(run, int8=True)
    assert quantised.decoder.int8 and quantised.model is quantised.decoder.model
    assert invoke("translate", run, "--int8", stdin=TEXT).stdout == quantised.translate([TEXT])[0]


def test_streaming_gives_the_same_text(run: Path, invoke: Invoke, translator: Translator) -> None:
    assert invoke("translate", run, "--stream", stdin=TEXT).stdout == translator.translate([TEXT])[0]


@pytest.mark.usefixtures("shouting")
def test_what_is_no_sentence_is_streamed_as_it_is(run: Path, invoke: Invoke) -> None:
    assert invoke("translate", run, "--stream", stdin=TEXT.replace("\n", "\r\n")).stdout_bytes == (
        TEXT.replace("\n", "\r\n").upper().encode()
    )


def test_a_sentence_is_printed_before_the_next_is_known(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def stream_translations(self, document: Sequence[str], aligned: bool) -> Iterator[TranslatedSentence]:
            yield in_capitals(document[0])
            raise DataError("the second sentence never comes")

    monkeypatch.setattr(loading, "load_translator", lambda run, device, **decoding: Slow())
    result = CliRunner().invoke(app, ["translate", str(run), "--stream"], input=TEXT)
    assert isinstance(result.exception, DataError)
    assert result.stdout == "OUR READERS LIVE IN AUSTRIA. "


def test_n_best_in_columns_and_as_json(run: Path, invoke: Invoke, translator: Translator) -> None:
    text = "The bag is old.\nIt is big.\n\nMy sister saw it.\n"
    options = ("--format", "aligned", "--n-best", "2")
    rows = [line.split("\t") for line in invoke("translate", run, *options, stdin=text).stdout.splitlines()]
    documents = [("The bag is old.", "It is big."), ("My sister saw it.",)]
    expected = translator.translate_n_best(documents, 2)
    assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"], ["2", "1"], ["2", "2"]]
    assert [row[3] for row in rows] == [" ".join(" ".join(t.sentences).split()) for best in expected for t in best]
    assert float(rows[0][2]) == pytest.approx(expected[0][0].score, abs=1e-3)
    listed = json.loads(invoke("translate", run, *options, "--json", stdin=text).stdout)["documents"]
    assert [tuple(document["src"]) for document in listed] == documents
    assert listed[1]["translations"][1]["sentences"] == list(expected[1][1].sentences)


@pytest.mark.usefixtures("shouting")
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.md", "# A *dog*\n\n`code` stays.\n", "# A *DOG*\n\n`code` STAYS.\n"),
        ("a.jsonl", '{"id": "x", "src": ["a b", ""]}\n', '{"id": "x", "src": ["a b", ""], "tgt": ["A B", ""]}\n'),
        ("a.tsv", "one dog\t\n\ntwo\tzwei\n", "one dog\tONE DOG\n\ntwo\tzwei\tTWO\n"),
        ("a.en", "one dog. two\n", "ONE DOG. TWO\n"),
        ("a.po", 'msgid "one dog"\nmsgstr ""\n', 'msgid "one dog"\nmsgstr "ONE DOG"\n'),
    ],
)
def test_formats_by_name(run: Path, invoke: Invoke, tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    place = tmp_path / "out" / name
    assert invoke("translate", run, tmp_path / name, "--to", place).stdout == ""
    assert place.read_text(encoding="utf-8") == expected


@pytest.mark.usefixtures("shouting")
def test_packed_files_stay_packed(run: Path, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.md.gz").write_bytes(gzip.compress(b"# A dog\n"))
    invoke("translate", run, tmp_path / "a.md.gz", "--to", tmp_path / "b.md.gz")
    assert gzip.decompress((tmp_path / "b.md.gz").read_bytes()) == b"# A DOG\n"


@pytest.mark.usefixtures("shouting")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_read_like_a_file(run: Path, invoke: Invoke, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("A dog.\n",))
    writer.start()
    invoke("translate", run, tmp_path / "pipe", "--to", tmp_path / "out.txt")
    writer.join()
    assert (tmp_path / "out.txt").read_text() == "A DOG.\n"


@pytest.mark.usefixtures("shouting")
def test_folders_keep_their_structure(run: Path, invoke: Invoke, folder: Path, tmp_path: Path) -> None:
    result = invoke("translate", run, folder, "--to", tmp_path / "out")
    written = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert written == {"a.txt", "deep/b.md"}
    assert (tmp_path / "out" / "deep" / "b.md").read_text() == "# TWO *CATS*\n"
    assert "skipped 1 files" in result.stderr


@pytest.mark.usefixtures("shouting")
def test_nothing_is_overwritten_without_force(run: Path, invoke: Invoke, folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "out" / "deep" / "b.md"
    place.parent.mkdir(parents=True)
    place.write_text("mine")
    with pytest.raises(StorageError, match=r"b\.md: exists already; --force"):
        invoke("translate", run, folder, "--to", tmp_path / "out")
    assert place.read_text() == "mine"
    assert not (tmp_path / "out" / "a.txt").exists()
    invoke("translate", run, folder, "--to", tmp_path / "out", "--force")
    assert place.read_text() == "# TWO *CATS*\n"


def test_an_interruption_keeps_what_is_finished(
    run: Path, invoke: Invoke, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        calls = 0

        def translate_n_best(
            self, documents: Sequence[Sequence[str]], n: int, progress: Any, aligned: Any
        ) -> list[list[Translation]]:
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return [[Translation(tuple(map(in_capitals, document)), 0.0)] for document in documents]

    interrupted = Interrupted()
    monkeypatch.setattr(loading, "load_translator", lambda run, device, **decoding: interrupted)
    monkeypatch.setattr(translate, "SENTENCES_TOGETHER", 1)
    result = invoke("translate", run, folder, "--to", tmp_path / "out")
    assert result.exit_code == 1
    assert f"interrupted; finished 1 of 2 texts:\n  {tmp_path / 'out' / 'a.txt'}" in result.stderr
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["a.txt"]


def test_an_empty_text_stays_empty(run: Path, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    result = invoke("translate", run, tmp_path / "empty.txt", "--to", tmp_path / "out.txt")
    assert result.exit_code == 0
    assert "empty.txt: nothing to translate" in result.stderr
    assert (tmp_path / "out.txt").read_text() == ""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["none.txt"], DataError, r"none\.txt: no such file or folder"),
        (["latin1.txt"], DataError, r"latin1\.txt: not valid UTF-8 at byte 3"),
        (["bad.jsonl"], DataError, r"bad\.jsonl: line 1: not JSON"),
        (["a.txt", "b.txt"], ArgumentError, r"name it with --to DIR"),
        (["a.txt", "sub/a.txt", "--to", "out"], ArgumentError, r"would both become out/a\.txt"),
        (["a.txt", "b.txt", "--to", "b.txt"], ArgumentError, r"--to b\.txt: is a file"),
        (["a.txt", "--to", "./"], ArgumentError, r"a\.txt: is the text itself"),
        (["sub", "--to", "sub/out"], ArgumentError, r"lies inside sub"),
        (["nothing", "--to", "out"], DataError, r"nothing: no file has the name of a text"),
        (["a.txt", "--to", "place"], StorageError, r"place/a\.txt: is a folder"),
        (["a.txt", "--format", "plian"], UnknownNameError, r"unknown format 'plian'; did you mean 'plain'"),
        (["a.txt", "--splitter", "simpel"], UnknownNameError, r"did you mean 'simple'"),
        (["a.txt", "--set", "beam"], ConfigError, r"--set beam: write it as key=value"),
        (["a.txt", "--set", "beem=3"], ConfigError, r"unknown key 'beem'; did you mean 'beam'"),
        (["a.txt", "--set", "beam=few"], ConfigError, r"'beam'.*few"),
        (["a.txt", "--device", "abacus"], ArgumentError, r"device abacus"),
        (["a.txt", "--stream", "--json"], ArgumentError, r"leave it or --json out"),
        (["a.txt", "--score", "b.txt", "--n-best", "2"], ArgumentError, r"leave one out"),
        (["a.txt", "b.txt", "--to", "out", "--json"], ArgumentError, r"one text at a time"),
        (["good.jsonl", "--stream"], ArgumentError, r"--stream is for plain text"),
        (["a.txt", "--score", "good.jsonl"], DataError, r"good\.jsonl: 2 documents, but a\.txt has 1"),
        (["empty.txt", "--score", "a.txt"], DataError, r"empty\.txt: holds no sentence"),
    ],
)
def test_wrong_input(
    run: Path,
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("sub", "nothing", "place/a.txt"):
        Path(folder).mkdir(parents=True)
    for name in ("a.txt", "b.txt", "sub/a.txt"):
        Path(name).write_text("A dog.\n")
    Path("empty.txt").write_text("")
    Path("latin1.txt").write_bytes(b"caf\xe9")
    Path("bad.jsonl").write_text("{")
    Path("good.jsonl").write_text('{"src": ["a"], "tgt": ["b"]}\n' * 2)
    with pytest.raises(error, match=message):
        invoke("translate", run, *arguments)
    assert not Path("out").exists()


def test_wrong_runs(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "recipe.yaml").write_text("")
    (unfinished / "status.json").write_text('{"status": "interrupted"}')
    for name, message in {
        "none": "no such directory",
        "file": "is a file",
        "folder": "not a run",
        "unfinished": "the run is interrupted and has no model yet; `reluformer train`",
    }.items():
        with pytest.raises(StorageError, match=message):
            invoke("translate", tmp_path / name)


def test_a_folder_of_runs_is_told_their_names(run: Path, invoke: Invoke) -> None:
    with pytest.raises(StorageError, match="not a run, it holds the runs trained; name one of them"):
        invoke("translate", run.parent)


def test_a_folder_of_runs_stands_for_its_reluformer(run: Path, tmp_path: Path, invoke: Invoke) -> None:
    shutil.copytree(run, tmp_path / "reluformer")
    assert invoke("translate", tmp_path, stdin=TEXT).stdout == invoke("translate", run, stdin=TEXT).stdout


def test_help_names_every_format(invoke: Invoke) -> None:
    listed = translate.FORMATS.replace(" (one sentence a line)", "").replace(" or ", ", ").split(", ")
    assert listed == list(formats.names())
    assert "html" in invoke("translate", "--help").stdout


def test_wrong_use_is_exit_code_2(run: Path, invoke: Invoke) -> None:
    for wrong in (["--beam", "0"], ["--n-best", "many"], ["--length-penalty", "-1"]):
        assert invoke("translate", run, *wrong).exit_code == 2


def test_as_a_user_types_it(run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "reluformer", "translate", str(run)]
    good = subprocess.run(command, input="Grüße a dog.\n".encode(), capture_output=True, check=False)
    assert (good.returncode, good.stderr) == (0, b"")
    assert good.stdout.endswith(b"\n")
    bad = subprocess.run(command, input=b"caf\xe9", capture_output=True, check=False)
    assert bad.returncode == 1
    assert b"error: standard input: not valid UTF-8" in bad.stderr
    assert b"Traceback" not in bad.stderr


# ---------------------------------------------------------------------- --score


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "letter.docx",
            "is a document of a word processor, not text; save it as HTML or plain text, e.g. with: soffice",
        ),
        ("table.XLSX", "is a spreadsheet, not text; export it as csv or plain text"),
        ("paper.pdf", "is a file with a layout, not text; pdftotext paper.pdf"),
    ],
)
def test_what_is_not_text_gets_a_helpful_word(
    invoke: Invoke, run: Path, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04\xff")
    with pytest.raises(DataError, match=re.escape(message)):
        invoke("translate", run, tmp_path / name)


def test_an_unfinished_run_says_which_weights_it_translates_with(invoke: Invoke, run: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    shutil.copytree(run, unfinished)
    for name in ("config.json", "model.safetensors"):
        (unfinished / name).unlink()
    result = invoke("translate", unfinished, stdin="The lamp is new.\n")
    assert result.stdout == invoke("translate", run / "best", stdin="The lamp is new.\n").stdout
    assert result.stderr.startswith(f"{unfinished}: the training has not finished; using its best weights so far")
    assert result.stderr.count("best weights") == 1
