"""TMX, XLIFF and PO: one codec reads corpora and fills documents, and says what to install."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import pytest

from reluformer.errors import ArgumentError, DataError
from reluformer.translation import formats
from reluformer.translation.corpus import read_documents
from reluformer.translation.document import Document, Skipped, SkipReason
from reluformer.translation.recipe import CorpusSource

TMX = """<?xml version="1.0" encoding="utf-8"?><tmx version="1.4"><header creationtool="t" creationtoolversion="1"
segtype="sentence" o-tmf="x" adminlang="en" srclang="en" datatype="plain"/><body>
<tu><tuv xml:lang="de"><seg>Hallo</seg></tuv><tuv xml:lang="en"><seg>Hello</seg></tuv></tu>
<tu><tuv xml:lang="en-GB"><seg>Bye</seg></tuv><tuv xml:lang="de-DE"><seg>Tschüss</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>Only</seg></tuv><tuv xml:lang="fr"><seg>Seul</seg></tuv></tu></body></tmx>"""
XLIFF = """<?xml version="1.0"?><xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file original="a" source-language="en" target-language="de" datatype="plaintext"><body>
<trans-unit id="1" approved="yes"><source>One</source><target>Eins</target></trans-unit>
<trans-unit id="2"><source>Two</source></trans-unit>
<trans-unit id="3"><source>Three</source><target state="needs-review-translation">Drei</target></trans-unit>
</body></file></xliff>"""
XLIFF_UNIT = """<?xml version="1.0"?><xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file original="a" source-language="en" target-language="de" datatype="plaintext"><body>
<trans-unit id="1" {unit}><source>One</source><target {target}>Eins</target></trans-unit></body></file></xliff>"""
XLIFF_2 = """<?xml version="1.0"?><xliff version="2.0" srcLang="en" trgLang="de"
xmlns="urn:oasis:names:tc:xliff:document:2.0"><file id="f"><unit id="1"><segment><source>One</source>
<target>Eins</target></segment></unit></file></xliff>"""
PO = r"""msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\n"

msgid "Hello"
msgstr "Grüß dich"

#, fuzzy
msgid "Draft"
msgstr "Entwurf"

msgid "%d word"
msgid_plural "%d words"
msgstr[0] "%d Wort"
msgstr[1] "%d Wörter"

msgid "none"
msgstr ""

#~ msgid "old"
#~ msgstr "alt"
"""

pytest.importorskip("translate", reason="translate-toolkit is not installed")


def source_of(directory: Path, name: str, content: str, **options: Any) -> CorpusSource:
    data = content.encode("utf-8")
    (directory / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return CorpusSource(path=directory / name, **options)


@pytest.mark.parametrize(
    ("name", "content", "src", "tgt", "counts"),
    [
        ("a.tmx", TMX, ("Hello", "Bye"), ("Hallo", "Tschüss"), {SkipReason.EMPTY: 1}),
        ("a.tmx.gz", TMX, ("Hello", "Bye"), ("Hallo", "Tschüss"), {SkipReason.EMPTY: 1}),
        ("a.xlf", XLIFF, ("One",), ("Eins",), {SkipReason.EMPTY: 1, SkipReason.FUZZY: 1}),
        ("a.xliff", XLIFF_2, ("One",), ("Eins",), {}),
        ("a.po", PO, ("Hello", "%d word"), ("Grüß dich", "%d Wort"), {SkipReason.EMPTY: 1, SkipReason.FUZZY: 1}),
    ],
)
def test_a_file_is_a_document(
    tmp_path: Path, name: str, content: str, src: tuple[str, ...], tgt: tuple[str, ...], counts: dict[str, int]
) -> None:
    tally = Skipped()
    documents = list(read_documents(source_of(tmp_path, name, content), skipped=tally))
    assert documents == [Document(f"{name}:1", src, tgt)]
    assert tally.counts == counts


@pytest.mark.parametrize(
    ("unit", "target", "draft"),
    [
        ("", "", False),
        ("", 'state="translated"', False),
        ("", 'state="final"', False),
        ('approved="yes"', "", False),
        ('approved="no"', "", True),
        ("", 'state="new"', True),
        ("", 'state="needs-translation"', True),
        ('approved="yes"', 'state="needs-review-translation"', True),
    ],
)
def test_xliff_drops_what_is_marked_and_keeps_what_is_not(tmp_path: Path, unit: str, target: str, draft: bool) -> None:
    tally = Skipped()
    documents = list(
        read_documents(source_of(tmp_path, "a.xlf", XLIFF_UNIT.format(unit=unit, target=target)), skipped=tally)
    )
    assert (len(documents), tally.counts) == ((0, {SkipReason.FUZZY: 1}) if draft else (1, {}))


def test_every_unit_may_be_a_document(tmp_path: Path) -> None:
    source = source_of(tmp_path, "a.tmx", TMX, documents="line")
    assert [document.src for document in read_documents(source)] == [("Hello",), ("Bye",)]


def test_languages_choose_the_sides_of_a_tmx_file(tmp_path: Path) -> None:
    (document,) = read_documents(source_of(tmp_path, "a.tmx", TMX), languages=("de", "en"))
    assert document.src == ("Hallo", "Tschüss")


def test_a_region_may_be_written_either_way(tmp_path: Path) -> None:
    (document,) = read_documents(source_of(tmp_path, "a.tmx", TMX), languages=("en_GB", "de"))
    assert document.src == ("Bye",)


@pytest.mark.parametrize("name", ["a.tmx", "a.xlf", "a.po"])
@pytest.mark.parametrize("content", ["<html></html>", "<a", 'msgid "a\nfoo'])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(DataError, match=rf"{name}: not a valid"):
        list(read_documents(source_of(tmp_path, name, content)))


def test_invalid_utf8_in_po_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "a.po").write_bytes(b'msgid "a"\nmsgstr "\xe4"\n')
    with pytest.raises(DataError, match=r"a.po:2: not UTF-8 \(byte 0xe4"):
        list(read_documents(CorpusSource(path=tmp_path / "a.po")))


# ------------------------------------------------------------------ documents to translate

OPEN_TMX = """<?xml version="1.0" encoding="utf-8"?>
<tmx version="1.4"><header srclang="en"/><body>
<tu tuid="k"><note>kept</note><tuv xml:lang="en"><seg>Good day. How are %s &amp; you?</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>Done</seg></tuv><tuv xml:lang="de"><seg>Fertig</seg></tuv></tu>
</body></tmx>
"""
OPEN_XLIFF = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file original="a" source-language="en" target-language="de" datatype="plaintext"><body>
<trans-unit id="1"><source>Good day. How are %s &amp; you?</source></trans-unit>
<trans-unit id="2"><source>Done</source><target>Fertig</target></trans-unit>
<trans-unit id="3" translate="no"><source>Never</source></trans-unit>
</body></file></xliff>
"""
OPEN_XLIFF_2 = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de"><file id="f">
<unit id="1"><segment><source>Good day. How are %s &amp; you?</source></segment></unit>
<unit id="2"><segment><source>Done</source><target>Fertig</target></segment></unit>
</file></xliff>
"""
OPEN_PO = r"""# translators
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=0;\n"

#: x.c:1
msgid "Good day. How are %s & you?\n"
msgstr ""

#, fuzzy
msgid "Done"
msgstr "Fertig"

msgid "One file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#~ msgid "old"
#~ msgstr ""
"""


@pytest.mark.parametrize(("name", "text"), [("tmx", OPEN_TMX), ("xliff", OPEN_XLIFF), ("xliff", OPEN_XLIFF_2)])
def test_files_fill_empty_targets_only(name: str, text: str) -> None:
    text_format = formats.get(name, target="de")
    sentences, skeleton = text_format.parse(text)
    assert sentences == ("Good day.", "How are %s & you?")
    filled = skeleton.fill(["Guten Tag.", "Wie geht's %s & < dir >?"])
    assert "Guten Tag. Wie geht's %s &amp; &lt; dir &gt;?" in filled
    assert "Fertig" in filled
    assert 'approved="yes"' not in filled
    again = text_format.parse(filled)
    assert again[0] == ()
    assert again[1].fill([]) == filled


def test_tmx_targets_have_their_language() -> None:
    filled = formats.get("tmx", target="fr").parse(OPEN_TMX)[1].fill(["a", "b", "c"])
    assert filled.count('xml:lang="fr"') == 2
    assert "<note>kept</note>" in filled


def test_po_fills_plurals_and_leaves_the_rest() -> None:
    sentences, skeleton = formats.get("po").parse(OPEN_PO)
    assert sentences == ("Good day.", "How are %s & you?", "One file", "%d files")
    assert [len(document.src) for document in skeleton.documents] == [2, 2]
    filled = skeleton.fill(["Guten Tag.", "%s?", "Eine Datei", "%d Dateien"])
    expected = OPEN_PO.replace('?\\n"\nmsgstr ""', '?\\n"\nmsgstr "Guten Tag. %s?\\n"')
    expected = expected.replace(
        '[0] ""\nmsgstr[1] ""', '[0] "Eine Datei"\nmsgstr[1] "%d Dateien"\nmsgstr[2] "%d Dateien"'
    )
    assert filled == expected


@pytest.mark.parametrize("name", ["tmx", "xliff", "po"])
def test_damaged_files_are_refused(name: str) -> None:
    with pytest.raises(DataError, match=f"not a valid {name} file"):
        formats.get(name).parse("<broken")


@pytest.mark.parametrize(
    ("name", "text"),
    [("tmx", OPEN_TMX.replace("utf-8", "latin1")), ("po", OPEN_PO.replace("charset=UTF-8", "charset=latin1"))],
)
def test_other_encodings_are_refused(name: str, text: str) -> None:
    with pytest.raises(DataError, match="declares the encoding latin1"):
        formats.get(name).parse(text)


def test_a_missing_toolkit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "translate.storage.tmx", None)
    with pytest.raises(ArgumentError, match=r"pip install 'reluformer\[formats\]'"):
        formats.get("tmx").parse(OPEN_TMX)
    with pytest.raises(ArgumentError, match=r"pip install 'reluformer\[formats\]'"):
        list(read_documents(source_of(tmp_path, "a.tmx", TMX)))


@pytest.mark.parametrize(("name", "text"), [("tmx", OPEN_TMX), ("xliff", OPEN_XLIFF), ("po", OPEN_PO)])
def test_the_number_of_translations_must_match(name: str, text: str) -> None:
    with pytest.raises(DataError, match=r"the text has \d+ sentences but 99 translations"):
        formats.get(name).parse(text)[1].fill(["x"] * 99)
