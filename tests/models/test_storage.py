"""Save and load: exact, and clear about what is wrong with a directory."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import reluformer as rf
from reluformer import rules
from reluformer.errors import StorageError

SOURCE, TARGET = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 8]])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = rf.ReLUFormer(rf.ModelConfig(vocab_size=20, width=16, heads=2, slots=24))
    model.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    "changes",
    [
        dict(),
        dict(tied_embeddings=False),
        dict(ffn="softmax_ln", cross_attention={"name": "relu", "gamma": 2.0, "learn_gamma": True}, norm="post"),
        dict(encoder_layers=0, decoder_layers=1, encoder_attention="rela"),
    ],
    ids=["default", "untied", "options", "no_encoder"],
)
def test_round_trip_is_exact(tmp_path: Path, changes: dict[str, object]) -> None:
    model = rf.ReLUFormer(rf.ModelConfig(**{**dict(vocab_size=20, width=16, heads=2, slots=24), **changes}))
    model.save(tmp_path)
    loaded = rf.ReLUFormer.load(tmp_path)
    assert loaded.config == model.config
    assert model.state_dict().keys() == loaded.state_dict().keys()
    for name, parameter in model.state_dict().items():
        assert torch.equal(parameter, loaded.state_dict()[name]), name
    assert torch.equal(model.eval()(SOURCE, TARGET).logits, loaded.eval()(SOURCE, TARGET).logits)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(("dtype", "loaded"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)])
def test_no_digit_of_another_precision_is_lost(saved: Path, dtype: torch.dtype, loaded: torch.dtype) -> None:
    model = rf.ReLUFormer.load(saved).to(dtype)
    with torch.no_grad():
        model.decoder_norm.weight.mul_(math.pi)
    model.save(saved)
    found = rf.ReLUFormer.load(saved).state_dict()
    for name, parameter in model.state_dict().items():
        assert found[name].dtype == loaded
        assert torch.equal(found[name], parameter.to(loaded)), name


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(directory: Path, **changes: torch.Tensor | None) -> None:
    path = directory / "model.safetensors"
    weights = {**load_file(path), **{name.replace("__", "."): value for name, value in changes.items()}}
    save_file({name: value for name, value in weights.items() if value is not None}, path)
    edit_config(directory, weights=hashlib.sha256(path.read_bytes()).hexdigest())


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def put_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "holds no config.json, so it is not a saved model"),
        (lambda d: (d / "config.json").write_text("{"), "damaged, not readable as JSON"),
        (lambda d: (d / "config.json").write_text('{"model_type": "bert"}'), "written by another program"),
        (lambda d: (d / "config.json").write_text("[]"), "written by another program"),
        (lambda d: (d / "config.json").write_text('{"model":' + "[" * 200_000), "not readable as JSON"),
        (lambda d: (d / "config.json").write_text('{"a": ' + "[" * 150 + "]" * 150 + "}"), "nested more than 100"),
        (lambda d: (d / "config.json").write_text('{"a": ' + "9" * 5_000 + "}"), "not readable as JSON"),
        (lambda d: put_pipe(d / "config.json"), "config.json: is a named pipe"),
        (lambda d: put_pipe(d / "model.safetensors"), "model.safetensors: is a named pipe"),
        (lambda d: edit_config(d, model={"vocab_size": 10**18}), "'vocab_size': .*less than or equal to 2147483647"),
        (lambda d: edit_config(d, model={"vocab_size": 20, "encoder_layers": 10**9}), "less than or equal to 1000"),
        (lambda d: edit_config(d, format=99), "format 99, this version reads 1"),
        (lambda d: edit_config(d, architecture=[]), "config.json: damaged, 'architecture' is no name"),
        (lambda d: edit_config(d, architecture={"a": 1}), "config.json: damaged, 'architecture' is no name"),
        (lambda d: edit_config(d, architecture="later"), "unknown architecture 'later'; install the version"),
        (
            lambda d: edit_config(d, model={"vocab_size": 20, "wide": 3}),
            "config.json: unknown key 'wide'; did you mean",
        ),
        (lambda d: edit_config(d, model=None), "section 'model' is missing"),
        (lambda d: edit_config(d, model={"vocab_size": 20, "ffn": "mine"}), "unknown rule 'mine'.*--plugin FILE"),
        (lambda d: (d / "model.safetensors").unlink(), "model.safetensors is missing; copy the whole directory"),
        (lambda d: truncate(d / "model.safetensors"), "model.safetensors: damaged"),
        (lambda d: (d / "model.safetensors").write_bytes(b"x" * 50), "model.safetensors: damaged"),
        (lambda d: edit_weights(d, encoder_norm__bias=None), "lacks the weight 'encoder_norm.bias'"),
        (lambda d: edit_weights(d, more=torch.ones(1)), "has a weight 'more' that the model of config.json lacks"),
        (
            lambda d: edit_weights(d, encoder_norm__bias=torch.ones(3)),
            r"has shape \(3,\), config.json asks for \(16,\)",
        ),
        (
            lambda d: edit_weights(d, encoder_norm__bias=torch.full((16,), torch.nan)),
            "weight 'encoder_norm.bias' holds NaN or infinity",
        ),
        (
            lambda d: edit_weights(d, encoder_norm__bias=torch.ones(16, dtype=torch.int64)),
            "weight 'encoder_norm.bias' has type I64; the weights of a model are floating-point",
        ),
        (lambda d: edit_weights(d, encoder_norm__bias=torch.ones(16, dtype=torch.bool)), "has type BOOL"),
        (lambda d: flip_bit(d / "model.safetensors"), "model.safetensors: damaged, or changed since it was saved"),
    ],
)
def test_a_damaged_directory_says_what_is_wrong(saved: Path, damage: object, message: str) -> None:
    damage(saved)
    with pytest.raises(StorageError, match=message):
        rf.ReLUFormer.load(saved)


def test_sizes_are_compared_with_the_weights_before_memory_is_taken(saved: Path) -> None:
    model = json.loads((saved / "config.json").read_text())["model"]
    edit_config(saved, model={**model, "vocab_size": 2**30, "width": 2**14})  # 64 TiB of embeddings
    with pytest.raises(StorageError, match=r"has shape \(20, 16\), config.json asks for \(1073741824, 16384\)"):
        rf.ReLUFormer.load(saved)


def test_a_model_of_version_0_1_has_no_checksum_and_loads(saved: Path) -> None:
    content = json.loads((saved / "config.json").read_text())
    del content["weights"]
    (saved / "config.json").write_text(json.dumps(content))
    flip_bit(saved / "model.safetensors")
    rf.ReLUFormer.load(saved)


def test_a_rule_that_no_file_can_name_is_refused(tmp_path: Path) -> None:
    class Leaky(rules.Relu):
        def activate(self, scores: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.leaky_relu(scores)

    for rule in (Leaky(), rules.RectifiedExp()):
        model = rf.ReLUFormer(rf.ModelConfig.preset("tiny", vocab_size=20, cross_attention=rule))
        with pytest.raises(StorageError, match=f"{type(rule).__name__} is not registered"):
            model.save(tmp_path / "model")
    assert not (tmp_path / "model" / "model.safetensors").exists()


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such directory"):
        rf.ReLUFormer.load(tmp_path / "none")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot save the model"):
        rf.ReLUFormer(rf.ModelConfig(vocab_size=20, width=16, heads=2, slots=24)).save(tmp_path / "file")


def test_a_model_without_memory_has_the_shapes_and_imports_no_compiler() -> None:
    code = (
        "import sys, reluformer as rf; from reluformer.models import storage\n"
        "config = rf.ModelConfig(vocab_size=10**6, width=2048, heads=2, slots=10**6)\n"
        "with storage.without_memory(): model = rf.ReLUFormer(config)\n"
        "assert {weight.device.type for weight in model.parameters()} == {'meta'}\n"
        "assert model.source_embedding.weight.shape == (10**6, 2048)\n"
        "sys.exit(' '.join({'torch._dynamo', 'sympy'} & set(sys.modules)) or None)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr.strip()) == (0, "")
