"""The encoder-decoder, always built through the public factory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import reluformer as rf
from reluformer.errors import ArgumentError, ConfigError, UnknownNameError
from reluformer.models.encoder_decoder import ReLUFormer

RULES = rf.rules.names()
PLACES = ("ffn", "encoder_attention", "decoder_attention", "cross_attention")
TOLERANCE = dict(rtol=1e-4, atol=1e-4)  # float32 through six sublayers whose activations are of order ten


def build(seed: int = 0, **changes: object) -> ReLUFormer:
    torch.manual_seed(seed)
    small = dict(vocab_size=40, width=16, heads=2, encoder_layers=2, decoder_layers=2, slots=24, dropout=0.0)
    return ReLUFormer(rf.ModelConfig(**{**small, **changes}))


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(4, 40, shape, generator=torch.Generator().manual_seed(seed))


SOURCE, TARGET = tokens(3, 7), tokens(3, 6, seed=1)
SOURCE_MASK = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_in_every_place(rule: str, place: str) -> None:
    """It builds, its gradient reaches every parameter, and cached decoding equals the full pass."""
    model = build(**{place: rule})
    logits = model(SOURCE, TARGET, SOURCE_MASK).logits
    logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    with torch.no_grad():
        state = model.start(model.encode(SOURCE, SOURCE_MASK))
        steps = [model.logits(model.step(TARGET[:, i : i + 1], state)) for i in range(TARGET.size(1))]
    torch.testing.assert_close(torch.cat(steps, dim=1), logits, **TOLERANCE)


VARIANTS = [
    dict(),
    dict(norm="post"),
    dict(positions="rotary"),
    dict(positions="both"),
    dict(tied_embeddings=False, norm="post", positions="rotary"),
    dict(separator=int(TARGET[0, 2])),
    dict(separator=int(TARGET[1, 0]), positions="rotary"),
    dict(encoder_attention="softmax", decoder_attention="rela", cross_attention={"name": "relu2", "learn_gamma": True}),
]
VARIANT_IDS = ["default", "post_norm", "rotary", "both", "untied", "sentences", "sentences_rotary", "mixed_rules"]


@pytest.mark.parametrize("changes", VARIANTS, ids=VARIANT_IDS)
class TestProperties:
    def test_steps_of_any_size_equal_the_full_pass(self, changes: dict[str, object]) -> None:
        model = build(**changes)
        with torch.no_grad():
            expected = model(SOURCE, TARGET, SOURCE_MASK).logits
            state = model.start(model.encode(SOURCE, SOURCE_MASK))
            steps = [model.logits(model.step(part, state)) for part in TARGET.split([1, 3, 2], dim=1)]
        torch.testing.assert_close(torch.cat(steps, dim=1), expected, **TOLERANCE)

    def test_padding_and_the_batch_change_nothing(self, changes: dict[str, object]) -> None:
        model = build(**changes)
        with torch.no_grad():
            together = model(SOURCE, TARGET, SOURCE_MASK).logits
            for i, length in enumerate(SOURCE_MASK.sum(1).tolist()):
                alone = model(SOURCE[i : i + 1, :length], TARGET[i : i + 1, :4]).logits
                torch.testing.assert_close(together[i : i + 1, :4], alone, **TOLERANCE)

    def test_beams_share_their_source(self, changes: dict[str, object]) -> None:
        model = build(**changes)
        with torch.no_grad():
            expected = model(SOURCE, TARGET, SOURCE_MASK).logits
            state = model.start(model.encode(SOURCE, SOURCE_MASK))
            model.step(TARGET[:, :2].repeat_interleave(2, 0).contiguous(), state)
            state.reorder(torch.tensor([1, 0, 3, 3, 4, 5]))
            rest = model.logits(model.step(TARGET[:, 2:].repeat_interleave(2, 0), state))
        torch.testing.assert_close(rest[::2], expected[:, 2:], **TOLERANCE)

    def test_checkpointing_changes_no_gradient(self, changes: dict[str, object]) -> None:
        gradients = []
        for checkpointed in (False, True):
            model = build(checkpoint_activations=checkpointed, **changes)
            output = model(SOURCE, TARGET, SOURCE_MASK, stats=True)
            entropy = torch.stack([stats.entropy.mean() for stats in output.reads.values()]).sum()
            (output.logits.square().mean() + entropy).backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        for plain, recomputed in zip(*gradients, strict=True):
            torch.testing.assert_close(recomputed, plain)


def test_long_input_needs_no_table() -> None:
    model = build()
    with torch.no_grad():
        logits = model(tokens(1, 3000), tokens(1, 5)).logits
    assert torch.isfinite(logits).all()


def test_bfloat16_autocast_stays_close() -> None:
    for changes in VARIANTS:
        model = build(**changes)
        expected = model(SOURCE, TARGET, SOURCE_MASK).logits
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(SOURCE, TARGET, SOURCE_MASK).logits
        logits.float().square().mean().backward()
        assert logits.dtype == torch.bfloat16
        error = (logits.float() - expected).norm() / expected.norm()
        assert error < 0.05  # bfloat16 keeps 8 bits, some of which six sublayers lose
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_statistics_have_a_name_each() -> None:
    reads = build()(SOURCE, TARGET, SOURCE_MASK, stats=True).reads
    assert list(reads) == [
        *("encoder.0.attention", "encoder.1.attention"),
        *("decoder.0.attention", "decoder.0.cross", "decoder.1.attention", "decoder.1.cross"),
    ]
    assert reads["decoder.0.cross"].n_visible[:, 0, 0].tolist() == [7, 4, 1]
    assert reads["decoder.0.attention"].n_visible[0, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert build()(SOURCE, TARGET).reads == {}


def test_dropout_is_on_embeddings_and_outputs_only() -> None:
    model = build(dropout=0.5)
    first, second = model(SOURCE, TARGET).logits, model(SOURCE, TARGET).logits
    assert not torch.equal(first, second)
    model.eval()
    assert torch.equal(model(SOURCE, TARGET).logits, model(SOURCE, TARGET).logits)


class TestPresets:
    @pytest.mark.parametrize("architecture", ["reluformer", "transformer"])
    def test_architectures_name_the_rules(self, architecture: str) -> None:
        config = rf.ModelConfig.preset("tiny", architecture, vocab_size=10)
        rule = {"reluformer": "relu", "transformer": "softmax"}[architecture]
        assert [getattr(config, place).name for place in PLACES] == ["relu_plain", rule, rule, rule]

    def test_sizes(self) -> None:
        iwslt = rf.ModelConfig.preset("iwslt", vocab_size=10_000)
        assert (iwslt.encoder_layers, iwslt.decoder_layers, iwslt.width, iwslt.slots, iwslt.heads) == (
            6,
            6,
            512,
            1024,
            4,
        )
        with torch.device("meta"):
            # 12 attention + 6 cross of 4 (512^2 + 512), 12 FFN, 30 + 2 LayerNorms, one embedding
            model = ReLUFormer(iwslt)
        attention, ffn = 18 * 4 * (512 * 512 + 512), 12 * (2 * 512 * 1024 + 1024 + 512)
        assert model.parameter_count() == attention + ffn + 32 * 2 * 512 + 10_000 * 512

    def test_unknown_names_list_the_valid(self) -> None:
        with pytest.raises(UnknownNameError, match="unknown size 'tny'; did you mean 'tiny'"):
            rf.ModelConfig.preset("tny", vocab_size=10)
        with pytest.raises(UnknownNameError, match=r"unknown architecture 'former'.*valid: reluformer, transformer"):
            rf.ModelConfig.preset("tiny", "former", vocab_size=10)


class TestBadInput:
    def test_heads_that_do_not_divide_the_width(self) -> None:
        with pytest.raises(ConfigError, match="heads=3 does not divide width=16; use heads=2"):
            build(heads=3)

    def test_rotary_needs_even_heads(self) -> None:
        with pytest.raises(ConfigError, match="rotary positions need an even head width, got 3"):
            build(width=12, heads=4, positions="rotary")

    @pytest.mark.parametrize("bad", [40, -1])
    def test_a_token_outside_the_vocabulary(self, bad: int) -> None:
        with pytest.raises(ArgumentError, match=rf"source holds token id {bad}, the vocabulary has ids 0 to 39"):
            build()(torch.tensor([[5, bad]]), torch.tensor([[1]]))

    def test_tokens_that_are_none(self) -> None:
        with pytest.raises(ArgumentError, match=r"target must be token ids of shape \(batch, length\)"):
            build()(SOURCE, TARGET.float())

    def test_a_mask_of_the_wrong_type(self) -> None:
        with pytest.raises(ArgumentError, match="source_mask must be boolean"):
            build()(SOURCE, TARGET, SOURCE_MASK.long())

    def test_different_batches(self) -> None:
        with pytest.raises(ArgumentError, match="target has 2 rows, source has 3"):
            build()(SOURCE, TARGET[:2])


def test_sentences_are_counted_from_their_separators() -> None:
    """The same words differ by the number of their sentence, and only where sentences are counted."""
    source = torch.tensor([[7, 8, 3, 7, 8, 3, 7, 8]])
    counting, plain = (build(separator=separator, positions="rotary", encoder_layers=0) for separator in (3, None))
    states = counting.encode(source).states[0]
    assert not torch.allclose(states[0], states[3]) and not torch.allclose(states[3], states[6])
    states = plain.encode(source).states[0]
    torch.testing.assert_close(states[0], states[6])


def test_a_separator_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match="separator=40 is no token of a vocabulary of 40"):
        build(separator=40)
