"""A run as a directory of transformers and back, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("transformers", reason="needs the extra [hf]")

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import reluformer as rf
from reluformer import hub
from reluformer.errors import StorageError
from reluformer.models import storage
from reluformer.translation.recipe import DecodingConfig, TokenizerConfig
from reluformer.translation.tokenizer import Tokenizer

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer.meta.json", "recipe.yaml")
DOCUMENT = ["The house is big.", "It is old."]
RECIPE = """\
data: {source_lang: en, target_lang: de, train: {embedded: {documents: 3}}, segments: {segment_tokens: 64}}
decoding: {beam: 2, length_ratio: 1.0, length_offset: 3}
"""


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    tokenizer = Tokenizer.train(DOCUMENT * 9, TokenizerConfig(vocab_size=300))
    torch.manual_seed(3)
    config = rf.ModelConfig(
        vocab_size=tokenizer.vocab_size, width=16, heads=2, encoder_layers=1, decoder_layers=2, slots=16,
        tied_embeddings=request.param, cross_attention={"name": "relu", "gamma": 2.0, "learn_gamma": True},
        encoder_attention="rela",
    )  # fmt: skip
    directory.mkdir()
    tokenizer.save(directory)
    (directory / "recipe.yaml").write_text(RECIPE)
    storage.save(directory, config, rf.ReLUFormer(config).state_dict(), tokenizer.fingerprint)
    return directory


def test_there_and_back_again(run: Path, tmp_path: Path) -> None:
    hub.export_run(run, tmp_path / "hf")
    written = hub.import_run(tmp_path / "hf", tmp_path / "back")
    assert sorted(written["files"]) == sorted(FILES)
    for name in FILES:
        assert (tmp_path / "back" / name).read_bytes() == (run / name).read_bytes(), name
    hub.export_run(tmp_path / "back", tmp_path / "again")
    names = [path.name for path in (tmp_path / "hf").iterdir()]
    assert sorted(names) == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "hf" / name).read_bytes(), name


def test_the_export_is_the_run(run: Path, tmp_path: Path) -> None:
    hub.export_run(run, tmp_path / "hf")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    ours = rf.load(run)
    saved = load_file(run / "model.safetensors")
    assert all(torch.equal(model.state_dict()[f"model.{name}"], tensor) for name, tensor in saved.items())
    assert (model.config.source_lang, model.config.target_lang) == ("en", "de")
    assert model.config.tokenizer_sha256 == ours.tokenizer.fingerprint
    theirs = hub.translator(model, tokenizer)
    assert theirs.config == ours.config != DecodingConfig(), "beam and window are the run's"
    assert hub.translator(model, tokenizer, beam=3).config == ours.config.replace(beam=3)
    assert theirs.translate_documents([DOCUMENT]) == ours.translate_documents([DOCUMENT])


def test_an_export_that_does_not_say_how_it_searches_has_the_defaults(run: Path, tmp_path: Path) -> None:
    hub.export_run(run, tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    content = json.loads(path.read_text())
    del content["decoding"]
    path.write_text(json.dumps(content))
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    assert hub.translator(model, AutoTokenizer.from_pretrained(tmp_path / "hf")).config == DecodingConfig()


def test_a_model_that_was_trained_further_becomes_a_run(run: Path, tmp_path: Path) -> None:
    hub.export_run(run, tmp_path / "hf")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    with torch.no_grad():
        model.model.encoder[0].ffn.layer.keys.weight.add_(1.0)
    model.save_pretrained(tmp_path / "hf")
    hub.import_run(tmp_path / "hf", tmp_path / "back")
    found = rf.load(tmp_path / "back").model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in model.model.state_dict().items())


def test_what_is_there_is_not_overwritten(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "hf"
    hub.export_run(run, out)
    with pytest.raises(StorageError, match="exists and is not empty"):
        hub.export_run(run, out)
    (out / "stale.bin").write_text("old")
    hub.export_run(run, out, force=True)
    assert not (out / "stale.bin").exists()
    keeps = tmp_path / "photos"
    keeps.mkdir()
    (keeps / "one.jpg").write_text("")
    with pytest.raises(StorageError, match="is no export"):
        hub.export_run(run, keeps, force=True)
    assert (keeps / "one.jpg").exists()
    with pytest.raises(StorageError, match="is a file"):
        hub.export_run(run, keeps / "one.jpg")


@pytest.mark.parametrize("config", ['{"model_type": "bert"}', '{"kind": "reluformer"}', "{}", "[1]", "{"])
def test_force_replaces_no_folder_of_another_program(run: Path, tmp_path: Path, config: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(config)
    with pytest.raises(StorageError, match="is no export, so --force does not replace it"):
        hub.export_run(run, tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "config.json").read_text() == config


def test_force_replaces_a_run_that_was_imported_but_none_that_was_trained(run: Path, tmp_path: Path) -> None:
    hub.export_run(run, tmp_path / "hf")
    back = tmp_path / "back"
    for force in (False, True):
        hub.import_run(tmp_path / "hf", back, force=force)
    for name in ("status.json", "checkpoints"):
        (back / name).mkdir()
        with pytest.raises(StorageError, match="is no export, so --force does not replace it"):
            hub.import_run(tmp_path / "hf", back, force=True)
        (back / name).rmdir()
    with pytest.raises(StorageError, match="is no export, so --force does not replace it"):
        hub.import_run(tmp_path / "hf", tmp_path / "hf", force=True)
    assert (tmp_path / "hf" / "model.safetensors").exists() and (back / "model.safetensors").exists()


def test_a_failed_export_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub.ReLUFormerTokenizer, "save_pretrained", full)
    with pytest.raises(StorageError, match="cannot be written: No space left"):
        hub.export_run(run, tmp_path / "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_is_no_export_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such directory"):
        hub.import_run(tmp_path / "none", tmp_path / "back")
    with pytest.raises(StorageError, match=r"holds no config\.json"):
        hub.import_run(tmp_path, tmp_path / "back")
    with pytest.raises(StorageError, match="a model of type None"):
        hub.import_run(run, tmp_path / "back")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(StorageError, match="a model of type 'bert'"):
        hub.import_run(tmp_path, tmp_path / "back")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(StorageError, match="damaged"):
        hub.import_run(tmp_path, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_weights_that_are_not_finite_do_not_become_a_run(run: Path, tmp_path: Path) -> None:
    hub.export_run(run, tmp_path / "hf")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    with torch.no_grad():
        model.model.encoder[0].ffn.layer.keys.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "hf")
    with pytest.raises(StorageError, match="holds NaN"):
        hub.import_run(tmp_path / "hf", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_without_transformers_the_extra_is_named() -> None:
    code = "import sys; sys.modules['transformers'] = None; from reluformer import hub; hub.register"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs transformers; install it with: pip install 'reluformer[hf]'" in found.stderr


def test_the_package_alone_does_not_load_transformers() -> None:
    code = "import sys, reluformer.hub; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert {"register", "translator", "ReLUFormerConfig"} <= set(dir(hub))
    with pytest.raises(AttributeError, match="no attribute 'registre'"):
        _ = hub.registre
