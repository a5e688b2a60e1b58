"""Two tiny random models that translate nonsense, quickly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from reluformer.integrations.server.engine import Engine
from reluformer.integrations.server.limits import ServerLimits
from reluformer.integrations.server.model_registry import ModelRegistry, ServedModel
from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.recipe import DecodingConfig, TokenizerConfig
from reluformer.translation.tokenizer import Tokenizer
from reluformer.translation.translator import Translator

if TYPE_CHECKING:
    from starlette.testclient import TestClient

WORDS = ["the", "cat", "saw", "a", "dog", "and", "it", "ran", "home", "because", "night", "was", "near"]
DECODING = dict(beam=2, length_ratio=0.5, length_offset=4, window_tokens=24, context_sentences=1)


@pytest.fixture(autouse=True, scope="session")
def extra() -> None:
    """All that a server needs, and the client of its tests."""
    for part in ("fastapi", "uvicorn", "prometheus_client", "python_multipart", "httpx2"):
        pytest.importorskip(part, reason=f"{part} is not installed: pip install 'reluformer[serve]' httpx2")


def make_model(tokenizer: Tokenizer, rule: str) -> ReLUFormer:
    """With opinions strong enough that no two tokens tie."""
    torch.manual_seed(0)
    sizes = dict(width=16, heads=2, encoder_layers=1, decoder_layers=2, slots=24, dropout=0.0)
    rules = {f"{part}_attention": rule for part in ("encoder", "decoder", "cross")}
    model = ReLUFormer(ModelConfig(vocab_size=tokenizer.vocab_size, **sizes, **rules)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([" ".join(WORDS), "A dog. The cat."] * 4, TokenizerConfig(vocab_size=300))


@pytest.fixture(scope="session")
def models(tokenizer: Tokenizer) -> ModelRegistry:
    config = DecodingConfig(**DECODING)
    pair = [
        ServedModel(name, Translator(make_model(tokenizer, rule), tokenizer, config))
        for name, rule in (("sparse", "relu"), ("dense", "softmax"))
    ]
    return ModelRegistry(pair)


@pytest.fixture(scope="session")
def runs(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same models as directories."""
    found = []
    for name, rule in (("sparse", "relu"), ("dense", "softmax")):
        directory = tmp_path_factory.mktemp("runs") / name
        make_model(tokenizer, rule).save(directory)
        tokenizer.save(directory)
        found.append(directory)
    return found


@pytest.fixture
def serve(models: ModelRegistry) -> Iterator[Callable[..., TestClient]]:
    """A client of a server in this process, with other limits where some are given."""
    from starlette.testclient import TestClient

    from reluformer.integrations.server.application import create_app

    opened: list[TestClient] = []

    def start(key: str | None = None, **limits: Any) -> TestClient:
        client = TestClient(create_app(models, ServerLimits(**limits), key))
        opened.append(client)
        return client.__enter__()

    yield start
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that take work on and never do it."""
    monkeypatch.setattr(Engine, "start", lambda engine: None)


@pytest.fixture(scope="module")
def client(models: ModelRegistry) -> Iterator[TestClient]:
    from starlette.testclient import TestClient

    from reluformer.integrations.server.application import create_app

    with TestClient(create_app(models)) as client:
        yield client
