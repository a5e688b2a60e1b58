"""HTML: only the words change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reluformer.translation import formats

PIECES = [
    "<p>", "</p>", "<b>", "</b>", "<br>", "<a href='x>y'>", "</a>", "<!-- a -->", "<!doctype html>", "<script>",
    "</script>", "<code>", "</code>", "One. ",
    "Two", "&amp;", "&lt;b&gt;", "<", ">", "&", "[1]", "\n", " ", "<td", '"', "é",
]  # fmt: skip


def shout(text: str) -> tuple[tuple[str, ...], str]:
    """The sentences, and the text with all of them in capitals."""
    sentences, skeleton = formats.get("html").parse(text)
    return sentences, skeleton.fill([sentence.upper() for sentence in sentences])


@pytest.mark.parametrize(
    ("text", "sentences", "translated"),
    [
        ("<p>One dog. Two.</p>", ("One dog.", "Two."), "<p>ONE DOG. TWO.</p>"),
        ("<td>a</td>\n<td title='a > b'>b</td>", ("a", "b"), "<td>A</td>\n<td title='a > b'>B</td>"),
        ("one<br/>two", ("one", "two"), "ONE<br/>TWO"),
        ("a <b class=x>big</b> dog", ("a [1]big[/1] dog",), "A <b class=x>BIG</b> DOG"),
        ("run <code>ls -l</code> now", ("run [1] now",), "RUN <code>ls -l</code> NOW"),
        ("<i><b>so</b></i> it", ("[1][2]so[/2][3] it",), "<i><b>SO</b></i> IT"),
        ("cats &amp; dogs &lt; us", ("cats & dogs < us",), "CATS &amp; DOGS &lt; US"),
        ("<!-- no --><style>p {}</style><pre>a b</pre>c", ("c",), "<!-- no --><style>p {}</style><pre>a b</pre>C"),
        ("<script>if (a < b) { '</p>' }</script>d", ("d",), "<script>if (a < b) { '</p>' }</script>D"),
        ("one\ntwo", ("one two",), "ONE TWO"),
    ],
)
def test_words_change_and_tags_stay(text: str, sentences: tuple[str, ...], translated: str) -> None:
    assert shout(text) == (sentences, translated)


def test_a_tag_that_the_translation_lost_is_not_lost() -> None:
    _, skeleton = formats.get("html").parse("<p>See <a href='x'>this</a> now.</p>")
    assert skeleton.fill(["Sieh jetzt."]) == "<p>Sieh jetzt. <a href='x'>this</a></p>"


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
