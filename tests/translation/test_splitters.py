"""Splitters: sentences where a reader would put them, and never a lost character."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reluformer.errors import ArgumentError, UnknownNameError
from reluformer.translation import splitters

SENTENCE_LISTS = {
    "title": ["Mr. Smith met Dr. Jones.", "They talked."],
    "german_abbreviation": ["Das ist z.B. Unsinn, d.h. Quatsch.", "Oder bzw. Der Rest?"],
    "spaced_abbreviation": ["Es gibt z. B. Die Grünen.", "Er ging."],
    "date": ["Am 3. Mai war es kalt.", "Am 12. Juni nicht."],
    "ordinal": ["Der 3. Versuch gelang.", "Sein 2. Buch auch."],
    "roman_ordinal": ["Im XX. Jahrhundert lebte Heinrich VIII. und starb."],
    "number_at_the_end": ["Er war 3.", "Dann ging er.", "Es war 1999.", "Niemand kam."],
    "decimal": ["Pi is 3.14.", "It costs 5.20 dollars."],
    "initials": ["J. R. R. Tolkien wrote it.", "So did E. Waugh."],
    "letter_at_the_end": ["It was plan B.", "The next one failed."],
    "country": ["The U.S. President spoke.", "He lives in the U.S.", "The weather is fine."],
    "may_be_last": ["Apples, pears etc. Bob likes.", "Katzen, Hunde usw.", "Dann kam er."],
    "counted": ["See No. 5.", "And fig. 3.", "I say no.", "Yes."],
    "company": ["Apple Inc. Managers resigned."],
    "ellipsis": ["Wait...", "What?", "Nun … ja.", "Ende…", "Gut."],
    "runs": ["Really?!", "Yes!!!", "No."],
    "quotes": ['"Really?" he asked.', "(Yes.)", '"No."', "„Komm!“ rief er.", "„Ja.“", "»Nein.«", "Ende."],
    "list_numbers": ["1. Die Kommission sagt ja.", "2. Der Rat nicht."],
    "lower_case_goes_on": ["He said stop. and went on."],
    "emoji": ["Great!", "🎉 Party."],
    "no_stop_inside": ["See www.example.org/a.B?c=d for more.", "Done."],
}


@pytest.mark.parametrize("name", SENTENCE_LISTS)
def test_simple_finds_the_sentences(name: str) -> None:
    sentences = SENTENCE_LISTS[name]
    assert list(splitters.get("simple").split(" ".join(sentences)).sentences) == sentences


@pytest.mark.parametrize("blank", ["\n\n", "\r\n\r\n", "\n \t\n"])
def test_a_blank_line_ends_a_sentence_without_a_stop(blank: str) -> None:
    split = splitters.get("simple").split(f"A title{blank}and more")
    assert split.sentences == ("A title", "and more")
    assert split.separators == ("", blank, "")


def test_a_line_break_alone_does_not_end_a_sentence() -> None:
    assert splitters.get("simple").split("One\ntwo. Three").sentences == ("One\ntwo.", "Three")


def test_none_takes_every_line() -> None:
    split = splitters.get("none").split("  A. B\r\n\r\nC\rD\n")
    assert split.sentences == ("A. B", "C", "D")
    assert split.separators == ("  ", "\r\n\r\n", "\r", "\n")


ragged = st.text(alphabet=st.sampled_from(list("aBz3IX .!?…\"'“„»«()\n\r\t\u00a0\u2028\u200f\ufeff🎉é-")), max_size=60)


@pytest.mark.parametrize("name", ["simple", "none"])
@settings(max_examples=150, deadline=None)
@given(text=st.one_of(ragged, st.text(max_size=80)))
def test_splitting_loses_nothing(name: str, text: str) -> None:
    split = splitters.get(name).split(text)
    assert split.join() == text
    assert "".join(piece for piece, _ in split) == text
    assert all(sentence.strip() == sentence != "" for sentence in split.sentences)
    assert all(not separator.strip() for separator in split.separators)
    assert len(split.separators) == len(split.sentences) + 1


@pytest.mark.parametrize("text", ["", "   ", "\n\n"])
def test_nothing_to_split(text: str) -> None:
    split = splitters.get("simple").split(text)
    assert (split.sentences, split.separators) == ((), (text,))


def test_join_puts_other_sentences_in_place_and_wants_as_many() -> None:
    split = splitters.get("simple").split(" One.  Two. ")
    assert split.join(["Eins.", "Zwei."]) == " Eins.  Zwei. "
    with pytest.raises(ArgumentError, match="expected 2 sentences, got 1"):
        split.join(["Eins."])


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'simple'"):
        splitters.get("simpel")


def test_every_name_can_be_got_and_objects_pass() -> None:
    assert set(splitters.names()) == {"simple", "none", "pysbd"}
    splitter = splitters.get("none")
    assert splitters.get(splitter) is splitter


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pysbd", None)
    with pytest.raises(ArgumentError, match="pip install pysbd"):
        splitters.get("pysbd")


def test_pysbd_is_made_lossless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package may change white space, or a whole piece; neither may lose text."""

    class Segmenter:
        def __init__(self, language: str, clean: bool) -> None:
            if language != "de":
                raise ValueError(f"no language {language}")

        def segment(self, text: str) -> list[str]:
            return ["One. ", "changed by it", "Three."]

    monkeypatch.setitem(sys.modules, "pysbd", SimpleNamespace(Segmenter=Segmenter))
    split = splitters.get("pysbd", "de").split(" One.  Two. Three. Four.")
    assert split.sentences == ("One.", "Two. Three.", "Four.")
    assert split.join() == " One.  Two. Three. Four."
    with pytest.raises(ArgumentError, match="no language xx"):
        splitters.get("pysbd", "xx")
