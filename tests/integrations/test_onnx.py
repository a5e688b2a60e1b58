"""ONNX: the graphs give the model's numbers, beam search on them the same text, and no damage goes unseen."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from reluformer import hub, rules
from reluformer.errors import ArgumentError, StorageError, UnknownNameError
from reluformer.integrations import onnx as exported
from reluformer.models import storage
from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.beam_search import beam_search
from reluformer.translation.recipe import DecodingConfig, TokenizerConfig
from reluformer.translation.tokenizer import Tokenizer
from reluformer.translation.torch_stepper import TorchStepper
from reluformer.translation.translator import Translator, load_run

pytest.importorskip("onnxscript", reason="needs the extra onnx: pip install 'reluformer[onnx]'")
onnx = pytest.importorskip("onnx", reason="needs the extra onnx: pip install 'reluformer[onnx]'")
pytest.importorskip("onnxruntime", reason="needs the extra onnx: pip install 'reluformer[onnx]'")

from reluformer.integrations.onnx import graphs, runtime  # noqa: E402
from reluformer.integrations.onnx.graphs import EncoderGraph  # noqa: E402

TEXT = "The cat saw a dog. It ran home because night was near.\n\n The dog was near a cat and it saw home.\n"
WORDS = ["the", "cat", "saw", "a", "dog", "and", "it", "ran", "home", "because", "night", "was", "near"]
MODELS: dict[str, dict[str, Any]] = {
    # two decoder layers, so that the slots of one could be taken for those of the other
    "additive": dict(
        ffn="sigmoid",
        encoder_attention="rela",
        decoder_attention={"name": "relu2", "learn_gamma": True},
        cross_attention="relu_norm",
        positions="rotary",
        decoder_layers=2,
    ),
    "simplex": dict(
        ffn="softmax_ln",
        encoder_attention="entmax15",
        decoder_attention="softmax",
        cross_attention="sparsemax",
        norm="post",
        tied_embeddings=False,
    ),
}
MASK = torch.arange(6) < torch.tensor([[6], [2], [4], [1]])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([" ".join(WORDS), "A dog. The cat."] * 4, TokenizerConfig(vocab_size=300))


@pytest.fixture(scope="module")
def run(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs of random models with opinions strong enough that no two tokens tie."""
    home = tmp_path_factory.mktemp("runs")

    def make(name: str) -> Path:
        directory = home / name
        if not directory.exists():
            torch.manual_seed(1)
            sizes = dict(width=16, heads=2, encoder_layers=1, decoder_layers=1, slots=24, dropout=0.3)
            config = ModelConfig(vocab_size=tokenizer.vocab_size, **{**sizes, **MODELS[name]})
            model = ReLUFormer(config)
            state = {key: value + 0.2 * torch.randn_like(value) for key, value in model.state_dict().items()}
            if config.tied_embeddings:
                state.update(dict.fromkeys(_EMBEDDINGS, state[_EMBEDDINGS[0]]))
            storage.save(directory, config, state, tokenizer.fingerprint)
            tokenizer.save(directory)
        return directory

    return make


_EMBEDDINGS = [f"{kind}_embedding.weight" for kind in ("source", "target", "output")]


@pytest.fixture(scope="module")
def export_of(run: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Each model exported once: tracing takes some seconds."""
    home = tmp_path_factory.mktemp("exports")

    def make(name: str) -> Path:
        directory = home / name
        if not directory.exists():
            exported.export_run(run(name), directory, quantize=None, opset=None, force=False)
        return directory

    return make


@pytest.fixture
def copy(export_of: Callable[[str], Path], tmp_path: Path) -> Path:
    """An export to damage."""
    return Path(shutil.copytree(export_of("simplex"), tmp_path / "copy"))


@pytest.mark.parametrize("name", MODELS)
def test_steps_give_the_models_numbers(name: str, run: Any, export_of: Any) -> None:
    """A prefix, branching, reordering, and sources that leave the batch."""
    model = load_run(run(name)).model
    both = [TorchStepper(model), exported.load(export_of(name)).decoder]
    generator = torch.Generator().manual_seed(0)

    def tokens(*shape: int) -> torch.Tensor:
        return torch.randint(0, model.config.vocab_size, shape, generator=generator)

    source, prefix = tokens(4, 6), tokens(4, 3)
    (expected, torch_beams), (found, beams) = (one.begin(source, MASK, prefix) for one in both)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    for parents, kept in (
        ([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], [2, 0, 1]),
        ([1, 0, 4, 4, 8, 7], None),
        ([0, 2, 5], [1]),
        ([0, 0], None),
    ):
        newest = tokens(len(parents))
        expected, found = (
            one.step(newest, torch.tensor(parents), state)
            for one, state in zip(both, (torch_beams, beams), strict=True)
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
        if kept is not None:
            for state in (torch_beams, beams):
                state.select(torch.tensor(kept))
    assert runtime.read_manifest(export_of(name)).max_difference < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_documents_come_out_the_same(name: str, run: Any, export_of: Any) -> None:
    """In windows with forced prefixes, ranked, and streamed."""
    settings = dict(window_tokens=24, beam=3, length_ratio=0.5, length_offset=3, check_alignment=False)
    model, graphs = load_run(run(name), **settings), exported.load(export_of(name), **settings)
    assert graphs.translate([TEXT], n_best=3) == model.translate([TEXT], n_best=3)
    assert list(graphs.stream(TEXT)) == list(model.stream(TEXT))
    assert graphs.translate([]) == []


def test_a_source_does_not_depend_on_its_neighbours(export_of: Any) -> None:
    graphs = exported.load(export_of("additive")).decoder
    source = torch.randint(5, 200, (4, 6), generator=torch.Generator().manual_seed(3))
    config = DecodingConfig(beam=3, length_offset=4, length_ratio=0.1)
    together = beam_search(graphs, source, MASK, config=config)
    for number, length in enumerate(MASK.sum(1).tolist()):
        (alone,) = beam_search(graphs, source[number : number + 1, :length], config=config)
        assert [one.tokens for one in alone] == [one.tokens for one in together[number]]


def test_the_graphs_have_documented_inputs_and_no_operators_of_ours(export_of: Any) -> None:
    directory = export_of("additive")
    for name, inputs, outputs in (
        ("encoder", ["source", "mask"], [f"cross_{part}_{i}" for i in (0, 1) for part in ("key", "value")]),
        (
            "decoder",
            ["tokens", "parents", "mask"]
            + [f"{kind}_{part}_{i}" for kind in ("cross", "past") for i in (0, 1) for part in ("key", "value")],
            ["logits", *(f"present_{part}_{i}" for i in (0, 1) for part in ("key", "value"))],
        ),
    ):
        model = onnx.load(directory / f"{name}.onnx")
        onnx.checker.check_model(model, full_check=True)
        assert [entry.name for entry in model.graph.input] == inputs
        assert [entry.name for entry in model.graph.output] == outputs
        assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", graphs.DEFAULT_OPSET)]
    shapes = {entry.name: _shape(entry) for entry in model.graph.input}
    assert shapes["tokens"] == ["batch", "beams", "new"]
    assert shapes["cross_value_1"] == ["batch", 2, "source", 8]
    assert shapes["past_key_0"] == ["rows", 2, "past", 8]


def _shape(entry: Any) -> list[str | int]:
    return [axis.dim_param or axis.dim_value for axis in entry.type.tensor_type.shape.dim]


def test_the_highest_opset_is_written_and_computes_the_same(run: Any, tmp_path: Path) -> None:
    model = load_run(run("simplex")).model
    graphs.trace(EncoderGraph(model), tmp_path / "encoder.onnx", graphs.OPSETS[-1])
    source = torch.arange(12).view(2, 6)
    found = runtime.session_of(tmp_path / "encoder.onnx").run(
        None, {"source": source.numpy(), "mask": MASK[:2].numpy()}
    )
    with torch.inference_mode():
        expected = EncoderGraph(model)(source, MASK[:2])
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(got), wanted, rtol=0, atol=1e-4)


def test_int8_makes_the_linear_layers_integer_and_the_files_smaller(
    run: Any, export_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = export_of("additive")  # before the patch, which would otherwise call itself

    def take_traced(model: ReLUFormer, directory: Path, opset: int) -> float:
        for name in (runtime.ENCODER, runtime.DECODER):
            shutil.copy(traced / name, directory)
        return 0.0

    monkeypatch.setattr(graphs, "write_graphs", take_traced)
    out = tmp_path / "int8"
    report = exported.export_run(run("additive"), out, quantize="int8", opset=None, force=False)
    assert report["quantize"] == runtime.read_manifest(out).quantize == "int8"
    operators = [node.op_type for node in onnx.load(out / runtime.DECODER).graph.node]
    # of each of two layers: query, key and value, output; query and output; feed-forward in and out
    assert operators.count("MatMulInteger") >= 2 * 7
    assert "Gemm" not in operators
    settings = dict(beam=2, length_ratio=0.5, length_offset=3)
    assert len(exported.load(out, **settings).translate([TEXT])) == 1


@pytest.mark.parametrize("name", [runtime.ENCODER, runtime.DECODER, "tokenizer.json"])
def test_a_damaged_file_is_named(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(StorageError, match=rf"{name}: damaged"):
        exported.load(copy)


def test_a_missing_file_is_named(copy: Path) -> None:
    (copy / runtime.DECODER).unlink()
    with pytest.raises(StorageError, match=r"decoder\.onnx is missing; copy the whole folder"):
        exported.load(copy)


def test_the_tokenizer_of_another_model_is_refused(copy: Path) -> None:
    Tokenizer.train(["other words entirely", *WORDS] * 4, TokenizerConfig(vocab_size=300)).save(copy)
    with pytest.raises(StorageError, match="not the tokenizer that the model was trained with"):
        exported.load(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "format 99, this version reads 1"),
        ({"kind": "reluformer"}, "written by another program"),
        ({"files": None}, "'files' is missing"),
        ({"decoding": {"beams": 3}}, "decoding.*beams"),
        (None, "damaged, not readable as JSON"),
    ],
)
def test_a_damaged_manifest_is_refused(copy: Path, change: dict[str, Any] | None, message: str) -> None:
    path = copy / runtime.MANIFEST
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text("{" if change is None else json.dumps({**content, **change}), encoding="utf-8")
    with pytest.raises(StorageError, match=message):
        exported.load(copy)


def test_what_is_no_export_says_so(tmp_path: Path, run: Any, export_of: Any) -> None:
    with pytest.raises(StorageError, match=r"holds no onnx\.json; make one with: reluformer export RUN --to onnx"):
        exported.load(run("simplex"))
    with pytest.raises(StorageError, match=r"an ONNX export, not a run; reluformer.load opens it"):
        load_run(export_of("simplex"))


def test_graphs_that_onnxruntime_cannot_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "encoder.onnx").write_bytes(b"no graph")
    with pytest.raises(StorageError, match=r"encoder\.onnx: onnxruntime .* cannot load it"):
        runtime.session_of(tmp_path / "encoder.onnx")


def test_an_export_only_translates(export_of: Any) -> None:
    with pytest.raises(ArgumentError, match=r"an exported model only translates; .* load the run"):
        exported.load(export_of("simplex")).score([["The cat."]], [["The dog."]])


def test_ids_outside_the_vocabulary_are_refused(export_of: Any) -> None:
    graphs = exported.load(export_of("simplex")).decoder
    for ids in ([[5, -1]], [[5, 10_000]]):
        with pytest.raises(ArgumentError, match="use the tokenizer of the export"):
            graphs.begin(torch.tensor(ids), None, torch.tensor([[1]]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"opset": 17}, ArgumentError, "--opset 17: valid are 18 to 23; without it, 18"),
        ({"opset": 99}, ArgumentError, "valid are 18 to 23"),
        ({"quantize": "int4"}, UnknownNameError, "unknown quantisation 'int4'; did you mean 'int8'"),
    ],
)
def test_unknown_options_are_refused_before_any_work(
    run: Any, tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        exported.export_run(run("simplex"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_nothing_else_is_overwritten(run: Any, copy: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"holds an export already; .* --force"):
        exported.export_run(run("simplex"), copy)
    with pytest.raises(StorageError, match="is not empty and no ONNX export"):
        exported.export_run(run("simplex"), run("simplex"), force=True)
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(StorageError, match="is a file"):
        exported.export_run(run("simplex"), tmp_path / "file", force=True)
    assert runtime.is_export(copy) and (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_a_model_that_counts_sentences_is_refused() -> None:
    model = ReLUFormer(ModelConfig(vocab_size=40, width=16, heads=2, slots=8, separator=3))
    with pytest.raises(ArgumentError, match=r"counts sentences \(separator=3\).*use --to hf"):
        graphs.check_exportable(Path("run"), model)


def test_wrong_graphs_are_never_written(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "trace", lambda graph, path, opset: path.write_bytes(b""))
    monkeypatch.setattr(graphs, "largest_difference", lambda model, encoder, decoder: (0.5, 3.0))
    with pytest.raises(
        ArgumentError, match=r"rules entmax15, softmax, .* differ from PyTorch by 5\.0e-01.*use --to hf$"
    ):
        exported.export_run(run("simplex"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_refused_export_leaves_the_one_that_it_was_to_replace(
    run: Any, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    monkeypatch.setattr(graphs, "trace", lambda graph, path, opset: path.write_bytes(b""))
    monkeypatch.setattr(graphs, "largest_difference", lambda model, encoder, decoder: (0.5, 3.0))
    with pytest.raises(ArgumentError, match="differ from PyTorch"):
        exported.export_run(run("simplex"), copy, force=True)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_a_rule_that_onnx_cannot_express_is_named(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Branching(rules.ReluPlain):
        name = "branching"

        def activate(self, scores: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            return scores.relu() if float(scores.max()) > 1 else scores

    config = ModelConfig(vocab_size=tokenizer.vocab_size, width=16, heads=2, encoder_layers=1, decoder_layers=1)
    model = ReLUFormer(config.replace(encoder_attention=Branching())).eval()
    monkeypatch.setattr(graphs, "load_run", lambda run: Translator(model, tokenizer))
    with pytest.raises(ArgumentError, match=r"rules branching, relu, relu_plain cannot be expressed in ONNX"):
        exported.export_run(tmp_path / "run", tmp_path / "out")


def test_a_decoder_without_layers_is_refused(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ReLUFormer(ModelConfig(vocab_size=tokenizer.vocab_size, width=16, heads=2, decoder_layers=0)).eval()
    monkeypatch.setattr(graphs, "load_run", lambda run: Translator(model, tokenizer))
    with pytest.raises(ArgumentError, match="its decoder has no layers"):
        exported.export_run(tmp_path / "run", tmp_path / "out")


@pytest.mark.parametrize("name", ["load", "export_run"])
def test_a_missing_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(hub.MissingExtraError, match=r"needs onnxruntime; .*pip install 'reluformer\[onnx\]'"):
        getattr(exported, name)
