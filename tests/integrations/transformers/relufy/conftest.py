"""Tiny models with opinions of their own, and tokenizers that belong to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.recipe import TokenizerConfig
from reluformer.translation.tokenizer import Tokenizer

WORDS = [
    "the",
    "cat",
    "saw",
    "a",
    "dog",
    "and",
    "it",
    "ran",
    "home",
    "because",
    "night",
    "was",
    "near",
    "old",
    "tree",
    "by",
    "river",
]


def _sentences(count: int, seed: int) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 12, (count,), generator=generator).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (length,), generator=generator)) for length in lengths]


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return _sentences(60, seed=0)


@pytest.fixture(scope="session")
def pairs() -> list[tuple[str, str]]:
    return list(zip(_sentences(60, seed=0), _sentences(60, seed=1), strict=True))


@pytest.fixture(scope="session")
def word_tokenizer() -> Any:
    """A tokenizer of transformers with one entry a word."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[END]", *WORDS])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A [END]", special_tokens=[("[END]", 2)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", eos_token="[END]"
    )


def opinionated(model: torch.nn.Module) -> Any:
    """With scores that differ enough for softmax to choose."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.ndim == 2:
                strength = 3.0 if any(part in name for part in ("query", "q_proj", "value")) else 1.0
                parameter.normal_(0, strength / parameter.size(1) ** 0.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3)
    return model.eval()


@pytest.fixture
def bert() -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=32,
    )
    return opinionated(transformers.BertModel(config, add_pooling_layer=False))


@pytest.fixture
def marian() -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=40,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=32,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
        forced_eos_token_id=2,
    )
    return opinionated(transformers.MarianMTModel(config))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([" ".join(WORDS), "A dog. The cat."] * 4, TokenizerConfig(vocab_size=300))


@pytest.fixture
def make_translator(tokenizer: Tokenizer) -> Callable[..., ReLUFormer]:
    def make(**changes: Any) -> ReLUFormer:
        torch.manual_seed(0)
        rules = dict.fromkeys(("encoder_attention", "decoder_attention", "cross_attention"), "softmax")
        sizes = dict(width=32, heads=4, encoder_layers=1, decoder_layers=1, slots=48, dropout=0.1)
        config = ModelConfig(**{"vocab_size": tokenizer.vocab_size, **sizes, **rules, **changes})
        return opinionated(ReLUFormer(config))

    return make
