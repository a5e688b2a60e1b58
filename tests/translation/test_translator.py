from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from reluformer.errors import ArgumentError, StorageError
from reluformer.models import storage
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.tokenizer import BEGIN, END
from reluformer.translation.translator import Translator, load_run, score_targets

SOURCES = [[5, 6, 3, 7, 2], [8, 2]]
TARGETS = [[7, 3, 8, 6, 2], [6, 6, 6, 2]]
TEXT = "The cat saw a dog. It ran home.\n\n  A dog ran.\n"


@pytest.fixture
def run(tmp_path, make_model, tokenizer):
    make_model(vocab_size=tokenizer.vocab_size, seed=1).float().save(tmp_path)
    tokenizer.save(tmp_path)
    return tmp_path


@pytest.fixture
def translator(run) -> Translator:
    return load_run(run, beam=2, length_offset=3, length_ratio=0.5)


def test_text_keeps_its_structure(translator):
    (translated,) = translator.translate([TEXT])
    ((first, second, third),) = translator.translate_documents([["The cat saw a dog.", "It ran home.", "A dog ran."]])
    flat = [" ".join(part.split()) for part in (first, second, third)]
    assert " ".join(translated.split()) == " ".join(" ".join(flat).split())
    assert translated.count("\n\n  ") == 1 and translated.endswith("\n")


def test_nothing_in_nothing_out(translator):
    assert translator.translate([]) == []
    assert translator.translate([""]) == [""]
    assert translator.translate(["  \n"]) == ["  \n"]
    assert translator.translate_documents([[], [""]]) == [[], [""]]
    assert list(translator.stream("")) == []


def test_n_best(translator):
    found = translator.translate([TEXT, "A cat."], n_best=2)
    assert [len(choices) for choices in found] == [2, 2]
    assert [choices[0] for choices in found] == translator.translate([TEXT, "A cat."])
    assert len(set(found[1])) > 1
    scores = [translation.score for translation in translator.translate_n_best([["A cat."]], 3)[0]]
    assert len(scores) == 3


def test_a_stream_is_the_translation_a_sentence_at_a_time(translator):
    sentences = ["The cat saw a dog.", "It ran home.", "A dog ran."]
    assert list(translator.stream(TEXT)) == list(translator.stream(sentences))
    assert list(translator.stream(sentences)) == translator.translate_documents([sentences])[0]


def test_scores_of_given_translations(translator):
    (scored,) = translator.score([["A cat.", "It ran."]], [["A dog.", "A dog ran."]])
    assert len(scored.sentences) == 2
    assert scored.total == pytest.approx(sum(scored.sentences)) == pytest.approx(sum(scored.tokens))
    assert scored.total < 0


def test_one_string_is_not_a_list_of_documents(translator):
    with pytest.raises(ArgumentError, match=r"write \[text\]"):
        translator.translate("A cat.")
    with pytest.raises(ArgumentError, match=r"write \[text\]"):
        translator.translate_documents(["A cat."])


def test_the_recipe_of_the_run_decides_window_and_search(run):
    recipe = "data: {segments: {segment_tokens: 96}}\ndecoding: {beam: 3, length_penalty: 0.5}\n"
    (run / "recipe.yaml").write_text(recipe)
    assert load_run(run).config == DecodingConfig(beam=3, length_penalty=0.5, window_tokens=96)
    assert load_run(run, beam=1).config.beam == 1
    (run / "recipe.yaml").write_text("data: {segments: {segment_tokens: sentence}}\ndecoding: {window_tokens: 64}\n")
    assert load_run(run).config.window_tokens == 64


@pytest.mark.parametrize(
    ("recipe", "message"),
    [("- 1", "damaged"), ("data: [", "damaged"), ("data: {}\ndecoding: {beem: 2}", "did you mean 'beam'")],
)
def test_a_damaged_recipe_is_named(run, recipe, message):
    (run / "recipe.yaml").write_text(recipe)
    with pytest.raises(StorageError, match=message):
        load_run(run)


def test_directories_that_hold_no_translator(run, tmp_path, make_model):
    with pytest.raises(StorageError, match="no such directory"):
        load_run(tmp_path / "absent")
    make_model(vocab_size=77).save(run)
    with pytest.raises(StorageError, match="entries, the model 77; use the tokenizer that"):
        load_run(run)
    (run / "tokenizer.json").unlink()
    with pytest.raises(StorageError, match="holds a model but no tokenizer"):
        load_run(run)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user who may not see everything")
def test_a_folder_that_cannot_be_seen_into_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0)
    with pytest.raises(StorageError, match="so it is not a saved model"):
        load_run(tmp_path)


def test_a_folder_of_runs_is_told_their_names(run):
    for name in ("transformer", "relu"):
        (run / "demo" / name).mkdir(parents=True)
        (run / "demo" / name / "recipe.yaml").write_text("")
    with pytest.raises(StorageError, match="not a run, it holds the runs relu, transformer; name one of them"):
        load_run(run / "demo")


def test_a_folder_of_runs_stands_for_its_reluformer(run, tmp_path_factory):
    demo = tmp_path_factory.mktemp("demo")
    shutil.copytree(run, demo / "reluformer")
    (demo / "transformer").mkdir()
    (demo / "transformer" / "recipe.yaml").write_text("")
    assert load_run(demo).translate([TEXT]) == load_run(run).translate([TEXT])


def test_a_run_stands_for_itself_whatever_runs_are_in_it(run):
    (run / "reluformer").mkdir()
    (run / "reluformer" / "config.json").write_text("damaged")
    assert load_run(run).translate([""]) == [""]


def test_another_tokenizer_of_the_same_size_is_refused(run, tokenizer):
    model = ReLUFormer.load(run)
    storage.save(run, model.config, model.state_dict(), tokenizer.fingerprint)
    assert load_run(run).tokenizer.fingerprint == tokenizer.fingerprint
    storage.save(run, model.config, model.state_dict(), "0" * 64)
    with pytest.raises(StorageError, match="not the tokenizer that the model was trained with"):
        load_run(run)


def test_scores_are_the_models_log_probabilities(make_model):
    model = make_model()
    for source, target, scored in zip(SOURCES, TARGETS, score_targets(model, SOURCES, TARGETS), strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([source]), torch.tensor([[BEGIN, *target[:-1]]])).logits[0]
        expected = [row[token].item() for row, token in zip(torch.log_softmax(logits, -1), target, strict=True)]
        assert scored.tokens == pytest.approx(expected)
        assert scored.total == pytest.approx(sum(expected))
    assert score_targets(model, SOURCES, TARGETS)[0].sentences == pytest.approx(
        (
            sum(score_targets(model, SOURCES, TARGETS)[0].tokens[:2]),
            sum(score_targets(model, SOURCES, TARGETS)[0].tokens[2:]),
        )
    )


def test_batches_change_nothing_and_order_is_kept(make_model):
    model = make_model()
    together = score_targets(model, SOURCES * 3, TARGETS * 3)
    apart = score_targets(model, SOURCES * 3, TARGETS * 3, batch_tokens=1)
    for one, other in zip(together, apart, strict=True):
        assert one.tokens == pytest.approx(other.tokens)
    assert together[0].tokens == pytest.approx(together[2].tokens) != pytest.approx(together[1].tokens)


def test_what_does_not_fit_is_refused(make_model):
    assert score_targets(make_model(), [], []) == []
    with pytest.raises(ArgumentError, match="2 sources but 1 targets"):
        score_targets(make_model(), SOURCES, TARGETS[:1])
    with pytest.raises(ArgumentError, match=f"end token {END}"):
        score_targets(make_model(), SOURCES, [[5], [6, 2]])
