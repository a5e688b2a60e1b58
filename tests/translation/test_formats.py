"""Formats: what comes out can go back in, and only the words change."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reluformer.errors import DataError, UnknownNameError
from reluformer.translation import formats
from reluformer.translation.document import Alignment, TranslatedSentence
from reluformer.translation.formats import decode_text
from reluformer.translation.recipe import CorpusSource

EXACT = ("plain", "markdown", "html", "aligned")
SUBTITLES = ("srt", "vtt")
TEXTS = {
    "empty": "",
    "white_space": " \t\n\n  ",
    "no_final_newline": "One. Two",
    "windows": "One. Two.\r\n\r\n  Three.\r\n",
    "old_mac": "One.\rTwo.\r",
    "mixed_endings": "One.\nTwo.\r\nThree.\r\n\n",
    "byte_order_mark": "\ufeffOne. Two.\n",
    "right_to_left": "\u200fOne.\u200f \u202bTwo\u202c. Three.\n",
    "control_characters": "One\0two. \x07Three.\x0b\x0c Four.\x85Five.\u2028Six.\n",
    "emoji": "👩‍🚀 One! 🎉\n🎉\n",
    "indented": "  One.\n\tTwo.\n   \n    Three.  \n",
    "element_beyond_its_sentence": "a<a>\n< ",
    "rules": "---\n***\n===\n...\n",
}

MARKUP_LINES = """
# Head|- item one. Two|> quote|>> deep|  more||```|~~~|1. one|===|---|<div>|</div>|    code|Text. More text
[a](b) c|`x` y|\tTab|a  |b\\|[x]: y|![i](j)|[^1]: note|- [ ] do|* * *|\0 nul|[[a]](b|`` ` ``|[1] x
"""
TABLE_LINES = ["| a | b |", "|---|---|", "| `x` | c \\| d |"]
lines_of_markup = st.lists(st.sampled_from(MARKUP_LINES.replace("\n", "|").split("|") + TABLE_LINES), max_size=12)


def in_capitals(sentence: str) -> TranslatedSentence:
    """A translation as long as its source, in which every character read the one that it translates."""
    return TranslatedSentence(sentence.upper(), Alignment.identity(sentence))


def texts_of(joined: st.SearchStrategy[list[str]]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds(lambda rows, end: end.join(rows), joined, st.sampled_from(["\n", "\r\n", "\r"])),
        st.text(alphabet=st.sampled_from(list("aB.!? \n\r\t#>-*`|[]()\\<>&_=1\0\u200f\ufeff🎉")), max_size=60),
    )


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("case", TEXTS)
def test_own_sentences_give_the_text_back(name: str, case: str) -> None:
    sentences, skeleton = formats.get(name).parse(TEXTS[case])
    assert skeleton.fill(sentences) == TEXTS[case]


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=200, deadline=None)
@given(text=texts_of(lines_of_markup))
def test_own_sentences_give_any_text_back(name: str, text: str) -> None:
    text_format = formats.get(name)
    sentences, skeleton = text_format.parse(text)
    assert skeleton.fill(sentences) == text
    assert skeleton.sentences == sentences
    assert all(sentence.strip() and "\n" not in sentence and "\r" not in sentence for sentence in sentences)


@settings(max_examples=100, deadline=None)
@given(text=texts_of(lines_of_markup))
def test_wrapped_text_comes_back_too(text: str) -> None:
    sentences, skeleton = formats.PlainText(wrapped=True).parse(text)
    assert skeleton.fill(sentences) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", "One dog.\n1,234\n"),
        ("markdown", "| One | 12 |\n|---|---|\n"),
        ("html", "<td>One</td><td>12</td>"),
        ("aligned", "One\n🎉\n"),
        ("tsv", "One\n12\n"),
        ("jsonl", '{"src": ["One", " ", "3 + 4"]}'),
        ("po", 'msgid "One"\nmsgstr ""\n\nmsgid "12"\nmsgstr ""\n'),
    ],
)
def test_sentences_without_letters_are_counted(name: str, text: str) -> None:
    skeleton = formats.get(name).skeleton(text)
    report = formats.FillReport()
    skeleton.fill(skeleton.sentences, report)
    assert (report.sentences, report.copied) == (2, 1)
    assert str(report) == "copied 1 of 2 sentences, which hold no words"


@pytest.mark.parametrize("name", [*EXACT, "tsv", "csv", "jsonl"])
def test_the_number_of_translations_must_match(name: str) -> None:
    skeleton = formats.get(name).parse("" if name == "jsonl" else "One.")[1]
    with pytest.raises(DataError, match=r"the text has \d+ sentences but 99 translations"):
        skeleton.fill(["x"] * 99)


# ------------------------------------------------------------------ plain text


def test_plain_text_keeps_all_but_the_words() -> None:
    sentences, skeleton = formats.get("plain").parse("Dear Dr. Who,\n\n  it is me. Hello!\n--\nBye")
    assert sentences == ("Dear Dr. Who,", "it is me.", "Hello!", "Bye")
    assert skeleton.fill(["A", "B\nb", "", "C"]) == "A\n\n  B b \n--\nC"


def test_wrapped_sentences_reach_the_model_on_one_line() -> None:
    sentences, skeleton = formats.PlainText(wrapped=True).parse("It was\r\n  cold. So\r\ncold.\r\n\r\nEnd")
    assert sentences == ("It was cold.", "So cold.", "End")
    assert skeleton.fill(["A.", "So cold.", "C"]) == "A. So\r\ncold.\r\n\r\nC"


def test_the_splitter_can_be_chosen() -> None:
    assert formats.get("plain", splitter="none").parse("One. Two.\nThree.")[0] == ("One. Two.", "Three.")


# ------------------------------------------------------------------ Markdown

MARKDOWN = """---
title: Stay. Here.
---
# First. Second. #

Use `a. B` now. See [the Guide](/c?d "t")
and more. Go to https://x.y/z?q=1. [`f`](u) is <b>bold</b>[^1] or [2].

> Quoted over
> lines. **Next** one.

- [ ] Task.
  1. Nested item

```python
code. Stays.
```

    indented. Code.

| Head | B |
|:--|--:|
| c \\| d | `x` y |

Title
=====
Break here\x20\x20
there

[ref]: http://foo "Title"
[^1]: A foot note.

<div>
html. Stays.
</div>

![alt text](x.png)
"""

MARKDOWN_UPPER = """---
title: Stay. Here.
---
# FIRST. SECOND. #

USE `a. B` NOW. SEE [THE GUIDE](/c?d "t") AND MORE. GO TO https://x.y/z?q=1. [`f`](u) IS <b>BOLD</b>[^1] OR \\[2\\].

> QUOTED OVER LINES. **NEXT** ONE.

- [ ] TASK.
  1. NESTED ITEM

```python
code. Stays.
```

    indented. Code.

| HEAD | B |
|:--|--:|
| C \\| D | `x` Y |

TITLE
=====
BREAK HERE\x20\x20
THERE

[ref]: http://foo "Title"
[^1]: A FOOT NOTE.

<div>
html. Stays.
</div>

![alt text](x.png)
"""


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_markdown_changes_only_the_words(ending: str, mark: str) -> None:
    sentences, skeleton = formats.get("markdown").parse(mark + MARKDOWN.replace("\n", ending))
    assert skeleton.fill([in_capitals(s) for s in sentences]) == mark + MARKDOWN_UPPER.replace("\n", ending)


def test_the_model_reads_plain_sentences() -> None:
    sentences, _ = formats.get("markdown").parse("Use `x.Y` **and** [the Guide. Yes](u). ![i](j) Go [3] <a@b.c> \\*!")
    assert sentences == ("Use x.Y and the Guide. Yes.", "Go [3] a@b.c *!")


@pytest.mark.parametrize(
    ("translation", "written"),
    [
        ("Nimm x und dies.", "Nimm `x` und [dies](u)."),
        ("Nimm dies und x.", "Nimm dies [und](u) `x`."),
        ("Nimm das.", "`x` Nimm [das](u)."),
        ("", "`x` [that](u)"),
    ],
    ids=["kept", "moved", "code_lost", "empty"],
)
def test_no_code_and_no_target_is_lost_without_an_alignment(translation: str, written: str) -> None:
    _, skeleton = formats.get("markdown").parse("Take `x` and [that](u).")
    report = formats.FillReport()
    assert skeleton.fill([translation], report) == written
    assert report.marks == 2 and report.marks_by_position > 0


@pytest.mark.parametrize(
    ("translation", "written"),
    [
        ("1. Mai", "1\\. Mai"),
        ("- so", "\\- so"),
        ("# so", "\\# so"),
        ("> so", "\\> so"),
        ("1.5 m", "1.5 m"),
        ("#so", "#so"),
    ],
)
def test_a_translation_does_not_become_markup(translation: str, written: str) -> None:
    assert formats.get("markdown").parse("The day.\n")[1].fill([translation]) == written + "\n"


def test_a_bar_in_a_table_is_escaped() -> None:
    _, skeleton = formats.get("markdown").parse("| a | b |\n|---|---|\n| c | c |\n")
    assert skeleton.fill(["x|y", "b", "1. c", "d|e"]) == "| x\\|y | b |\n|---|---|\n| 1. c | d\\|e |\n"


@pytest.mark.parametrize(
    "text", ["[" * 3000, "![y]" * 3000 + "[x", "`" * 3000, "<!--" * 3000, "(" * 3000, "a@" * 3000, "[^" * 3000]
)
def test_pathological_markup_is_only_text(text: str) -> None:
    sentences, skeleton = formats.get("markdown").parse("x " + text)
    assert skeleton.fill(sentences) == "x " + text


# ------------------------------------------------------------------ lines and tables


def test_aligned_text_keeps_lines_and_documents() -> None:
    sentences, skeleton = formats.get("aligned").parse("\n One. Two.\nThree \n\n \n🎉\n")
    assert sentences == ("One. Two.", "Three", "🎉")
    assert [document.src for document in skeleton.documents] == [("One. Two.", "Three"), ("🎉",)]
    assert skeleton.fill(["A\nB", "C", "D"]) == "\n A B\nC \n\n \nD\n"


def test_csv_fills_the_second_column_or_adds_one() -> None:
    text = 'source,target\r\nOne\n"Two, ""2""\nlines",,note\r\nThree,Drei\n,\n,only target\nFour'
    sentences, skeleton = formats.get("csv").parse(text)
    assert sentences == ("One", 'Two, "2" lines', "Three", "Four")
    assert [document.src for document in skeleton.documents] == [sentences[:3], sentences[3:]]
    filled = skeleton.fill(["Eins", 'Zwei, "2"', "Drei.", "Vier"])
    expected = 'source,target\r\nOne,Eins\n"Two, ""2""\nlines","Zwei, ""2""",note\r\nThree,Drei,Drei.\n,\n'
    assert filled == expected + ",only target\nFour,Vier"
    assert [row[1] for row in csv.reader(io.StringIO(filled, newline="")) if row[0]][1:3] == ["Eins", 'Zwei, "2"']


def test_a_csv_cell_that_never_ends_is_refused() -> None:
    with pytest.raises(DataError, match="line 2: a cell in quotes that begins here does not end"):
        formats.get("csv").parse('One\n"Two\nThree\n')


@given(text=st.text(alphabet='ab,"\n', max_size=30))
def test_csv_is_read_as_python_reads_it(text: str) -> None:
    try:
        sentences, skeleton = formats.get("csv").parse(text)
    except DataError:
        return
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row and row[0].strip()]
    assert [sentence.split() for sentence in sentences] == [row[0].split() for row in rows]
    filled = list(csv.reader(io.StringIO(skeleton.fill(["x, y"] * len(rows)), newline="")))
    assert sum("x, y" in row for row in filled) == len(rows)


def test_tsv_fills_the_second_column_or_adds_one() -> None:
    sentences, skeleton = formats.get("tsv").parse("One\nTwo\t\tnote\r\nThree\tDrei\n\n\tonly target\nFour")
    assert sentences == ("One", "Two", "Three", "Four")
    assert [len(document.src) for document in skeleton.documents] == [3, 1]
    assert (
        skeleton.fill(["1", "2\t2", "3", "4"]) == "One\t1\nTwo\t2 2\tnote\r\nThree\tDrei\t3\n\n\tonly target\nFour\t4"
    )


def test_jsonl_adds_a_target_and_touches_nothing_else() -> None:
    text = '{"id": "a",  "n": 1e5, "src": ["One.", " ", "Two."] }\r\n\n{"src": ["Three."], "tgt": ["Drei."]}\n'
    sentences, skeleton = formats.get("jsonl").parse(text)
    assert sentences == ("One.", "Two.", "Three.")
    assert [document.id for document in skeleton.documents] == ["a", "2"]
    assert skeleton.fill(["Eins.", "Zwei.", "Tür."]) == (
        '{"id": "a",  "n": 1e5, "src": ["One.", " ", "Two."], "tgt": ["Eins.", " ", "Zwei."]}\r\n\n'
        '{"src": ["Three."], "tgt": ["Drei."], "hyp": ["Tür."]}\n'
    )


@pytest.mark.parametrize("old", ['"tgt": []', '"tgt": null', '"tgt": ["r"], "hyp": ["old"]'])
def test_jsonl_replaces_what_is_no_reference(old: str) -> None:
    filled = json.loads(formats.get("jsonl").parse(f'{{"src": ["a"], {old}}}')[1].fill(["neu"]))
    assert filled.get("hyp", filled["tgt"]) == ["neu"]
    assert filled["tgt"] == (["r"] if "hyp" in filled else ["neu"])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=4), max_size=4))
def test_jsonl_holds_any_sentence(documents: list[list[str]]) -> None:
    text = "\n".join(json.dumps({"src": document}) for document in documents)
    sentences, skeleton = formats.get("jsonl").parse(text)
    filled = [json.loads(line)["tgt"] for line in skeleton.fill(sentences).split("\n")] if documents else []
    assert filled == documents


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: expected"),
        ('{"id": 1}', "line 2: expected"),
        ('{"src": "text"}', "line 2: expected"),
        ('{"src": [1]}', "line 2: expected"),
        ('{"src": ["a", "\\ud800"]}', "line 2: sentence 2"),
    ],
)
def test_jsonl_names_the_bad_line(line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        formats.get("jsonl").parse('{"src": []}\n' + line)


# ------------------------------------------------------------------ files

SUFFIXES = {
    "a.txt": "plain",
    "a": "plain",
    "a.rst": "plain",
    "b.md": "markdown",
    "b.MD": "markdown",
    "c.jsonl": "jsonl",
}
SUFFIXES |= {
    "c.jsonl.gz": "jsonl",
    "d.tsv": "tsv",
    "d.csv": "csv",
    "e.tmx": "tmx",
    "f.xlf": "xliff",
    "f.xliff": "xliff",
    "g.po": "po",
}
SUFFIXES |= {"c.JSONL": "jsonl", "c.ndjson": "jsonl", "c.NDJSON.gz": "jsonl", "c.jsonl.txt": "plain"}


@pytest.mark.parametrize(("file_name", "name"), SUFFIXES.items())
def test_detect_goes_by_the_suffix(file_name: str, name: str) -> None:
    assert formats.detect(Path("some.md") / file_name).name == name
    assert formats.is_jsonl(file_name) == (name == "jsonl")


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.tsv", "a.csv", "a.tmx", "a.xlf", "a.xliff", "a.po"])
def test_a_corpus_is_translated_in_the_format_that_it_is_trained_in(name: str) -> None:
    assert formats.detect(name).name == CorpusSource(path=name).kind


def test_unknown_formats_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'markdown'"):
        formats.get("markdwon")


@pytest.mark.parametrize("file_name", ["a.txt", "a.jsonl.gz"])
def test_files_are_read_and_written_byte_for_byte(tmp_path: Path, file_name: str) -> None:
    text = "\ufeffÄ\r\nb\rc\n"
    path = tmp_path / file_name
    formats.write_text(path, text)
    first = path.read_bytes()
    assert (gzip.decompress(first) if path.suffix == ".gz" else first) == text.encode()
    assert formats.read_text(path) == text
    formats.write_text(path, text)
    assert path.read_bytes() == first


def test_invalid_utf8_is_located(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"ok\nok \xff\n")
    with pytest.raises(DataError, match=r"bad\.txt: not valid UTF-8 at byte 6 \(line 2\)"):
        formats.read_text(path)
    with pytest.raises(DataError, match="stdin: not valid UTF-8 at byte 0"):
        decode_text(b"\xe4", "stdin")


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt: cannot be read"):
        formats.read_text(tmp_path / "none.txt")
    damaged = tmp_path / "a.gz"
    damaged.write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"a\.gz: damaged gzip"):
        formats.read_text(damaged)


# ------------------------------------------------------------------ HTML

PIECES = [
    "<p>", "</p>", "<b>", "</b>", "<br>", "<a href='x>y'>", "</a>", "<!-- a -->", "<!doctype html>", "<script>",
    "</script>", "<code>", "</code>", "One. ",
    "Two", "&amp;", "&lt;b&gt;", "<", ">", "&", "[1]", "\n", " ", "<td", '"', "é",
]  # fmt: skip


def shout(text: str) -> tuple[tuple[str, ...], str]:
    """The sentences, and the text with all of them in capitals."""
    sentences, skeleton = formats.get("html").parse(text)
    return sentences, skeleton.fill([in_capitals(sentence) for sentence in sentences])


@pytest.mark.parametrize(
    ("text", "sentences", "translated"),
    [
        ("<p>One dog. Two.</p>", ("One dog.", "Two."), "<p>ONE DOG. TWO.</p>"),
        ("<td>a</td>\n<td title='a > b'>b</td>", ("a", "b"), "<td>A</td>\n<td title='a > b'>B</td>"),
        ("one<br/>two", ("one", "two"), "ONE<br/>TWO"),
        ("a <b class=x>big</b> dog", ("a big dog",), "A <b class=x>BIG</b> DOG"),
        ("run <code>ls -l</code> now", ("run ls -l now",), "RUN <code>ls -l</code> NOW"),
        ("<i><b>so</b></i> it", ("so it",), "<i><b>SO</b></i> IT"),
        ("cats &amp; dogs &lt; us", ("cats & dogs < us",), "CATS &amp; DOGS &lt; US"),
        ("<!-- no --><style>p {}</style><pre>a b</pre>c", ("c",), "<!-- no --><style>p {}</style><pre>a b</pre>C"),
        ("<script>if (a < b) { '</p>' }</script>d", ("d",), "<script>if (a < b) { '</p>' }</script>D"),
        ("one\ntwo", ("one two",), "ONE TWO"),
    ],
)
def test_words_change_and_tags_stay(text: str, sentences: tuple[str, ...], translated: str) -> None:
    assert shout(text) == (sentences, translated)


def test_a_tag_that_no_word_read_is_not_lost() -> None:
    _, skeleton = formats.get("html").parse("<p>See <a href='x'>this</a> now.</p>")
    report = formats.FillReport()
    assert skeleton.fill(["Sieh jetzt."], report) == "<p>Sieh <a href='x'>jetzt</a>.</p>"
    assert str(report) == "placed 1 of 1 marks by their position, because no word had read them; check them"


def test_a_translation_cannot_become_markup() -> None:
    _, skeleton = formats.get("html").parse("<p>One.</p>")
    assert skeleton.fill(["<script>alert(1)</script> & so"]) == "<p>&lt;script&gt;alert(1)&lt;/script&gt; &amp; so</p>"


@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12))
def test_own_sentences_give_any_page_back(pieces: list[str]) -> None:
    text = "".join(pieces)
    sentences, skeleton = formats.get("html").parse(text)
    assert skeleton.fill(sentences) == text


def test_the_name_of_a_file_tells_it() -> None:
    assert formats.detect("page.HTM").name == formats.detect("a.html").name == "html"
