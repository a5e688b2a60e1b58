"""LanguageModel: decoding, packing, presets, storage, and bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import reluformer as rf
from reluformer.errors import ArgumentError, ConfigError, StorageError

ON_WEIGHTS = {"positions": "forget", "forget_on": "weights"}
ARCHITECTURES = ("transformer", "fox", "reluformer", "transformer_pro", "fox_pro", "reluformer_pro")


def small(architecture: str = "reluformer_pro", **changes: object) -> rf.LanguageModel:
    torch.manual_seed(1)
    changes = {"vocab_size": 40, "width": 32, "slots": 48, "key_heads": 2, **changes}
    return rf.LanguageModel(rf.LanguageConfig.preset("tiny", architecture, **changes)).double().eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(40, shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("changes", [{}, {"window": 5}, {"positions": "none"}, ON_WEIGHTS], ids=str)
def test_decoding_equals_the_full_pass(architecture: str, changes: dict[str, object]) -> None:
    model, text = small(architecture, **changes), tokens(2, 13)
    whole, _ = model.states(text)
    state, found = model.start(), []
    for begin, end in ((0, 6), (6, 7), (7, 8), (8, 13)):
        found.append(model.step(text[:, begin:end], state))
    torch.testing.assert_close(torch.cat(found, dim=1), whole)
    assert state.length == 13


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("changes", [{}, ON_WEIGHTS], ids=str)
def test_packed_sequences_are_read_alone(architecture: str, changes: dict[str, object]) -> None:
    model, text = small(architecture, **changes), tokens(1, 13)
    packed = model(text, offsets=torch.tensor([0, 4, 13])).logits
    for begin, end in ((0, 4), (4, 13)):
        torch.testing.assert_close(packed[:, begin:end], model(text[:, begin:end]).logits)


@pytest.mark.parametrize("architecture", ["transformer", "reluformer_pro"])
def test_no_token_sees_the_future(architecture: str) -> None:
    model, text = small(architecture), tokens(1, 9)
    torch.testing.assert_close(model(text[:, :5]).logits, model(text).logits[:, :5])


def test_statistics_have_a_name_for_each_layer() -> None:
    reads = small()(tokens(2, 9), stats=True).reads
    assert list(reads) == ["decoder.0.attention", "decoder.1.attention"]
    assert reads["decoder.0.attention"].zero_fraction.shape == (2, 4, 9)


def test_presets_are_the_models_of_the_literature() -> None:
    fox = rf.LanguageConfig.preset("small", "fox", vocab_size=100)
    assert (fox.attention.name, fox.positions, fox.forget, fox.qk_norm) == ("softmax", "forget", "zero", False)
    pro = rf.LanguageConfig.preset("small", "transformer_pro", vocab_size=100)
    assert (pro.positions, pro.qk_norm, pro.output_gate, pro.shift) == ("rotary", True, True, True)


def test_a_saved_model_is_the_same(tmp_path: Path) -> None:
    model = small().float()
    model.save(tmp_path)
    loaded = rf.LanguageModel.load(tmp_path)
    assert loaded.config == model.config
    assert torch.equal(loaded.eval()(tokens(1, 6)).logits, model(tokens(1, 6)).logits)


def test_models_of_another_kind_are_refused(tmp_path: Path) -> None:
    small().float().save(tmp_path / "language")
    with pytest.raises(StorageError, match="holds a model of the kind language_model, not encoder_decoder"):
        rf.ReLUFormer.load(tmp_path / "language")
    rf.ReLUFormer(rf.ModelConfig(vocab_size=40, width=32, slots=16)).save(tmp_path / "translation")
    with pytest.raises(StorageError, match="holds a model of the kind encoder_decoder, not language_model"):
        rf.LanguageModel.load(tmp_path / "translation")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 1}, "layers is 1 there and 2 here"),
        ({"positions": "none"}, "positions is 'none' there and 'forget' here"),
        ({"forget_on": "weights"}, "forget_on is 'weights' there and 'scores' here"),
        ({"shift": False}, "shift is False there and True here"),
        ({"attention": "relu"}, r"attention is Relu\(.*\) there and ReluChance\(.*\) here"),
    ],
    ids=str,
)
def test_a_state_of_another_model_is_refused(changes: dict[str, object], message: str) -> None:
    model, other = small(), small(**changes)
    state = other.start()
    other.step(tokens(1, 3), state)
    with pytest.raises(ArgumentError, match=f"state was begun by another model: {message}; begin a new one with start"):
        model.step(tokens(1, 3), state)
    assert state.length == 3


def test_a_state_of_another_batch_is_refused() -> None:
    model = small()
    state = model.start()
    model.step(tokens(2, 3), state)
    with pytest.raises(ArgumentError, match="another model or batch: batch 2 there and 1 here"):
        model.step(tokens(1, 3), state)


def test_a_model_of_the_same_configuration_continues_a_state() -> None:
    model, twin = small(), small()
    state = model.start()
    found = [model.step(tokens(1, 6)[:, :4], state), twin.step(tokens(1, 6)[:, 4:], state)]
    torch.testing.assert_close(torch.cat(found, dim=1), model.states(tokens(1, 6))[0])


@pytest.mark.parametrize("architecture", ["transformer", "reluformer_pro"])
def test_no_tokens_have_no_logits(architecture: str) -> None:
    model = small(architecture)
    assert model(tokens(2, 0)).logits.shape == (2, 0, 40)
    state = model.start()
    assert model.step(tokens(2, 0), state).shape == (2, 0, 32) and state.length == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "heads=5 does not divide width=256"),
        ({"key_heads": 3}, "key_heads=3 does not divide heads=4"),
        ({"width": 36, "heads": 4}, "rotary positions need an even head width"),
        ({"window": 0}, "window"),
        ({"forget_on": "weights"}, "forget_on=weights needs a forget gate"),
        ({"learn_offset": True, "attention": "softmax"}, "learn_offset"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rf.LanguageConfig(vocab_size=10, **changes)


def test_token_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(ArgumentError, match="tokens holds token id 40"):
        small()(torch.tensor([[40]]))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_padded_row_is_read_as_without_padding(architecture: str) -> None:
    model, text = small(architecture), tokens(3, 11)
    lengths = (11, 7, 1)
    mask = torch.arange(11) >= 11 - torch.tensor(lengths)[:, None]
    whole, _ = model.states(text, mask=mask)
    state, found = model.start(), []
    for begin, end in ((0, 8), (8, 9), (9, 11)):
        found.append(model.step(text[:, begin:end], state, mask[:, begin:end]))
    stepped = torch.cat(found, dim=1)
    for row, length in enumerate(lengths):
        alone, _ = model.states(text[row : row + 1, 11 - length :])
        torch.testing.assert_close(whole[row, 11 - length :], alone[0])
        torch.testing.assert_close(stepped[row, 11 - length :], alone[0])
    state.reorder(torch.tensor([2, 1]))
    after = model.step(text[1:, :1], state)
    for row, (source, length) in enumerate(((2, 1), (1, 7))):
        alone, _ = model.states(torch.cat([text[source, 11 - length :], text[1 + row, :1]])[None])
        torch.testing.assert_close(after[row, 0], alone[0, -1])


def test_a_mask_that_does_not_fit_is_refused() -> None:
    model, text = small(), tokens(2, 5)
    for mask in (torch.ones(2, 4, dtype=torch.bool), torch.ones(2, 5)):
        with pytest.raises(ArgumentError, match=r"mask is .* must be boolean \(batch, length\) = \(2, 5\)"):
            model(text, mask=mask)
        with pytest.raises(ArgumentError, match="mask is"):
            model.step(text, model.start(), mask)
