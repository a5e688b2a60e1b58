"""TMX, XLIFF and PO, and what to install for them."""

from __future__ import annotations

import builtins
import gzip
from pathlib import Path
from typing import Any

import pytest

from reluformer.errors import DataError
from reluformer.translation import skipped as reasons
from reluformer.translation.document import Document
from reluformer.translation.readers import read_documents
from reluformer.translation.recipe import CorpusSource
from reluformer.translation.skipped import Skipped

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
        ("a.tmx", TMX, ("Hello", "Bye"), ("Hallo", "Tschüss"), {reasons.EMPTY: 1}),
        ("a.tmx.gz", TMX, ("Hello", "Bye"), ("Hallo", "Tschüss"), {reasons.EMPTY: 1}),
        ("a.xlf", XLIFF, ("One",), ("Eins",), {reasons.EMPTY: 1, reasons.FUZZY: 1}),
        ("a.xliff", XLIFF_2, ("One",), ("Eins",), {}),
        ("a.po", PO, ("Hello", "%d word"), ("Grüß dich", "%d Wort"), {reasons.EMPTY: 1, reasons.FUZZY: 1}),
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
    assert (len(documents), tally.counts) == ((0, {reasons.FUZZY: 1}) if draft else (1, {}))


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


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without_toolkit(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("translate"):
            raise ImportError(name)
        return found(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_toolkit)
    with pytest.raises(DataError, match=r"pip install 'reluformer\[formats\]'"):
        list(read_documents(source_of(tmp_path, "a.po", PO)))
