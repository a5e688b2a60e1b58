from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.recipe import TokenizerConfig
from reluformer.translation.tokenizer import Tokenizer

WORDS = ["the", "cat", "saw", "a", "dog", "and", "it", "ran", "home", "because", "night", "was", "near"]


def small_model(vocab_size: int = 9, seed: int = 0, **changes: Any) -> ReLUFormer:
    """A small random model in double precision, with opinions strong enough that no two tokens tie."""
    torch.manual_seed(seed)
    sizes = dict(width=16, heads=2, encoder_layers=1, decoder_layers=2, slots=24, dropout=0.3)
    model = ReLUFormer(ModelConfig(vocab_size=vocab_size, **{**sizes, **changes})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture
def make_model() -> Callable[..., ReLUFormer]:
    """Small random models."""
    return small_model


@pytest.fixture(scope="session")
def small_models() -> Callable[..., ReLUFormer]:
    """Small random models for fixtures that many tests share."""
    return small_model


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([" ".join(WORDS), "A dog. The cat."] * 4, TokenizerConfig(vocab_size=300))
