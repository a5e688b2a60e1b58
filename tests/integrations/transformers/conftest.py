"""Tiny models of each family, drawn at random."""

from __future__ import annotations

import copy
import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

VOCABULARY = 37


@dataclass(frozen=True)
class Family:
    """How to make a model and what to call."""

    name: str
    classes: tuple[str, str]
    options: dict[str, Any]
    causal: bool = True
    encodes: bool = False
    positions: bool = False
    """It takes position_ids, so a row can be padded on the left."""

    def make(self, implementation: str, **changes: Any) -> Any:
        """The same weights each time."""
        model = copy.deepcopy(_drawn(self.name, tuple(changes.items())))
        model.set_attn_implementation(implementation)
        return model

    def logits(self, model: Any, tokens: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
        """(B, T, V); for an encoder-decoder, tokens and mask are the source and the target is fixed."""
        if self.encodes:
            options["decoder_input_ids"] = torch.arange(3, 10).expand(tokens.size(0), -1)
        elif self.positions and mask is not None:
            options.setdefault("position_ids", (mask.cumsum(-1) - 1).clamp_min(0))
        logits: Tensor = model(tokens, attention_mask=mask, **options).logits
        return logits


@functools.cache
def _drawn(name: str, changes: tuple[tuple[str, Any], ...]) -> Any:
    import transformers

    config_class, model_class = (getattr(transformers, name) for name in FAMILIES[name].classes)
    torch.manual_seed(7)
    config = config_class(**{**FAMILIES[name].options, **dict(changes)})
    model = model_class._from_config(config, attn_implementation="eager")
    for parameter in model.parameters():  # the initial weights are too small for scores that matter
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    return model.eval()


_SIZE = dict(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4)
_PLAIN = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
_MARIAN = dict(
    vocab_size=VOCABULARY, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, dropout=0.0, pad_token_id=0, eos_token_id=1,
    decoder_start_token_id=2, forced_eos_token_id=None, max_position_embeddings=64,
)  # fmt: skip
_T5 = dict(vocab_size=VOCABULARY, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, dropout_rate=0.0)
_MISTRAL = {**_SIZE, "num_key_value_heads": 1, "sliding_window": 4, "head_dim": 4}
_GPT2 = dict(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
FAMILIES = {
    family.name: family
    for family in (
        Family("bert", ("BertConfig", "BertForMaskedLM"), {**_SIZE, **_PLAIN}, causal=False, positions=True),
        Family("llama", ("LlamaConfig", "LlamaForCausalLM"), {**_SIZE, "num_key_value_heads": 2}, positions=True),
        Family("mistral", ("MistralConfig", "MistralForCausalLM"), _MISTRAL, positions=True),
        Family("gpt2", ("GPT2Config", "GPT2LMHeadModel"), _GPT2, positions=True),
        Family("marian", ("MarianConfig", "MarianMTModel"), _MARIAN, encodes=True),
        Family("t5", ("T5Config", "T5ForConditionalGeneration"), _T5, encodes=True),
    )
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(params=[name for name, family in FAMILIES.items() if family.causal])
def decoder(request: pytest.FixtureRequest) -> Family:
    """A family with a decoder."""
    return FAMILIES[request.param]


# Marian's source positions count from the left, padding included, so padding there does change them
@pytest.fixture(
    params=[(name, side) for name in FAMILIES for side in ("left", "right") if (name, side) != ("marian", "left")],
    ids="-".join,
)
def padded_side(request: pytest.FixtureRequest) -> tuple[Family, str]:
    """A family and the side on which it can be padded."""
    name, side = request.param
    return FAMILIES[name], side


@pytest.fixture(scope="session")
def families() -> dict[str, Family]:
    return FAMILIES


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """Rules and model known to transformers, which keeps its logs to itself."""
    if importlib.util.find_spec("transformers") is None:
        yield
        return
    from transformers.utils import logging

    from reluformer import hub

    hub.register()
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    logging.set_verbosity(level)
    logging.enable_progress_bar()


@pytest.fixture
def kernel_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernel serves reads of any size that it can; the activation of each."""
    from reluformer.kernels import cpu

    served: list[str] = []
    read: Callable[..., Any] = cpu.read

    def counted(q: Tensor, k: Tensor, v: Tensor, formula: Any, *rest: Any) -> Any:
        served.append(formula.activation)
        return read(q, k, v, formula, *rest)

    for size in ("SCORES", "FEW_SCORES"):
        monkeypatch.setattr(cpu, size, 0)
    monkeypatch.setattr(cpu, "read", counted)
    return served


def tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(name="tokens")
def _tokens() -> Callable[..., Tensor]:
    return tokens
