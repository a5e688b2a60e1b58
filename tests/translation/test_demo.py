"""The demo from nothing to its report, made small: two trainings of a few updates."""

from __future__ import annotations

import json
import re
import shutil
from importlib import resources
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reluformer import load, rules
from reluformer.cli import app
from reluformer.config import load_yaml
from reluformer.errors import StorageError
from reluformer.kernels import cpu
from reluformer.models.config import ModelConfig
from reluformer.translation.corpus import PreparedCorpus
from reluformer.translation.demo import PAPER, SYSTEMS
from reluformer.translation.recipe import Recipe

SMALL = [
    *("training.updates=4", "training.warmup=2", "training.validate_every=2", "training.telemetry_every=2"),
    *("training.log_every=1", "model.width=16", "model.heads=2", "model.slots=24", "decoding.beam=1"),
    *(
        "data.train.embedded={documents: 30, sentences: [2, 4]}",
        "data.valid.embedded={documents: 4, sentences: [2, 3]}",
    ),
    *("data.test.embedded={documents: 5, sentences: [6, 8]}", "data.tokenizer.vocab_size=400"),
]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib", reason="needs reluformer[plots]")
    out = tmp_path_factory.mktemp("demo")
    result = CliRunner().invoke(app, ["demo", "--out", str(out), *(part for s in SMALL for part in ("--set", s))])
    assert result.exit_code == 0, result.output
    assert "Unseen documents" in result.output
    return out


def test_results_hold_both_systems_and_what_the_readme_names(out: Path) -> None:
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert set(results["systems"]) == {"reluformer", "transformer"}
    assert results["seconds"] > 0
    for name, system in results["systems"].items():
        assert {"bleu", "d_bleu", "pronoun_accuracy", "pronoun_accuracy_without_context", "term_accuracy"} <= set(
            system
        )
        assert system["training"]["step"] == 4
        assert "13a" in system["scores"]["bleu"]["signature"]
        translator = load(out / name)
        documents = [list(document.src) for document in PreparedCorpus(out / "data").documents("test")]
        found = [best.translated for (best,) in translator.translate_n_best(documents, 1)]
        anew = sum(sentence.doubtful for document in found for sentence in document)
        assert system["retranslated_sentences"] == anew
        assert f"{anew:,} of {system['scores']['sentences']:,}" in (out / "report.html").read_text(encoding="utf-8")
    assert results["systems"]["transformer"]["zero_fraction"] == 0
    assert results["systems"]["reluformer"]["zero_fraction"] > 10
    assert results["systems"]["transformer"]["long_reads"] is None, "softmax has no zeros to skip"


@pytest.mark.skipif(cpu.unavailable() is not None, reason=str(cpu.unavailable()))
def test_the_reads_of_a_long_text_are_timed(out: Path) -> None:
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    reads = results["systems"]["reluformer"]["long_reads"]
    assert reads["tokens"] == 1024 and 10 < reads["zeros"] < 100
    assert min(reads["faster_than_dense"], reads["faster_than_softmax"], reads["milliseconds"]) > 0


def test_the_folder_of_the_demo_loads_as_its_reluformer(out: Path) -> None:
    assert load(out).model.config == load(out / "reluformer").model.config


def test_the_systems_differ_in_their_rule_only(out: Path) -> None:
    configs = [json.loads((out / name / "config.json").read_text())["model"] for name in ("reluformer", "transformer")]
    differing = {key for key in configs[0] if configs[0][key] != configs[1][key]}
    assert differing == {"encoder_attention", "decoder_attention", "cross_attention"}


def test_the_report_stands_alone(out: Path) -> None:
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert "src=" not in page
    assert 'href="http' not in page.replace('xmlns:xlink="http', "")
    for title in ("Learning", "Pronouns by distance", "Scores by length", "One of the test documents"):
        assert title in page


def test_the_labels_of_the_charts_have_room(out: Path) -> None:
    page = (out / "report.html").read_text(encoding="utf-8")
    learning, pronouns, _ = page.split("<svg")[1:]
    for axis in ("xtick", "ytick"):
        labels = re.findall(rf'<g id="{axis}_\d+">.*?<text[^>]*>([^<]+)</text>', learning, re.DOTALL)
        assert 1 <= len(labels) <= 7
        assert all(float(label) >= 0 for label in labels), "plain numbers, not 2.4 × 10⁰"
    legend = pronouns[pronouns.index('id="legend') :]
    assert pronouns.count(">chance<") == legend.count(">chance<") == 1, (
        "curves cross the line, so its name is not there"
    )


def test_what_is_set_reaches_every_system_and_leaves_a_transformer() -> None:
    asked = ("training.lr=0.001", "model.cross_attention=softmax", "model.width=64")
    with resources.as_file(resources.files("reluformer.translation") / "demo.yaml") as path:
        relu, plain, paper = (load_yaml(Recipe, path, (*asked, *s.changes)) for s in (*SYSTEMS, PAPER))
    assert relu.training.lr == 0.001 and relu.training.regularizer is None
    assert relu.model_config_for(400) == ModelConfig.preset(
        "tiny", "reluformer", vocab_size=400, width=64, encoder_layers=2, decoder_layers=2, slots=512, dropout=0.0,
        positions="rotary", encoder_attention="relu_exp", decoder_attention="relu_exp", cross_attention="softmax",
    )  # fmt: skip
    assert plain.training == relu.training
    places = ("encoder_attention", "decoder_attention", "cross_attention")
    assert plain.model_config_for(400) == relu.model_config_for(400).replace(**dict.fromkeys(places, "softmax"))
    assert paper.model_config_for(400) == relu.model_config_for(400).replace(
        **dict.fromkeys(places, rules.Relu(gamma=4))
    )
    assert paper.training.regularizer is not None
    assert paper.training.replace(regularizer=None) == relu.training


def test_the_papers_rule_is_a_third_system_on_request(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out, tmp_path / "demo")  # the two finished systems are not trained again
    sets = [part for s in SMALL for part in ("--set", s)]
    result = CliRunner().invoke(app, ["demo", "--paper", "--out", str(tmp_path / "demo"), *sets])
    assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / "demo" / "results.json").read_text(encoding="utf-8"))
    assert list(results["systems"]) == ["reluformer", "transformer", "paper"]
    assert results["systems"]["paper"]["training"]["step"] == 4
    before = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert (
        results["systems"]["transformer"]["training"]["seconds"]
        == before["systems"]["transformer"]["training"]["seconds"]
    )
    assert "paper's rule" in (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")


def test_a_file_in_the_place_of_the_demo_is_told(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert isinstance(result.exception, StorageError)
    assert "cannot be made" in str(result.exception)


def test_a_failed_training_is_told(tmp_path: Path) -> None:
    sets = [part for s in (*SMALL, "training.lr=1e30", "training.clip=null") for part in ("--set", s)]
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), *sets])
    assert result.exit_code == 1
    assert "training 'reluformer' failed" in str(result.exception)
    assert not (tmp_path / "report.html").exists()
