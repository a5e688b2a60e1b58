"""Alignment: what a translation read, and what happens to a sentence that read another one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from reluformer.errors import DataError
from reluformer.translation import formats, windows
from reluformer.translation.alignment import WindowReads, read_windows
from reluformer.translation.corpus import read_documents
from reluformer.translation.document import Skipped, SkipReason, TranslatedSentence
from reluformer.translation.formats import FillReport
from reluformer.translation.inspection import read_map
from reluformer.translation.recipe import CorpusSource, DecodingConfig
from reluformer.translation.search import Hypothesis
from reluformer.translation.stepper import padded
from reluformer.translation.tokenizer import BEGIN, END, SEPARATOR
from reluformer.translation.torch_stepper import TorchStepper
from reluformer.translation.translator import Translator
from reluformer.translation.windows import WindowedDocument, stream_document, translate_documents

SOURCES = [[5, 6, SEPARATOR, 7, 8, 6, END], [8, END]]
TARGETS = [[7, SEPARATOR, 8, 6, 6], [6, 6]]
SENTENCES = ["the cat", "a dog", "it ran"]


def dense_shares(model, source: list[int], target: list[int], layers: list[int]) -> np.ndarray:
    """The shares of all source tokens, from the lists of single weights."""
    heads = [head for head in read_map(model, source, [*target, END]).heads if head.layer in layers]
    total = np.zeros((len(target), len(source)))
    for head in heads:
        dense = np.zeros_like(total)
        for row, reads in enumerate(head.rows[: len(target)]):
            for place, weight in reads:
                dense[row, place] = max(weight, 0)
        total += dense / np.maximum(dense.sum(1, keepdims=True), 1e-300)
    total[:, [place for place, token in enumerate(source) if token in (SEPARATOR, END)]] = 0
    return total / np.maximum(total.sum(1, keepdims=True), 1e-300)


@pytest.mark.parametrize("rule", ["relu", "relu_exp", "softmax", "sparsemax", "sigmoid"])
def test_reads_are_the_weights_of_the_model(make_model, rule: str) -> None:
    model = make_model(cross_attention=rule)
    found = read_windows(TorchStepper(model), SOURCES, TARGETS, by_token=True)
    assert found is not None
    for source, target, reads in zip(SOURCES, TARGETS, found, strict=True):
        assert reads.by_token == pytest.approx(dense_shares(model, source, target, [0, 1]), abs=1e-6)
        last = dense_shares(model, source, target, [1])
        ends = [place for place, token in enumerate(source) if token in (SEPARATOR, END)]
        by_sentence = np.stack([part.sum(1) for part in np.split(last, ends, axis=1)[: len(ends)]], 1)
        assert reads.by_sentence == pytest.approx(by_sentence, abs=1e-6)


def test_sources_of_a_search_are_not_encoded_again(make_model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(cross_attention="relu_exp")
    fresh, stepper = TorchStepper(model), TorchStepper(model)
    expected = read_windows(fresh, SOURCES, TARGETS)
    stepper.begin(*padded([*SOURCES, [7, 5, END]]), torch.tensor([[BEGIN]] * 3))
    monkeypatch.setattr(model, "encode", None)
    found = read_windows(stepper, SOURCES, TARGETS)
    assert found is not None and expected is not None
    for reads, wanted in zip(found, expected, strict=True):
        assert reads.by_sentence == pytest.approx(wanted.by_sentence, abs=1e-6)


def test_rows_that_read_nothing_are_zero(make_model) -> None:
    model = make_model(cross_attention="relu", learn_offset=True)
    for block in model.decoder:
        block.cross.layer.read.offset.data.fill_(-1000.0)
    found = read_windows(TorchStepper(model), SOURCES, TARGETS, by_token=True)
    assert found is not None
    assert all((reads.by_token == 0).all() and (reads.by_sentence == 0).all() for reads in found)


def accepted(document: WindowedDocument, tokens: tuple[int, ...], shares: list[list[float]]) -> None:
    """Gives a document the translation of its window, and what each of its tokens read."""
    document.accept([Hypothesis(tokens, -1.0, -1.0)], [WindowReads(np.array(shares, np.float32))])


def test_a_sentence_that_read_its_neighbour_is_translated_anew_by_itself(tokenizer) -> None:
    document = WindowedDocument(SENTENCES, tokenizer, DecodingConfig())
    accepted(document, (50, SEPARATOR, 51, SEPARATOR, 52), [[1, 0, 0], [0, 0, 0], [0.6, 0.4, 0], [0, 0, 0], [0, 0, 1]])
    assert not document.done
    assert document.finished_sentences == 1
    window = document.window()
    assert window.source == (*tokenizer.encode("a dog"), END) and window.outline.prefix == ()
    accepted(document, (60,), [[1]])
    assert document.done
    ((translation,)) = document.translations()
    assert [sentence.doubtful for sentence in translation.translated] == [False, True, False]
    assert translation.sentences == tuple(map(tokenizer.decode, [[50], [60], [52]]))
    assert translation.score == -1.0


@pytest.mark.parametrize(
    ("shares", "check"), [([0.4, 0.6], True), ([0.5, 0.5], True), ([0, 0], True), ([0.9, 0.1], False)]
)
def test_a_sentence_that_read_itself_or_nothing_stays(tokenizer, shares: list[float], check: bool) -> None:
    document = WindowedDocument(SENTENCES[:2], tokenizer, DecodingConfig(check_alignment=check))
    accepted(document, (50, SEPARATOR, 51), [[1, 0], [0, 0], shares])
    assert document.done
    assert not any(sentence.doubtful for sentence in document.translations()[0].translated)


def test_a_stream_holds_back_what_is_translated_anew(make_model, tokenizer) -> None:
    stepper = TorchStepper(make_model(vocab_size=tokenizer.vocab_size, seed=1))
    config = DecodingConfig(beam=1, length_offset=2, length_ratio=0.5)
    documents = [SENTENCES * 4]
    ((whole,),) = translate_documents(stepper, tokenizer, documents, config)
    assert any(sentence.doubtful for sentence in whole.translated)
    assert list(stream_document(stepper, tokenizer, documents[0], config)) == list(whole.translated)


def test_an_alignment_says_where_tokens_stand(make_model, tokenizer) -> None:
    stepper = TorchStepper(make_model(vocab_size=tokenizer.vocab_size, seed=1))
    for window in (8, 500):
        config = DecodingConfig(beam=1, length_offset=2, length_ratio=0.5, window_tokens=window)
        source = "the cat  saw a dog because night was near and it ran home"
        ((found,),) = translate_documents(stepper, tokenizer, [[source]], config, aligned=[True])
        alignment = found.translated[0].alignment
        assert alignment is not None
        words = [source[low:high].strip() for low, high in alignment.source]
        assert "".join(words) == source.replace(" ", "")
        assert alignment.weights.shape == (len(alignment.target), len(alignment.source))
        assert alignment.target[-1][1] == len(found.sentences[0])


def test_a_very_long_sentence_keeps_no_alignment(make_model, tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MOST_ALIGNED", 40)
    stepper = TorchStepper(make_model(vocab_size=tokenizer.vocab_size, seed=1))
    config = DecodingConfig(beam=1, length_offset=2, length_ratio=0.5, window_tokens=8)
    ((found,),) = translate_documents(
        stepper, tokenizer, [["the cat", "the cat ran home " * 30]], config, aligned=[True]
    )
    short, long = found.translated
    assert short.alignment is not None and long.alignment is None


def test_the_report_counts_what_was_translated_anew(make_model, tokenizer) -> None:
    model = make_model(vocab_size=tokenizer.vocab_size, seed=1)
    translator = Translator(model, tokenizer, DecodingConfig(beam=1, length_offset=2, length_ratio=0.5))
    report = FillReport()
    translator.translate([". ".join(SENTENCES * 4)], report=report)
    ((found,),) = translator.translate_n_best([formats.get("plain").parse(". ".join(SENTENCES * 4))[0]], 1)
    assert report.retranslated == sum(sentence.doubtful for sentence in found.translated)


def test_tsv_flags_doubtful_lines_and_a_corpus_skips_them(tmp_path: Path) -> None:
    _, skeleton = formats.get("tsv").parse("One\nTwo\t\tnote\nThree\n")
    doubtful = TranslatedSentence("Zwei", doubtful=True)
    assert skeleton.fill(["Eins", doubtful, "Drei"]) == "One\tEins\nTwo\tZwei\tnote\tfuzzy\nThree\tDrei\n"
    path = tmp_path / "a.tsv"
    path.write_text("One\tEins\nTwo\tZwei\tfuzzy\nThree\tDrei\n", encoding="utf-8")
    tally = Skipped()
    (document,) = read_documents(CorpusSource(path=path), skipped=tally)
    assert document.src == ("One", "Three") and tally.counts == {SkipReason.FUZZY: 1}


def test_csv_flags_doubtful_rows_and_a_corpus_skips_them(tmp_path: Path) -> None:
    _, skeleton = formats.get("csv").parse('One\n"Two",,note\nThree\n')
    doubtful = TranslatedSentence("Zwei, ja", doubtful=True)
    assert skeleton.fill(["Eins", doubtful, "Drei"]) == 'One,Eins\n"Two","Zwei, ja",note,fuzzy\nThree,Drei\n'
    path = tmp_path / "a.csv"
    path.write_text("One,Eins\nTwo,Zwei,fuzzy\nThree,Drei\n", encoding="utf-8")
    tally = Skipped()
    (document,) = read_documents(CorpusSource(path=path), skipped=tally)
    assert document.src == ("One", "Three") and tally.counts == {SkipReason.FUZZY: 1}


def test_json_lines_flag_doubtful_sentences_and_a_corpus_skips_them(tmp_path: Path) -> None:
    sentences = ["One", "", "Two"]
    _, skeleton = formats.get("jsonl").parse(json.dumps({"src": sentences, "hyp": ["x"], "hyp_fuzzy": [0]}) + "\n")
    assert json.loads(skeleton.fill(["Eins", "Zwei"])) == {"src": sentences, "hyp": ["Eins", "", "Zwei"]}
    _, skeleton = formats.get("jsonl").parse(json.dumps({"src": sentences}) + "\n")
    path = tmp_path / "a.jsonl"
    path.write_text(skeleton.fill(["Eins", TranslatedSentence("Zwei", doubtful=True)]), encoding="utf-8")
    assert json.loads(path.read_text("utf-8")) == {"src": sentences, "tgt": ["Eins", "", "Zwei"], "tgt_fuzzy": [2]}
    tally = Skipped()
    (document,) = read_documents(CorpusSource(path=path), skipped=tally)
    assert document.src == ("One",) and tally.counts[SkipReason.FUZZY] == 1
    path.write_text('{"src": ["One"], "tgt": ["Eins"], "tgt_fuzzy": "x"}\n', encoding="utf-8")
    with pytest.raises(DataError, match="tgt_fuzzy"):
        list(read_documents(CorpusSource(path=path)))


@pytest.mark.parametrize(
    ("name", "text", "flag"),
    [
        ("po", 'msgid "One"\nmsgstr ""\n', "#, fuzzy"),
        (
            "xliff",
            '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" source-language="en"'
            ' datatype="x"><body><trans-unit id="1"><source>One</source></trans-unit></body></file></xliff>',
            'state="needs-translation"',
        ),
        (
            "xliff",
            '<xliff version="2.0" srcLang="en" xmlns="urn:oasis:names:tc:xliff:document:2.0"><file id="f"><unit id="1">'
            "<segment><source>One</source></segment></unit></file></xliff>",
            'state="initial"',
        ),
    ],
)
def test_doubtful_entries_are_flagged_and_others_are_not(name: str, text: str, flag: str) -> None:
    pytest.importorskip("translate", reason="translate-toolkit is not installed")
    skeleton = formats.get(name).skeleton(text)
    assert flag in skeleton.fill([TranslatedSentence("Eins", doubtful=True)])
    assert flag not in skeleton.fill([TranslatedSentence("Eins")])
