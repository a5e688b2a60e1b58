"""Marks: every mark of a document comes back exactly once, nested as it was, whatever the model writes."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from reluformer.translation import formats
from reluformer.translation.corpus import read_documents
from reluformer.translation.document import Alignment, TranslatedSentence
from reluformer.translation.formats import FillReport
from reluformer.translation.formats.marks import Mark, place_marks
from reluformer.translation.formats.spans import text_spans
from reluformer.translation.recipe import CorpusSource, DecodingConfig
from reluformer.translation.translator import Translator

SOURCE = "take the red coat now"
TARGET = "nimm jetzt den roten Mantel"
WORDS = [(0, 0), (1, 4), (2, 1), (3, 2), (4, 3)]  # word of the target, word of the source that it read


def aligned(source: str = SOURCE, target: str = TARGET, pairs: list[tuple[int, int]] = WORDS) -> Alignment:
    """The alignment in which each word of the target read one word of the source."""
    sides = [tuple(match.span() for match in re.finditer(r"\S+", text)) for text in (source, target)]
    weights = np.zeros((len(sides[1]), len(sides[0])), np.float32)
    for row, column in pairs:
        weights[row, column] = 1
    return Alignment(sides[0], sides[1], weights)


def covering(source: str, text: str, opening: str, closing: str = "", **options: object) -> Mark:
    start = source.index(text)
    return Mark(start, start + len(text), opening, closing, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("marks", "written"),
    [
        ([covering(SOURCE, "coat", "<b>", "</b>")], "nimm jetzt den roten <b>Mantel</b>"),
        ([covering(SOURCE, "the red coat", "<b>", "</b>")], "nimm jetzt <b>den roten Mantel</b>"),
        ([covering(SOURCE, "now", "*", "*")], "nimm *jetzt* den roten Mantel"),
        (
            [covering(SOURCE, "the red coat", "<i>", "</i>"), covering(SOURCE, "red", "<b>", "</b>", depth=1)],
            "nimm jetzt <i>den <b>roten</b> Mantel</i>",
        ),
        (
            [covering(SOURCE, "red", "<i>", "</i>"), covering(SOURCE, "now", "<b>", "</b>")],
            "nimm <b>jetzt</b> den <i>roten</i> Mantel",
        ),
        ([Mark(9, 9, "<x/>")], "nimm jetzt den <x/>roten Mantel"),
        ([Mark(12, 12, "[^1]")], "nimm jetzt den roten[^1] Mantel"),
        ([Mark(9, 9, "![](i)", spaced=True)], "nimm jetzt den ![](i) roten Mantel"),
        ([covering(SOURCE, "red", "`red`", verbatim=True)], "nimm jetzt den `red` Mantel"),
        ([Mark(0, len(SOURCE), "<b>", "</b>")], "<b>nimm jetzt den roten Mantel</b>"),
        ([Mark(5, len(SOURCE), "<b>", open_at="end")], "nimm <b>jetzt den roten Mantel"),
        ([Mark(0, 4, "", "</b>", open_at="start")], "nimm</b> jetzt den roten Mantel"),
    ],
)
def test_marks_go_where_the_words_read_what_they_covered(marks: list[Mark], written: str) -> None:
    assert place_marks(SOURCE, TARGET, marks, aligned(), str) == (written, 0)


def test_a_copy_of_a_placeholder_becomes_the_exact_one_and_the_copy_that_read_it_wins() -> None:
    source, target = "use A and A", "A und A nutzen"
    marks = [Mark(4, 5, "`A`", verbatim=True), Mark(10, 11, "*A*", verbatim=True)]
    alignment = aligned(source, target, [(0, 3), (1, 2), (2, 1), (3, 0)])
    assert place_marks(source, target, marks, alignment, str) == ("*A* und `A` nutzen", 0)


@pytest.mark.parametrize("alignment", [None, aligned(pairs=[])], ids=["unknown", "dead_rows"])
def test_what_nothing_read_is_placed_by_position_and_counted(alignment: Alignment | None) -> None:
    marks = [covering(SOURCE, "take", "<b>", "</b>"), covering(SOURCE, "red", "%s", verbatim=True)]
    written, by_position = place_marks(SOURCE, TARGET, marks, alignment, str)
    assert written == "<b>nimm</b> jetzt %s den roten Mantel"
    assert by_position == 2


def test_marks_without_a_word_left_for_them_keep_their_text() -> None:
    marks = [covering(SOURCE, "red", "<b>", "</b>"), Mark(9, 12, "<i>", "</i>", depth=1), Mark(18, 21, "<u>", "</u>")]
    written, by_position = place_marks(SOURCE, "x", marks, None, str)
    assert written == "<u>now</u> <b><i>x</i></b>" or written == "<b><i>x</i></b> <u>now</u>"
    assert by_position > 0


# ---------------------------------------------------------------------- random documents, a real model


@pytest.fixture(scope="module")
def translator(tokenizer, small_models) -> Translator:
    model = small_models(vocab_size=tokenizer.vocab_size, seed=1).float()
    return Translator(model, tokenizer, DecodingConfig(beam=1, length_ratio=0.5, length_offset=4))


word = st.sampled_from(["the cat", "saw", "a dog", "and it", "ran home", "night", "Near"])
phrase = st.lists(word, min_size=1, max_size=3).map(" ".join)


def nested_in(pairs: list[tuple[str, str]], whole: list[str]) -> st.SearchStrategy[str]:
    """Phrases with pairs around pieces of them, up to three deep, and whole marks between."""
    leaf = st.one_of(phrase, phrase, st.sampled_from(whole).map(lambda mark: f"night {mark} ran"))

    def around(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.builds(
            lambda before, pair, text, after: f"{before} {pair[0]}{text}{pair[1]} {after}",
            phrase, st.sampled_from(pairs), inner, phrase,
        )  # fmt: skip

    return st.recursive(leaf, around, max_leaves=4)


def sentences_of(inline: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(inline, min_size=1, max_size=4).map(lambda found: ". The ".join(found) + ".")


settings.register_profile("marks", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
EXAMPLES = settings(settings.get_profile("marks"))

FIXED = [
    "%s",
    "{name}",
    "%(n)d",
    "${v}",
    "%1$s",
    "{{ who }}",
    "https://x.org/{id}?b=1",
    "me@x.org",
    "E=mc^2",
    "C:\\dir",
]
"""What comes back exactly, and exactly once, in every format."""
PLAIN = nested_in([("(", ")"), ("“", "”")], FIXED)
MARKDOWN = nested_in(
    [("**", "**"), ("*", "*"), ("[", "](u.html)"), ("<b>", "</b>")],
    [
        "`a b`",
        "![alt](i.png)",
        "<http://x.org>",
        "[^1]",
        "<br/>",
        "`x*y`",
        "\\*",
        "&amp;",
        "$E = mc^2$",
        "$$\\frac{a}{b}$$",
        *FIXED,
    ],
)
HTML = nested_in(
    [("<b>", "</b>"), ("<i class='x'>", "</i>"), ("<a href='u'>", "</a>"), ("<span>", "</span>")],
    ["<code>ls -l</code>", "<img src='i.png'>", "https://x.org/a", "&amp;", "<wbr>", *FIXED],
)
PO = nested_in([("<b>", "</b>"), ("<a href='u'>", "</a>")], ["%s", "{name}", "%(n)d", "<br/>", "&nbsp;", "${v}"])
XLIFF = nested_in(
    [("<g id='1'>", "</g>"), ("<mrk mtype='x'>", "</mrk>"), ("<bpt id='9'>b</bpt>", "<ept id='9'>/b</ept>")],
    ["<x id='2'/>", "<ph id='3'>{0}</ph>", "%s", "<bx id='4'/>", "<it id='5' pos='open'>i</it>"],
)  # fmt: skip
XLIFF_2 = nested_in(
    [("<pc id='1'>", "</pc>"), ("<mrk id='m1' type='term'>", "</mrk>"), ("<sc id='7'/>", "<ec startRef='7'/>")],
    ["<ph id='2'/>", "{name}", "<sc id='5'/>", "<cp hex='0001'/>"],
)
TMX = nested_in(
    [("<hi type='b'>", "</hi>"), ("<bpt i='9'>[b]</bpt>", "<ept i='9'>[/b]</ept>")],
    ["<ph x='2'/>", "<ph x='3'>{0}</ph>", "%s", "<it pos='begin'>[i]</it>"],
)


def markdown_marks(text: str) -> Counter[str]:
    """What the parser of Markdown finds: emphasis, links, images, code and tags."""
    found: Counter[str] = Counter()
    for block in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        for token in block.children or ():
            if token.type not in ("text", "softbreak", "text_special"):
                fixed = token.content if token.type in ("code_inline", "html_inline", "image") else ""
                found[f"{token.type} {token.attrs} {fixed}"] += 1
    return found


class Tags(HTMLParser):
    """The tags of a page, each closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found[f"{tag} {attrs}"] += 1
        if tag not in ("img", "wbr", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def emphasis_depth(text: str) -> int:
    """How deep emphasis of one kind is nested."""
    deepest = 0
    for kind in ("em", "strong"):
        depth = 0
        for block in MarkdownIt("commonmark").parse(text):
            for token in block.children or ():
                depth += (token.type == f"{kind}_open") - (token.type == f"{kind}_close")
                deepest = max(deepest, depth)
    return deepest


@EXAMPLES
@given(text=sentences_of(MARKDOWN).filter(lambda text: emphasis_depth(text) <= 2))
def test_markdown_keeps_every_mark_once(text: str, translator: Translator) -> None:
    (written,) = translator.translate([text], format="markdown")
    assert markdown_marks(written) == markdown_marks(text)
    for exact in ("[^1]", "$E = mc^2$", "$$\\frac{a}{b}$$", *FIXED):
        assert written.count(exact) == text.count(exact)


@EXAMPLES
@given(text=sentences_of(HTML))
def test_html_keeps_every_mark_once_and_nested(text: str, translator: Translator) -> None:
    (written,) = translator.translate([f"<p>{text}</p>"], format="html")
    before, after = Tags(f"<p>{text}</p>"), Tags(written)
    assert after.found == before.found and not after.open
    for exact in ("<code>ls -l</code>", "https://x.org/a", *FIXED):
        assert written.count(exact) == text.count(exact)


@EXAMPLES
@given(text=sentences_of(PLAIN))
def test_plain_text_keeps_every_placeholder_and_address_once(text: str, translator: Translator) -> None:
    (written,) = translator.translate([text])
    for exact in FIXED:
        assert written.count(exact) == text.count(exact)


@EXAMPLES
@given(texts=st.lists(sentences_of(PLAIN), min_size=1, max_size=2))
def test_columns_and_json_lines_keep_every_placeholder_and_address_once(
    texts: list[str], translator: Translator
) -> None:
    report = FillReport()
    (rows,) = translator.translate(["\n".join(texts)], format="tsv", report=report)
    targets = [row.split("\t") for row in rows.split("\n")]
    (line,) = translator.translate([json.dumps({"src": texts})], format="jsonl")
    record = json.loads(line)
    for text, (_, cell, *flag), sentence in zip(texts, targets, record["tgt"], strict=True):
        assert cell == sentence
        for exact in FIXED:
            assert sentence.count(exact) == text.count(exact)
        assert flag in ([], ["fuzzy"])
    assert [number for number, (_, _, *flag) in enumerate(targets) if flag] == record.get("tgt_fuzzy", [])
    assert ("fuzzy" in rows) == report.doubtful


CUE = "00:00:01,000 --> 00:00:02,000"
LOST = {
    "plain": "Hello {name}, see https://x.org/a now. Or %(n)d.\n",
    "aligned": "Hello {name}, see https://x.org/a now. Or %(n)d.\n",
    "markdown": "Hello **{name}**, see https://x.org/a now. Or %(n)d.\n",
    "html": "<p>Hello <b>{name}</b>, see https://x.org/a now. Or %(n)d.</p>",
    "tsv": "Hello {name}, see https://x.org/a now. Or %(n)d.\n",
    "csv": '"Hello {name}, see https://x.org/a now. Or %(n)d."\n',
    "jsonl": '{"src": ["Hello {name}, see https://x.org/a now.", "Or %(n)d."]}\n',
    "srt": f"1\n{CUE}\nHello {{name}}, see https://x.org/a now.\nOr %(n)d.\n",
    "vtt": f"WEBVTT\n\n{CUE.replace(',', '.')}\nHello {{name}}, see https://x.org/a now.\nOr %(n)d.\n",
}


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("times", [0, 2], ids=["loses", "repeats"])
def test_what_a_model_loses_or_repeats_comes_back_once_and_is_reported(name: str, times: int) -> None:
    fixed = ("{name}", "https://x.org/a", "%(n)d")
    sentences, skeleton = formats.get(name).parse(LOST[name])
    assert skeleton.has_marks
    report = FillReport()
    words = [" ".join(exact for exact in fixed if exact in sentence) for sentence in sentences]
    written = skeleton.fill([" und ".join(["Hallo", *[own] * times]) for own in words], report)
    kept = LOST[name] if name in ("tsv", "csv", "jsonl") else ""  # these keep the source beside the translation
    for exact in fixed:
        assert written.count(exact) - kept.count(exact) == 1
    assert report.marks_by_position >= (0 if times else len(fixed))


@pytest.mark.parametrize("name", ["aligned", "tsv", "csv"])
def test_a_line_of_placeholders_alone_is_copied(name: str) -> None:
    sentences, skeleton = formats.get(name).parse("{name}: %s\n")
    report = FillReport()
    assert skeleton.fill(["Unsinn"] * len(sentences), report).rstrip().endswith("{name}: %s")
    assert (report.copied, report.doubtful) == (1, False)


def test_percentages_are_no_placeholders() -> None:
    assert [span.text for span in text_spans("100%ig, 5%-10%, 50%discount, 5 % so, but 2%s and 5%.")] == ["%s"]


@EXAMPLES
@given(text=sentences_of(PO))
def test_po_keeps_every_placeholder_once(text: str, translator: Translator) -> None:
    pytest.importorskip("translate", reason="translate-toolkit is not installed")
    report = FillReport()
    (written,) = translator.translate([f'msgid "{text}"\nmsgstr ""\n'], format="po", report=report)
    target = written.partition("msgstr ")[2].replace('"\n"', "")
    for exact in ("%s", "{name}", "%(n)d", "${v}", "<br/>", "&nbsp;", "<b>", "</b>", "<a href='u'>", "</a>"):
        assert target.count(exact) == text.count(exact)
    assert ("fuzzy" in written) == report.doubtful


@pytest.mark.parametrize("version", ["1.2", "2.0"])
@EXAMPLES
@given(data=st.data())
def test_xliff_keeps_every_element_once_and_nested(version: str, data: st.DataObject, translator: Translator) -> None:
    pytest.importorskip("translate", reason="translate-toolkit is not installed")
    etree = pytest.importorskip("lxml.etree")
    text = data.draw(sentences_of(XLIFF if version == "1.2" else XLIFF_2))
    if version == "1.2":
        name = "urn:oasis:names:tc:xliff:document:1.2"
        unit = f"<body><trans-unit id='1'><source>{text}</source></trans-unit></body>"
        file = f"<file original='a' source-language='en' target-language='de' datatype='plaintext'>{unit}</file>"
        document = f"<xliff version='1.2' xmlns='{name}'>{file}</xliff>"
    else:
        name = "urn:oasis:names:tc:xliff:document:2.0"
        unit = f"<unit id='1'><segment><source>{text}</source></segment></unit>"
        document = f"<xliff version='2.0' srcLang='en' trgLang='de' xmlns='{name}'><file id='f'>{unit}</file></xliff>"
    report = FillReport()
    (written,) = translator.translate([document], format="xliff", report=report)
    root = etree.fromstring(written.encode())
    source, target = (root.find(f".//{{{name}}}{side}") for side in ("source", "target"))

    def elements(node: object) -> Counter[str]:
        inner = [one for one in node.iter() if one is not node]  # type: ignore[attr-defined]
        return Counter(f"{one.tag} {sorted(one.attrib.items())}" for one in inner)

    assert elements(target) == elements(source)
    for exact in ("%s", "{name}"):
        assert "".join(target.itertext()).count(exact) == text.count(exact)
    state = target.get("state") if version == "1.2" else target.getparent().get("state")
    assert (state in ("needs-translation", "initial")) == report.doubtful


@EXAMPLES
@given(text=sentences_of(TMX))
def test_tmx_keeps_every_element_once_and_nested(text: str, translator: Translator) -> None:
    pytest.importorskip("translate", reason="translate-toolkit is not installed")
    etree = pytest.importorskip("lxml.etree")
    head = "<tmx version='1.4'><header/><body><tu><tuv xml:lang='en'>"
    (written,) = translator.translate([f"{head}<seg>{text}</seg></tuv></tu></body></tmx>"], format="tmx")
    source, target = etree.fromstring(written.encode()).iter("seg")

    def elements(node: object) -> Counter[str]:
        inner = [one for one in node.iter() if one is not node]  # type: ignore[attr-defined]
        return Counter(f"{one.tag} {sorted(one.attrib.items())} {one.tag != 'hi' and one.text}" for one in inner)

    assert elements(target) == elements(source)
    assert "".join(target.itertext()).count("%s") == text.count("%s")


def test_a_corpus_of_tmx_has_no_native_codes(tmp_path: Path) -> None:
    pytest.importorskip("translate", reason="translate-toolkit is not installed")
    texts = {"en": "A <bpt i='1'>[b]</bpt>new<ept i='1'/> coat.", "de": "Ein <hi>neuer</hi> Mantel."}
    sides = "".join(f"<tuv xml:lang='{language}'><seg>{text}</seg></tuv>" for language, text in texts.items())
    path = tmp_path / "a.tmx"
    path.write_text(f"<tmx version='1.4'><header/><body><tu>{sides}</tu></body></tmx>", encoding="utf-8")
    (document,) = read_documents(CorpusSource(path=path))
    assert (document.src, document.tgt) == (("A new coat.",), ("Ein neuer Mantel.",))


# ---------------------------------------------------------------------- subtitles

SRT = (
    "\ufeff1\r\n00:00:01,000 --> 00:00:02,500\r\nA <i>big</i> dog.\r\n- Who?\r\n\r\n"
    "2\r\n00:00:03,000 --> 00:00:04,000 X1:1\r\n{\\an8}It ran.\r\n"
)
VTT = (
    "WEBVTT - Title\n\nNOTE\nNo words here.\n\nSTYLE\n::cue {}\n\n"
    "intro\n00:01.000 --> 00:02.000 align:start\n<v Anna>A &amp; B, <00:01.500><c.x>so</c>.\n"
)


def test_subtitles_keep_all_but_the_words() -> None:
    shouted = {}
    for name, text in (("srt", SRT), ("vtt", VTT)):
        sentences, skeleton = formats.get(name).parse(text)
        assert skeleton.fill(sentences) == text
        shouted[name] = (
            sentences,
            skeleton.fill(
                [TranslatedSentence(sentence.upper(), Alignment.identity(sentence)) for sentence in sentences]
            ),
        )
    assert shouted["srt"] == (
        ("A big dog.", "- Who?", "It ran."),
        SRT.replace("A <i>big</i> dog", "A <i>BIG</i> DOG").replace("Who", "WHO").replace("It ran", "IT RAN"),
    )
    assert shouted["vtt"] == (("A & B, so.",), VTT.replace(">so<", ">SO<"))


@pytest.mark.parametrize(("name", "message"), [("srt", "no line is a timing"), ("vtt", "does not begin with WEBVTT")])
def test_what_is_no_subtitle_file_is_refused(name: str, message: str) -> None:
    from reluformer.errors import DataError

    with pytest.raises(DataError, match=message):
        formats.get(name).parse("Dear all.\n")
    assert formats.get(name).parse("")[0] == ()


def test_the_names_of_subtitle_files_tell_their_format() -> None:
    assert (formats.detect("a.srt").name, formats.detect("a.VTT").name) == ("srt", "vtt")
