"""Scores: sacreBLEU's own figures, on the right lines, with their recipe."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pytest
import sacrebleu
from rich.console import Console
from rich.table import Table

from reluformer.errors import ArgumentError, DataError, UnknownNameError
from reluformer.translation.scoring import METRICS, MetricName, read_hypotheses, read_references, score
from reluformer.translation.significance import compare

REFERENCES = [
    ["The cat sat on the mat today.", "It was a warm and sunny day."],
    ["Nobody knows where the old man went.", "He has not been seen since.", "We miss him."],
    ["A short one, but with a few words."],
]
HYPOTHESES = [
    ["The cat sat on a mat today.", "It was a sunny and warm day."],
    ["Nobody knows where the man went.", "He has not been seen.", "We really miss him."],
    ["A short one, with few words."],
]
IN_OTHER_ORDER = [list(reversed(document)) for document in REFERENCES]


def flat(documents: list[list[str]]) -> list[str]:
    return [sentence for document in documents for sentence in document]


def joined(documents: list[list[str]]) -> list[str]:
    return [" ".join(document) for document in documents]


def noisy(documents: list[list[str]], share: float, seed: int) -> list[list[str]]:
    """The documents with that share of the words replaced."""
    draw = random.Random(seed)
    return [[" ".join("x" if draw.random() < share else w for w in s.split()) for s in d] for d in documents]


def printed(table: Table) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


MANY = REFERENCES * 15


def test_figures_are_those_of_sacrebleu() -> None:
    scores = score(HYPOTHESES, REFERENCES)
    assert scores.bleu.value == sacrebleu.corpus_bleu(flat(HYPOTHESES), [flat(REFERENCES)]).score
    assert scores.d_bleu.value == sacrebleu.corpus_bleu(joined(HYPOTHESES), [joined(REFERENCES)]).score
    assert scores.chrf.value == sacrebleu.corpus_chrf(flat(HYPOTHESES), [flat(REFERENCES)]).score
    assert 0 < scores.bleu.value < 100
    assert (scores.documents, scores.sentences) == (3, 6)


def test_every_figure_tells_its_recipe() -> None:
    scores = score(HYPOTHESES, REFERENCES)
    bleu = f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    chrf = f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"
    assert [figure.signature for figure in scores.figures] == [bleu, bleu, chrf]
    assert [figure.line for figure in scores.figures] == ["sentence", "document", "sentence"]
    assert str(scores).splitlines()[1] == f"d-BLEU = {scores.d_bleu.value:.2f} (a line is a document) {bleu}"
    assert bleu in printed(scores.table())
    assert chrf in printed(scores.table())


def test_identical_text_scores_one_hundred() -> None:
    assert [figure.value for figure in score(REFERENCES, REFERENCES).figures] == pytest.approx([100.0] * 3)


def test_case_counts() -> None:
    lower = [[sentence.lower() for sentence in document] for document in REFERENCES]
    assert score(lower, REFERENCES).bleu.value < 100


def test_document_bleu_does_not_see_the_order_of_sentences_as_bleu_does() -> None:
    """Sentences in the wrong places: hardly a match line by line, nearly all n-grams by document."""
    scores = score(IN_OTHER_ORDER, REFERENCES)
    assert scores.d_bleu.value > scores.bleu.value + 20


def test_one_sentence_documents_score_the_same_both_ways() -> None:
    scores = score([[s] for s in flat(HYPOTHESES)], [[s] for s in flat(REFERENCES)])
    assert scores.bleu.value == scores.d_bleu.value


# ------------------------------------------------------------------ buckets


def test_buckets_add_up_and_hold_their_documents() -> None:
    scores = score(HYPOTHESES, REFERENCES, length_borders=(8, 15))
    assert [bucket.label for bucket in scores.buckets] == ["0-8", "9-15", "16+"]
    assert [bucket.documents for bucket in scores.buckets] == [1, 1, 1]
    assert sum(bucket.documents for bucket in scores.buckets) == scores.documents
    assert sum(bucket.sentences for bucket in scores.buckets) == scores.sentences
    first = scores.buckets[0]
    assert first.bleu == score(HYPOTHESES[2:], REFERENCES[2:]).bleu.value
    assert first.chrf == score(HYPOTHESES[2:], REFERENCES[2:]).chrf.value


def test_a_border_belongs_to_the_shorter_bucket() -> None:
    scores = score([["a"], ["a"], ["a"]], [["a"], ["a"], ["a"]], lengths=[10, 11, 20], length_borders=[10, 20])
    assert [bucket.documents for bucket in scores.buckets] == [1, 2, 0]


def test_no_borders_no_buckets() -> None:
    scores = score(HYPOTHESES, REFERENCES, length_borders=())
    assert scores.buckets == ()
    assert f"{scores.d_bleu.value:.2f}" in printed(scores.table())


def test_an_empty_bucket_has_no_figures() -> None:
    empty = score(HYPOTHESES, REFERENCES).buckets[-1]
    assert (empty.label, empty.documents, empty.bleu, empty.d_bleu, empty.chrf) == ("1025+", 0, None, None, None)


def test_lengths_can_be_given_with_their_unit() -> None:
    scores = score(HYPOTHESES, REFERENCES, lengths=[2000, 1, 300], length_unit="source tokens")
    assert [bucket.documents for bucket in scores.buckets] == [1, 0, 1, 0, 1]
    assert scores.length_unit == "source tokens"
    assert "source tokens" in printed(scores.table())
    assert score(HYPOTHESES, REFERENCES).length_unit == "reference words"


# ------------------------------------------------------------------ what cannot be scored


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ([], [], "no sentence to score"),
        ([[]], [[]], "no sentence to score"),
        ([["a"]], [["a"], ["b"]], "hypotheses have 1 documents, references have 2"),
        ([["a"], ["b"]], [["a"], ["b", "c"]], "document 2 of 2: hypotheses have 1 sentences, references have 2"),
    ],
)
def test_documents_that_do_not_match_are_refused(
    hypotheses: list[list[str]], references: list[list[str]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        score(hypotheses, references)


def test_a_flat_list_is_refused_before_its_letters_are_scored() -> None:
    with pytest.raises(ArgumentError, match="hypotheses: document 1 is a string"):
        score(["a sentence"], [["a sentence"]])


def test_wrong_buckets_are_refused() -> None:
    with pytest.raises(ArgumentError, match="rising positive numbers"):
        score(HYPOTHESES, REFERENCES, length_borders=[20, 10])
    with pytest.raises(DataError, match="1 lengths for 3 documents"):
        score(HYPOTHESES, REFERENCES, lengths=[1])
    with pytest.raises(ArgumentError, match="needs lengths="):
        score(HYPOTHESES, REFERENCES, length_unit="tokens")


def test_an_empty_translation_scores_without_complaint() -> None:
    assert [figure.value for figure in score([[""]], [["a b c d e"]]).figures] == [0.0] * 3


# ------------------------------------------------------------------ significance


@pytest.mark.parametrize("metric", METRICS)
def test_a_clear_difference_is_significant(metric: MetricName) -> None:
    result = compare(noisy(MANY, 0.6, 1), noisy(MANY, 0.1, 2), MANY, metric=metric, samples=200)
    assert result.difference > 10
    assert result.p_value < 0.05
    assert result.a.interval[0] < result.a.score < result.a.interval[1]
    assert result.a.interval[1] < result.b.interval[0]
    assert result.b.score == getattr(score(noisy(MANY, 0.1, 2), MANY), metric).value


@pytest.mark.parametrize("metric", METRICS)
def test_identical_systems_are_not_told_apart(metric: MetricName) -> None:
    result = compare(noisy(MANY, 0.3, 1), noisy(MANY, 0.3, 1), MANY, metric=metric, samples=100)
    assert (result.difference, result.p_value) == (0.0, 1.0)


def test_equally_good_systems_are_not_significantly_different() -> None:
    assert compare(noisy(MANY, 0.3, 1), noisy(MANY, 0.3, 4), MANY, samples=200).p_value > 0.05


def test_the_same_seed_gives_the_same_answer_and_another_another() -> None:
    systems = noisy(MANY, 0.3, 1), noisy(MANY, 0.3, 4), MANY
    first = compare(*systems, samples=100)
    assert compare(*systems, samples=100) == first
    assert compare(*systems, samples=100, seed=7).b.mean != first.b.mean


def test_document_bleu_draws_documents() -> None:
    result = compare(noisy(MANY, 0.3, 1), noisy(MANY, 0.3, 2), MANY, metric="d_bleu", samples=50, seed=3)
    assert (result.lines, result.line) == (45, "document")
    assert compare(HYPOTHESES, IN_OTHER_ORDER, REFERENCES, samples=50).lines == 6
    assert "bs:50|seed:3|case:mixed" in result.signature


def test_the_seed_of_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "99")
    first = compare(HYPOTHESES, IN_OTHER_ORDER, REFERENCES, samples=20)
    assert os.environ["SACREBLEU_SEED"] == "99"
    monkeypatch.delenv("SACREBLEU_SEED")
    assert compare(HYPOTHESES, IN_OTHER_ORDER, REFERENCES, samples=20) == first
    assert "SACREBLEU_SEED" not in os.environ


@pytest.mark.parametrize("option", ["samples", "seed"])
def test_numbers_that_sacrebleu_would_reinterpret_are_refused(option: str) -> None:
    with pytest.raises(ArgumentError, match=f"{option} must be at least 1"):
        compare(HYPOTHESES, HYPOTHESES, REFERENCES, **{option: 0})


def test_a_single_document_cannot_be_resampled() -> None:
    with pytest.raises(DataError, match="a single document"):
        compare(HYPOTHESES[:1], IN_OTHER_ORDER[:1], REFERENCES[:1], metric="d_bleu")


def test_the_system_at_fault_is_named() -> None:
    with pytest.raises(DataError, match="hypotheses of new have 2 documents"):
        compare(HYPOTHESES, HYPOTHESES[:2], REFERENCES, names=("old", "new"))
    with pytest.raises(UnknownNameError, match="did you mean 'bleu'"):
        compare(HYPOTHESES, HYPOTHESES, REFERENCES, metric="blue")  # type: ignore[arg-type]


def test_results_become_json_and_tables() -> None:
    scores = score(HYPOTHESES, REFERENCES)
    data = json.loads(json.dumps(scores.to_dict()))
    assert data["d_bleu"]["value"] == scores.d_bleu.value
    assert [bucket["label"] for bucket in data["buckets"]] == ["0-128", "129-256", "257-512", "513-1024", "1025+"]
    result = compare(HYPOTHESES, IN_OTHER_ORDER, REFERENCES, samples=20, names=("ours", "theirs [b]"))
    data = json.loads(json.dumps(result.to_dict()))
    assert data["difference"] == result.difference
    assert data["b"]["interval"] == list(result.b.interval)
    assert "theirs [b]" in printed(result.table())
    assert result.signature in printed(result.table())


# ------------------------------------------------------------------ files


def written(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("a\nb\nc", [["a"], ["b"], ["c"]]),
        ("a\nb\n\nc\n", [["a", "b"], ["c"]]),
        ("\ufeff\r\n a \r\nb\r\n\r\n\r\nc\r\n\r\n", [["a", "b"], ["c"]]),
        ("a\nb\nc\n\n", [["a"], ["b"], ["c"]]),
        ("\n \na\nb\nc\n", [["a"], ["b"], ["c"]]),
        ("", []),
    ],
    ids=["flat", "breaks", "windows", "blank_end", "blank_start", "empty"],
)
def test_text_is_cut_at_blank_lines(tmp_path: Path, text: str, documents: list[list[str]]) -> None:
    assert read_hypotheses(written(tmp_path / "h.txt", text)) == documents


@pytest.mark.parametrize("text", ["a\n\nc\n", "a\n\n\nc\n"], ids=["flat", "with_breaks"])
def test_an_empty_translation_is_no_break_where_the_references_tell(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "h.txt", text)
    assert read_hypotheses(path, like=[["x", "y"], ["z"]]) == [["a", ""], ["c"]]


def test_blank_ends_do_not_hide_the_documents_of_the_references(tmp_path: Path) -> None:
    path = written(tmp_path / "h.txt", "a\nb\nc\n\n")
    assert read_hypotheses(path, like=[["x", "y"], ["z"]]) == [["a", "b"], ["c"]]


def test_text_unlike_the_references_is_read_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path / "h.txt", "a\n\nb\nc\n")
    assert read_hypotheses(path, like=[["x"], ["y"]]) == [["a"], ["b", "c"]]
    assert read_hypotheses(path, like=[["x", "y"], ["z"]]) == [["a"], ["b", "c"]]


@pytest.mark.parametrize("name", ["h.jsonl", "h.jsonl.gz", "h.JSONL", "h.ndjson", "h.Ndjson.gz"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_jsonl_has_hypotheses_beside_references(tmp_path: Path, name: str, ending: str) -> None:
    lines = ['{"id": 1, "tgt": ["a", "b"]}', "", '{"tgt": ["r"], "hyp": [""]}', ""]
    path = written(tmp_path / name, ending.join(lines))
    assert read_hypotheses(path) == [["a", "b"], [""]]
    assert read_references(path) == [["a", "b"], ["r"]]


def test_references_are_no_hypotheses(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'h\.jsonl, line 1: expected an object with "tgt"'):
        read_references(written(tmp_path / "h.jsonl", '{"hyp": ["a"]}'))


@pytest.mark.parametrize("line", ["{", "[]", '{"src": ["a"]}', '{"hyp": "a"}', '{"tgt": [1]}', '{"tgt": null}'])
def test_jsonl_names_the_bad_line(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "h.jsonl", f'{{"tgt": []}}\n{line}\n')
    with pytest.raises(DataError, match=r"h\.jsonl, line 2"):
        read_hypotheses(path)
