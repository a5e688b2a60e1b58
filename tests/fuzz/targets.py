"""What the fuzzers do with an input, and what must hold: it works, or a `ReluformerError` says what is wrong.

Each function takes the folder of an input and the folder of the whole files that it was made from. Any other
exception, and any `AssertionError`, is a finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import reluformer as rf
from reluformer.config import load_yaml
from reluformer.errors import ReluformerError
from reluformer.kernels import cpu
from reluformer.language import load as load_language
from reluformer.language.corpus import LanguageCorpus
from reluformer.language.corpus import documents as language_documents
from reluformer.language.recipe import TextSource
from reluformer.training.progress import SilentProgress
from reluformer.training.run import RunDirectory
from reluformer.translation import formats
from reluformer.translation.corpus import PreparedCorpus, read_documents
from reluformer.translation.recipe import CorpusSource, Recipe
from reluformer.translation.task import train

LOSSLESS = ("plain", "aligned", "markdown", "html")
MOST_CHARACTERS = 10_000
"""The most characters of a message."""
MOST_SHOWN = 300
"""So many characters of a wrong answer are shown."""
TEXTS = ["The cat saw a dog. It ran home.", "1,234"]


def tiny_recipe(**training: Any) -> Recipe:
    """Returns the recipe of a tiny model; keywords change its training."""
    embedded: dict[str, Any] = {"embedded": {"documents": 12, "sentences": (2, 3)}}
    sizes = {"tokenizer": {"vocab_size": 300}, "segments": {"segment_tokens": 64}}
    every = dict(log_every=1, validate_every=2, checkpoint_every=2, telemetry_every=2)
    return Recipe(
        data={"train": embedded, "valid": embedded, **sizes},
        model=dict(width=16, heads=2, encoder_layers=1, decoder_layers=1, slots=16),
        training={"updates": 4, "tokens_per_batch": 128, "device": "cpu", **every, **training},
        decoding={"beam": 2, "length_ratio": 0.5, "length_offset": 4},
    )


def make_base(directory: Path) -> None:
    """Trains a tiny model of each task for a few updates; the runs are what models and runs are made from."""
    train(tiny_recipe(), directory, progress=SilentProgress())
    text = {"embedded": {"documents": 12, "sentences": (2, 3)}}
    data = {"train": text, "valid": text, "tokenizer": {"vocab_size": 300}, "context": 16}
    model = dict(size="tiny", architecture="reluformer_pro", width=16, heads=2, layers=1, slots=16)
    training = {"updates": 2, "tokens_per_batch": 64, "device": "cpu"}
    recipe = {"task": "language", "data": data, "model": model, "training": training}
    rf.train(recipe, language_base(directory), progress=SilentProgress())


def language_base(base: Path) -> Path:
    """Returns where the run of the language model is."""
    return base.with_name(f"{base.name}-language")


def documents(directory: Path, base: Path) -> None:
    """Parses a document and fills it; the formats that promise it give back the same text."""
    for path in sorted(directory.iterdir()):
        for name in (path.name.removesuffix(".gz"), "a.txt"):
            codec = formats.detect(name)
            text = formats.read_text(path)
            sentences, skeleton = codec.parse(text)
            skeleton.fill([sentence[::-1] for sentence in sentences]).encode("utf-8")
            if codec.name in LOSSLESS:
                assert skeleton.fill(sentences) == text, f"{codec.name} changed a text"


def corpora(directory: Path, base: Path) -> None:
    """Reads all documents of a corpus; each has as many sentences on both sides, of whole characters."""
    names = {path.name for path in directory.iterdir()}
    pair = {"src": directory / "a.src", "tgt": directory / "a.tgt"}
    given = pair if "a.src" in names else {"path": directory / next(iter(names))}
    for ends in ("blank_line", "line"):
        for document in read_documents(CorpusSource(**given, documents=ends)):
            assert document.tgt is not None and len(document.src) == len(document.tgt) > 0
            "".join((document.id, *document.src, *document.tgt)).encode("utf-8")


def texts(directory: Path, base: Path) -> None:
    """Reads all documents of a text; they are of whole characters."""
    (path,) = directory.iterdir()
    for ends in ("blank_line", "line", "file"):
        for document in language_documents([TextSource(path=path, documents=ends)], "train"):
            assert document.strip()
            document.encode("utf-8")


def recipes(directory: Path, base: Path) -> None:
    """Reads a recipe with its overrides; errors are short."""
    try:
        overrides = json.loads((directory / "overrides.json").read_bytes())
        recipe = load_yaml(Recipe, directory / "recipe.yaml", overrides)
        recipe.model_config_for(300)
        recipe.data.resolved()
    except ReluformerError as error:
        if len(str(error)) > MOST_CHARACTERS:
            raise AssertionError(f"a message has {len(str(error))} characters") from error
        raise


def models(directory: Path, base: Path) -> None:
    """Loads a model, as it is and with weights of 8 bits, and translates with it."""
    for int8 in (False,) if cpu.unavailable() is not None else (False, True):
        for text in rf.load(directory, int8=int8).translate(TEXTS):
            text.encode("utf-8")


def language(directory: Path, base: Path) -> None:
    """Loads a language model and its corpus, and continues a text; damage of the corpus is refused."""
    refused: ReluformerError | None = None
    try:
        corpus, whole = LanguageCorpus(directory / "data"), LanguageCorpus(language_base(base) / "data")
        for split in ("train", "valid"):
            if corpus.has(split):
                assert np.array_equal(corpus.stream(split), whole.stream(split)), "the corpus changed"
    except ReluformerError as error:
        refused = error
    load_language(directory).generate("The cat", tokens=4, temperature=0).encode("utf-8")
    if refused is not None:
        raise refused


def runs(directory: Path, base: Path) -> None:
    """Reads everything that training would resume from; damage is refused or reported, or changes nothing."""
    run = RunDirectory(directory)
    checkpoint, problems = run.checkpoints.newest()
    if checkpoint is not None and not problems:
        good = _whole_checkpoint(base, checkpoint.step)
        assert checkpoint.state == good.state, "the state of a checkpoint changed"
        for name, tensors in good.tensors.items():
            assert all(tensor.equal(checkpoint.tensors[name][key]) for key, tensor in tensors.items()), (
                "weights changed"
            )
    assert all(event in _whole_history(base) for event in run.log.events()), "the history changed"
    assert isinstance(run.status, dict) and isinstance(run.environments, list)
    if (directory / "recipe.yaml").is_fifo() or _differs("recipe.yaml", directory, base):  # YAML takes most of the time
        assert isinstance(run.recipe_values(), dict)
    assert run.best_step is None or isinstance(run.best_step, int)
    corpus = PreparedCorpus(directory / "data")
    for split in ("train", "valid"):
        corpus.checksum(split)
        list(corpus.store(split))


@cache
def _whole_checkpoint(base: Path, step: int) -> Any:
    return RunDirectory(base).checkpoints.read(step)


@cache
def _whole_history(base: Path) -> Any:
    return RunDirectory(base).log.events()


def _differs(name: str, directory: Path, base: Path) -> bool:
    return (directory / name).read_bytes() != (base / name).read_bytes()


def bodies(directory: Path, base: Path) -> None:
    """Sends a request to a server in this process; its errors are JSON objects, and none is a fault of its own."""
    request = json.loads((directory / "request.json").read_bytes())
    content = (directory / "body").read_bytes()
    headers = {"Content-Type": str(request["type"]).encode("utf-8", "replace")}
    answer = _client(base).post(request["route"], content=content, headers=headers)
    assert answer.status_code < 500, f"status {answer.status_code}: {answer.text[:MOST_SHOWN]}"
    if answer.status_code >= 400:
        assert set(answer.json()) == {"error", "code", "hint"}, answer.text[:MOST_SHOWN]
        assert len(answer.content) <= MOST_CHARACTERS, f"a message has {len(answer.content)} bytes"
        raise RefusedRequest(answer.json()["error"])
    assert "event: error" not in answer.text, answer.text[-MOST_SHOWN:]


@cache
def _client(base: Path) -> Any:
    """Returns the client of a server that runs in threads of this process until its end."""
    from starlette.testclient import TestClient

    from reluformer.integrations.server.application import create_app
    from reluformer.integrations.server.limits import ServerLimits
    from reluformer.integrations.server.model_registry import ModelRegistry, ServedModel

    translator = rf.load(base, beam=1, length_ratio=0.5, length_offset=2)
    limits = ServerLimits(characters=12_000, inspected_tokens=100, body_bytes=1 << 20)
    return TestClient(create_app(ModelRegistry([ServedModel("tiny", translator)]), limits)).__enter__()


class RefusedRequest(ReluformerError):
    """The server refused a request with an error of its own."""


TARGETS: dict[str, Callable[[Path, Path], None]] = {
    "documents": documents,
    "corpora": corpora,
    "texts": texts,
    "recipes": recipes,
    "models": models,
    "language": language,
    "runs": runs,
    "bodies": bodies,
}
