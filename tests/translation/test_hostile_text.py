"""Hostile text: every format needs time in proportion to its length, and every error says where.

The long texts are parsed in a process of their own, which is killed after some minutes. A
parser that needs quadratic time for one of them would need hours.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from reluformer.errors import DataError
from reluformer.translation import formats, scoring
from reluformer.translation.corpus import read_documents
from reluformer.translation.document import Document
from reluformer.translation.downloads.convert import read_segments, unescape
from reluformer.translation.formats import plain
from reluformer.translation.recipe import CorpusSource

SIZE = 500_000
"""The characters of a hostile text: ten times the limit of a server."""
SECONDS = 240
PARSE = """
import sys
from pathlib import Path
from reluformer.errors import DataError
from reluformer.translation import formats

for path in sorted(Path(sys.argv[1]).iterdir()):
    name = path.suffix[1:]
    codec = formats.PlainText(wrapped=True) if name == "wrapped" else formats.get(name)
    try:
        sentences, skeleton = codec.parse(formats.read_text(path))
        skeleton.fill([sentence + " x" for sentence in sentences])
    except DataError:
        pass
    print(path.stem, flush=True)
"""
PO_HEAD = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
ROW = "|a" * 9000 + "|\n" + "|-" * 9000 + "|\n"
TEXTS = {
    "spaces.plain": "a" + " " * SIZE + "b",
    "placeholder-of-zeros.plain": "a %" + "0" * SIZE,
    "braces.plain": "a " + "{" * SIZE,
    "open-placeholders.plain": "a " + "%({{b" * (SIZE // 5),
    "many-placeholders.plain": "a %s " * (SIZE // 10),
    "address-of-braces.plain": "a http://" + "{a}" * (SIZE // 3) + "}" * SIZE,
    "addresses.plain": "a " + "www." * (SIZE // 4),
    "placeholder-of-zeros.markdown": "a %" + "0" * SIZE,
    "formulas.plain": "a " + "(=)" * (SIZE // 3) + " b=c" * 10_000,
    "dollars.markdown": "a " + "$b\\$" * (SIZE // 4) + " $c" * 10_000,
    "displays.markdown": "a " + "$$b " * (SIZE // 8) + "\\" * (SIZE // 5),
    "braces.html": "a " + "{" * SIZE,
    "braces.tsv": "a " + "{{a" * (SIZE // 3) + "\n",
    "braces.jsonl": '{"src": ["a ' + "${" * (SIZE // 2) + '"]}\n',
    "spaces.wrapped": "a" + " " * SIZE + "b",
    "lines-of-spaces.wrapped": "a" + "    \n b" * (SIZE // 7),
    "stops.plain": "." * SIZE,
    "letters-with-dots.plain": "a." * (SIZE // 2),
    "unclosed-tag.html": "<b>" + "a" * SIZE,
    "unclosed-tags.html": "<b>a" * (SIZE // 4),
    "unclosed-code.html": "<code>" + "a" * SIZE + "</code" + " " * SIZE,
    "quotes-in-tags.html": "<a \"'" * (SIZE // 5),
    "marks-in-a-long-sentence.html": "<b>a</b> " * 190 + "a " * (SIZE // 2),
    "sentences-with-tags.html": "A <b>c</b> b. " * (SIZE // 14),
    "sentences-with-code.markdown": "A `c` b. " * (SIZE // 9),
    "front-matter-of-windows.markdown": "---\n" + "a\r\n" * 1000,
    "spaces-in-a-line.markdown": "a" + " " * SIZE + "b  \nc",
    "escaped-bars.markdown": ROW + "|a\\|" * 9000 + "|\n",
    "nul-in-cells.markdown": ROW + "|b\0" * 9000 + "|\n",
    "openings.xliff": "<xliff " * (SIZE // 7),
    "placeholder-of-zeros.po": PO_HEAD + 'msgid "%' + "0" * SIZE + '"\nmsgstr ""\n',
    "plural-declarations.po": 'msgid ""\nmsgstr "Plural-Forms: ' + "nplurals=x" * (SIZE // 10) + '\\n"\n\n'
    'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n',
    "spaces.tsv": (" " * 1000 + "\t" + "a" + " " * 1000 + "\n") * (SIZE // 2000),
}


def test_time_grows_with_the_length_and_not_with_its_square(tmp_path: Path) -> None:
    pytest.importorskip("translate", reason="translate-toolkit is not installed")
    names = {f"{number:02}-{name.partition('.')[0]}": name for number, name in enumerate(TEXTS)}
    for stem, name in names.items():
        (tmp_path / f"{stem}.{name.partition('.')[2]}").write_bytes(TEXTS[name].encode())
    command = [sys.executable, "-c", PARSE, str(tmp_path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=True).stdout
    except subprocess.TimeoutExpired as late:
        done = late.stdout or b""
    unfinished = [name for stem, name in names.items() if stem not in done.decode().split()]
    assert not unfinished, f"{unfinished[0]} did not end"


def po(nplurals: str) -> str:
    head = f'msgid ""\nmsgstr ""\n"Plural-Forms: nplurals={nplurals}; plural=0;\\n"\n\n'
    return head + 'msgid "One word"\nmsgid_plural "Many words"\nmsgstr[0] ""\nmsgstr[1] ""\n'


@pytest.mark.parametrize("nplurals", ["999999999999", "0", "7", "-1", "²", "9" * 5000, "2x"])
def test_plural_forms_that_no_language_has_are_refused(nplurals: str) -> None:
    pytest.importorskip("translate", reason="translate-toolkit is not installed")
    with pytest.raises(DataError, match=r"the header says nplurals=.{1,20}, but a language has 1 to 6 plural forms"):
        formats.get("po").parse(po(nplurals))


@pytest.mark.parametrize(("nplurals", "count"), [("1", 1), ("2", 2), ("6", 6), ("INTEGER", 2)])
def test_plural_forms_of_a_language_are_all_filled(nplurals: str, count: int) -> None:
    pytest.importorskip("translate", reason="translate-toolkit is not installed")
    sentences, skeleton = formats.get("po").parse(po(nplurals))
    assert sentences == ("One word", "Many words")
    filled = skeleton.fill(["Ein Wort", "Viele Worte"])
    assert [f"msgstr[{number}]" in filled for number in range(7)] == [number < count for number in range(7)]


def test_a_character_reference_of_thousands_of_digits() -> None:
    text = f"A &#{'9' * 5000}; dog &#228;."
    (sentence,), skeleton = formats.get("html").parse(text)
    assert sentence == "A \ufffd dog ä." and skeleton.fill([sentence]) == text
    assert unescape(text) == f"A &#{'9' * 5000}; dog ä."


def test_segments_without_an_end_are_read_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "test.sgm"
    path.write_text("<doc docid=a><seg id=2> <i>y</i> </seg>" + "<seg id=1>x\n" * 100_000, encoding="utf-8")
    (document,) = read_segments(path)
    assert document.sentences == {"2": "<i>y</i>"}


DEEP = "[" * 3000 + "]" * 3000
BAD_JSON = {
    "deep": (f'{{"src": ["a"], "tgt": ["b"], "id": {DEEP}}}', "nested more than 100 deep"),
    "rather-deep": (f'{{"src": ["a"], "tgt": ["b"], "id": {DEEP[2900:3100]}}}', "nested more than 100 deep"),
    "digits": (f'{{"src": ["a"], "tgt": ["b"], "id": {"9" * 5000}}}', "a number has too many digits"),
    "half-a-character": ('{"src": ["a"], "tgt": ["b"], "id": "\\ud800"}', "holds half a surrogate pair"),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_a_hostile_line_of_json_is_refused_with_its_place(case: str, tmp_path: Path) -> None:
    line, message = BAD_JSON[case]
    with pytest.raises(DataError, match=f"line 2: .*{message}"):
        formats.get("jsonl").parse('{"src": ["a"]}\n' + line)
    path = tmp_path / "a.jsonl"
    path.write_text('{"src": ["a"], "tgt": ["b"]}\n' + line, encoding="utf-8")
    with pytest.raises(DataError, match=f"a.jsonl:2: .*{message}"):
        list(read_documents(CorpusSource(path=path)))


@pytest.mark.parametrize("case", ["deep", "rather-deep", "digits"])
def test_hostile_hypotheses_are_refused_with_their_place(case: str, tmp_path: Path) -> None:
    line, message = BAD_JSON[case]
    path = tmp_path / "a.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(DataError, match=f"a.jsonl, line 1: .*{message}"):
        scoring.read_hypotheses(path)


def test_half_a_character_in_a_hypothesis(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"hyp": ["a", "\\udfff"]}', encoding="utf-8")
    with pytest.raises(DataError, match=r'a\.jsonl, line 1: sentence 2 of "hyp" holds half a surrogate pair'):
        scoring.read_hypotheses(path)


def test_half_a_character_beside_the_sentences_of_a_document() -> None:
    with pytest.raises(DataError, match="line 1: holds half a surrogate pair"):
        formats.get("jsonl").parse('{"src": ["a"], "hyp": [], "note": "\\ud800"}')
    (sentence,), skeleton = formats.get("jsonl").parse('{"src": ["a"], "hyp": [], "note": "\\ud83d\\ude00"}')
    assert json.loads(skeleton.fill([sentence]))["note"] == "\U0001f600"


def test_whole_documents_still_pass(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"src": ["a"], "tgt": ["b"], "id": [[1]]}', encoding="utf-8")
    assert list(read_documents(CorpusSource(path=path))) == [Document("[[1]]", ("a",), ("b",))]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_text_that_would_take_all_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(plain, "MOST_BYTES", 1000)
    content = b"a" * 1001
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError, match="has more than 1,000 bytes"):
        formats.read_text(tmp_path / name)
    with pytest.raises(DataError, match="/dev/zero: has more than 1,000 bytes"):
        formats.read_text("/dev/zero")


@pytest.mark.parametrize("name", ["tmx", "xliff"])
def test_external_entities_are_not_read(tmp_path: Path, name: str) -> None:
    pytest.importorskip("translate", reason="translate-toolkit is not installed")
    (tmp_path / "secret").write_text("password", encoding="utf-8")
    head = f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x SYSTEM "{(tmp_path / "secret").as_uri()}">]>'
    body = {
        "tmx": '<tmx version="1.4"><header/><body><tu><tuv xml:lang="en"><seg>A &x; b</seg></tuv></tu></body></tmx>',
        "xliff": '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en" '
        'datatype="x" original="a"><body><trans-unit id="1"><source>A &x; b</source></trans-unit></body>'
        "</file></xliff>",
    }
    sentences, skeleton = formats.get(name).parse(head + body[name])
    assert "password" not in "".join(sentences) + skeleton.fill(["B"] * len(sentences))
