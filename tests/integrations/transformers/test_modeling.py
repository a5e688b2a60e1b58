"""ReLUFormer as a model of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

pytest.importorskip("transformers", reason="needs the extra [hf]")

from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    DynamicCache,
    EncoderDecoderCache,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    StaticCache,
)

from reluformer.errors import ArgumentError, ConfigError, StorageError
from reluformer.integrations.transformers.modeling import (
    ReLUFormerConfig,
    ReLUFormerForConditionalGeneration,
)
from reluformer.integrations.transformers.tokenization import ReLUFormerTokenizer
from reluformer.models.config import ModelConfig
from reluformer.translation.recipe import TokenizerConfig
from reluformer.translation.tokenizer import Tokenizer

SIZE: dict[str, Any] = dict(
    vocab_size=41, width=16, heads=2, encoder_layers=2, decoder_layers=2, slots=24, dropout=0.0
)  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "relu": {},
    "rotary": {"positions": "rotary", "tied_embeddings": False},
    "norms": {"encoder_attention": "rela", "decoder_attention": "softmax_ln", "cross_attention": "relu_norm"},
    "gamma": {"decoder_attention": {"name": "relu", "gamma": 2.0, "learn_gamma": True}, "norm": "post"},
}


def make(**changes: Any) -> Any:
    torch.manual_seed(5)
    config = ReLUFormerConfig.from_model_config(ModelConfig(**{**SIZE, **changes}))
    return ReLUFormerForConditionalGeneration(config).eval()


@pytest.fixture(params=VARIANTS)
def model(request: pytest.FixtureRequest) -> Any:
    return make(**VARIANTS[request.param])


def sources(rows: int = 3, length: int = 8) -> tuple[Tensor, Tensor]:
    """Right-padded rows and their mask."""
    tokens = torch.randint(5, 41, (rows, length), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(length) < torch.tensor([length, length - 2, length - 3])[:rows, None]
    return tokens.masked_fill(~mask, 0), mask.long()


def targets(rows: int = 3, length: int = 6) -> Tensor:
    return torch.randint(5, 41, (rows, length), generator=torch.Generator().manual_seed(2))


def test_logits_are_those_of_the_network(model: Any) -> None:
    tokens, mask = sources()
    expected = model.model(tokens, targets(), mask.bool()).logits
    for given in (mask, mask.bool(), None):  # padding tokens are known without a mask
        out = model(input_ids=tokens, attention_mask=given, decoder_input_ids=targets(), use_cache=False)
        assert torch.equal(out.logits, expected)
        assert out.past_key_values is None
    assert torch.equal(model(tokens, mask, targets(), use_cache=False, return_dict=False)[0], expected)


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_cached_pass_is_the_full_pass(model: Any, chunk: int) -> None:
    tokens, mask = sources()
    full = model(tokens, mask, targets(), use_cache=False)
    cache, steps = None, []
    for start in range(0, 6, chunk):
        part = targets()[:, start : start + chunk]
        out = model(
            attention_mask=mask, encoder_outputs=(full.encoder_last_hidden_state,), decoder_input_ids=part,
            past_key_values=cache, use_cache=True,
        )  # fmt: skip
        cache = out.past_key_values
        steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, 1), full.logits, rtol=1e-5, atol=1e-5)


def test_saved_and_loaded_it_is_the_same(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert isinstance(loaded, ReLUFormerForConditionalGeneration)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), ReLUFormerConfig)
    assert loaded.config.to_model_config() == model.model.config
    found, expected = loaded.state_dict(), model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    tied = model.config.to_model_config().tied_embeddings
    assert (loaded.model.output_embedding.weight is loaded.model.source_embedding.weight) == tied
    assert ("model.output_embedding.weight" in load_file(tmp_path / "model.safetensors")) != tied
    tokens, mask = sources()
    assert torch.equal(loaded(tokens, mask, targets()).logits, model(tokens, mask, targets()).logits)


def test_a_new_model_starts_as_a_network_does() -> None:
    from reluformer import ReLUFormer

    found = make()
    torch.manual_seed(5)
    expected = ReLUFormer(ModelConfig(**SIZE)).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.model.state_dict().items())


def test_the_loss_counts_labels_only() -> None:
    model = make()
    tokens, mask = sources()
    labels = targets().clone()
    labels[0, 4:] = -100
    labels[1, 5:] = 0  # the padding token does not count either
    out = model(tokens, mask, labels=labels)
    begun = torch.cat([torch.full((3, 1), 1), labels[:, :-1].clamp_min(0)], 1)
    logits = model.model(tokens, begun, mask.bool()).logits.log_softmax(-1)
    counted = [(row, place) for row in range(3) for place in range(6) if labels[row, place] > 0]
    expected = -torch.stack([logits[row, place, labels[row, place]] for row, place in counted])
    assert len(counted) == 15
    torch.testing.assert_close(out.loss, expected.mean())
    torch.testing.assert_close(model(tokens, mask, labels=labels, num_items_in_batch=60).loss, expected.sum() / 60)
    assert out.past_key_values is None


def test_gradient_checkpointing_changes_no_gradient() -> None:
    tokens, mask = sources()
    gradients = []
    for on in (False, True):
        model = make().train()
        if on:
            model.gradient_checkpointing_enable()
        assert model.is_gradient_checkpointing is on
        model(tokens, mask, labels=targets()).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for found, expected in zip(*gradients, strict=True):
        assert torch.equal(found, expected)
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")  # of torch, where there is no accelerator
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_trainer_trains_it(tmp_path: Path, smoothing: float) -> None:
    sentences = ["one two three", "three two", "two two one three", "one one"]
    tokenizer = ReLUFormerTokenizer.of(Tokenizer.train(sentences, TokenizerConfig(vocab_size=300)))
    model = make(vocab_size=len(tokenizer))
    data = [dict(tokenizer(text, text_target=text[::-1])) for text in sentences * 4]
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path), per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=8, learning_rate=2e-2,
        logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, label_smoothing_factor=smoothing,
        gradient_checkpointing=True, disable_tqdm=True, predict_with_generate=True, seed=1,
    )  # fmt: skip
    collator = DataCollatorForSeq2Seq(tokenizer, model)
    trainer = Seq2SeqTrainer(model, arguments, train_dataset=data, data_collator=collator)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 8
    assert max(losses[-2:]) < 0.7 * losses[0]
    predicted = trainer.predict(data[:2], max_new_tokens=4).predictions
    assert predicted.shape[0] == 2


def test_padding_on_the_left_is_refused() -> None:
    model = make()
    tokens, mask = sources()
    with pytest.raises(ArgumentError, match=r"attention_mask of shape .* pad on the right"):
        model(tokens.flip(1), mask.flip(1), targets())
    with pytest.raises(ArgumentError, match="decoder_attention_mask"):
        model(tokens, mask, targets(), torch.tensor([[0, 1, 1, 1, 1, 1]] * 3))


def test_a_model_that_counts_sentences_generates_without_the_cache() -> None:
    tokens, mask = sources()
    counting = make(separator=5)
    assert counting.config.use_cache is False
    whole = counting(tokens, mask, decoder_input_ids=targets()).logits
    expected = counting.model(tokens, targets(), mask.bool()).logits
    torch.testing.assert_close(whole, expected)
    assert counting.generate(tokens, attention_mask=mask, max_new_tokens=4).size(0) == tokens.size(0)
    with pytest.raises(ArgumentError, match="use_cache=False"):
        counting(tokens, mask, decoder_input_ids=targets(), use_cache=True)


def test_wrong_use() -> None:
    model = make()
    tokens, mask = sources()
    with pytest.raises(ArgumentError, match="neither decoder_input_ids nor labels"):
        model(tokens, mask)
    with pytest.raises(ArgumentError, match="neither input_ids nor encoder_outputs"):
        model(decoder_input_ids=targets())
    with pytest.raises(ArgumentError, match="does not record attentions"):
        model(tokens, mask, targets(), output_attentions=True)
    with pytest.raises(ArgumentError, match="pass an EncoderDecoderCache"):
        model(tokens, mask, targets(), past_key_values=DynamicCache())
    with pytest.raises(ArgumentError, match=r"with generate\(\) the dynamic cache"):
        model.generate(tokens, attention_mask=mask, max_new_tokens=3, cache_implementation="static")
    static = EncoderDecoderCache(StaticCache(model.config, max_cache_len=9), DynamicCache())
    with pytest.raises(ArgumentError, match="9 slots after 6 tokens; use the dynamic cache"):
        model(tokens, mask, targets(), past_key_values=static)
    with pytest.raises(ArgumentError, match="the vocabulary of a ReLUFormer"):
        model.resize_token_embeddings(50)
    with pytest.raises(ArgumentError, match="computes attention by itself"):
        model.set_attn_implementation("reluformer:relu")
    with pytest.raises(ConfigError, match="has no network"):
        ReLUFormerForConditionalGeneration(ReLUFormerConfig())
    with pytest.raises(ConfigError, match="did you mean 'heads'"):
        ReLUFormerConfig(network={"vocab_size": 9, "head": 2})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    make().save_pretrained(tmp_path)
    return tmp_path


def load(directory: Path) -> Any:
    return ReLUFormerForConditionalGeneration.from_pretrained(directory)


def test_a_damaged_file_is_named(saved: Path) -> None:
    weights = saved / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StorageError, match="the weights are damaged"):
        load(saved)
    weights.unlink()
    with pytest.raises(StorageError, match=r"model\.safetensors is missing"):
        load(saved)
    (saved / "config.json").unlink()
    with pytest.raises(StorageError, match=r"holds no config\.json"):
        load(saved)


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_weights_that_do_not_fit_are_named(saved: Path, change: str) -> None:
    weights = load_file(saved / "model.safetensors")
    name = "model.decoder.1.ffn.layer.keys.bias"
    if change == "missing":
        del weights[name]
    elif change == "unexpected":
        weights["model.decoder.9.bias"] = torch.zeros(2)
    else:
        weights[name] = torch.zeros(3)
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StorageError, match=r"do not fit|belong to another") as error:
        load(saved)
    assert change == "shape" or ("keys.bias" if change == "missing" else "decoder.9") in str(error.value)


def test_an_edited_configuration_is_refused(saved: Path) -> None:
    path = saved / "config.json"
    content = json.loads(path.read_text())
    content["network"]["decoder_layers"] = 3
    path.write_text(json.dumps(content))
    with pytest.raises(StorageError, match=r"missing keys model\.decoder\.2"):
        load(saved)
