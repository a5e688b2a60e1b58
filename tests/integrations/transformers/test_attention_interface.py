"""A rule swapped into a model of transformers is that rule, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("transformers", reason="needs the extra [hf]")

from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, StaticCache
from transformers.masking_utils import eager_mask

from reluformer import hub, rules
from reluformer.errors import ArgumentError, UnknownNameError
from reluformer.integrations.transformers import attention_interface
from reluformer.kernels import cpu

RULES = [name for name in rules.names() if rules.get(name).output_norm is None]
TOLERANCE = 1e-5  # models in float64, but Llama, Mistral and T5 compute their norms in float32, in numbers near 10


def _sparse(scores: Tensor, visible: Tensor, function: str) -> Tensor:
    import entmax

    return getattr(entmax, function)(scores.masked_fill(~visible, -1e6), dim=-1)


PLAIN: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "softmax": lambda s, n, visible: torch.softmax(s.masked_fill(~visible, -1e30), -1),
    "relu": lambda s, n, visible: s.clamp_min(0) / (n / 2).sqrt(),
    "relu_plain": lambda s, n, visible: s.clamp_min(0),
    "relu_seqlen": lambda s, n, visible: s.clamp_min(0) / n,
    "pointwise_seqlen": lambda s, n, visible: s.clamp_min(0) / n,
    "relu2": lambda s, n, visible: s.clamp_min(0) ** 2 / (1.5 * n).sqrt(),
    "sigmoid": lambda s, n, visible: 1 / (1 + torch.exp(-s) * n),
    "relu_norm": lambda s, n, visible: (
        s.clamp_min(0) / (1 + (s.clamp_min(0) * visible).sum(-1, keepdim=True))
    ),
    "relu_exp": lambda s, n, visible: _rectified_exp(s, n, visible, 1.0, 1.55 - 0.15 * n.log()),
    "relu_chance": lambda s, n, visible: _rectified_exp(s, n, visible, 0.3 * (2 * n.log()).sqrt(), 0.0, cap=0.5),
    "relu_rest": lambda s, n, visible: _with_rest(s, n, visible),
    "scalable_softmax": lambda s, n, visible: torch.softmax((s * 0.43 * n.log()).masked_fill(~visible, -1e30), -1),
    "softpick": lambda s, n, visible: (
        (torch.exp(s) - 1).clamp_min(0) / (1e-6 + ((torch.exp(s) - 1).abs() * visible).sum(-1, keepdim=True))
    ),
    "softmax1": lambda s, n, visible: torch.exp(s) / (1 + (torch.exp(s) * visible).sum(-1, keepdim=True)),
    "tra": lambda s, n, visible: (s - (2 * n.log()).sqrt()).clamp_min(0) ** 2,
    "polynomial": lambda s, n, visible: s**3 / n.sqrt(),
    "sparsemax": lambda s, n, visible: _sparse(s, visible, "sparsemax"),
    "entmax15": lambda s, n, visible: _sparse(s, visible, "entmax15"),
}  # fmt: skip


def _rectified_exp(
    scores: Tensor, n: Tensor, visible: Tensor, deviations: float | Tensor, lowered: float | Tensor, cap: float = 0.0
) -> Tensor:
    centred = scores - (scores * visible).sum(-1, keepdim=True) / n
    deviation = ((centred**2 * visible).sum(-1, keepdim=True) / n + 0.01).sqrt()
    level = deviations * deviation - lowered
    if cap:
        level = torch.minimum(level, centred.masked_fill(~visible, -1e30).amax(-1, keepdim=True) - cap)
    terms = (torch.exp((centred - level).clamp_max(60)) - 1).clamp_min(0) * visible
    return terms / (0.1 + terms.sum(-1, keepdim=True))


def _with_rest(scores: Tensor, n: Tensor, visible: Tensor) -> Tensor:
    centred = scores - (scores * visible).sum(-1, keepdim=True) / n
    deviation = ((centred**2 * visible).sum(-1, keepdim=True) / n + 0.01).sqrt()
    above = 0.6 * (2 * n.log()).sqrt() - 1  # in deviations
    terms = (torch.exp((centred - above * deviation).clamp_max(60)) - 1).clamp_min(0) * visible
    normal = torch.distributions.Normal(0.0, 1.0)
    below = torch.exp(deviation**2 / 2 - above * deviation) * normal.cdf(above - deviation)
    rest = n * (below + normal.cdf(-above))
    return (terms + rest / n) * visible / (terms.sum(-1, keepdim=True) + rest)


def plain_attention(rule: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """The obvious lines, on transformers' own mask for eager attention."""

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        position_bias: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        groups = query.size(1) // key.size(1)
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ key.mT * (1 / math.sqrt(query.size(-1)) if scaling is None else scaling)
        scores = scores if position_bias is None else scores + position_bias
        visible = torch.ones_like(scores, dtype=torch.bool)
        visible = visible if attention_mask is None else (attention_mask == 0).expand_as(scores)
        n = visible.sum(-1, keepdim=True).clamp_min(1)
        weights = PLAIN[rule](scores, n, visible) * visible
        weights = F.dropout(weights, dropout, module.training)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    return attend


for _rule in PLAIN:
    AttentionInterface.register(f"plain:{_rule}", plain_attention(_rule))
    AttentionMaskInterface.register(f"plain:{_rule}", eager_mask)


def both(family: Any, rule: str, **changes: Any) -> tuple[Any, Any]:
    """The family's model with our rule and with the plain one, equal weights."""
    return tuple(family.make(f"{kind}:{rule}", **changes).double() for kind in ("reluformer", "plain"))


def padded(length: int, side: str) -> Tensor:
    """Two rows, the second with three padding tokens."""
    mask = torch.ones(2, length, dtype=torch.long)
    hidden = slice(0, 3) if side == "left" else slice(length - 3, length)
    mask[1, hidden] = 0
    return mask


def at_tokens(family: Any, logits: Tensor, mask: Tensor) -> Tensor:
    """What is not padding; the target of an encoder-decoder has none."""
    return logits if family.encodes else logits[mask.bool()]


def test_every_rule_has_a_plain_twin() -> None:
    assert set(RULES) == set(PLAIN)


@pytest.mark.parametrize("rule", RULES)
def test_equal_to_plain_attention(family: Any, rule: str, tokens: Any) -> None:
    ours, plain = both(family, rule)
    for side in ("left", "right"):
        mask = padded(9, side)
        found, expected = (at_tokens(family, family.logits(m, tokens(2, 9), mask), mask) for m in (ours, plain))
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
        assert found.std() > 0.1


def test_softmax_is_the_models_own_eager_attention(family: Any, tokens: Any) -> None:
    ours, own = (family.make(name).double() for name in ("reluformer:softmax", "eager"))
    mask = padded(9, "right")
    for given in (mask, None):
        found, expected = (family.logits(model, tokens(2, 9), given) for model in (ours, own))
        torch.testing.assert_close(
            at_tokens(family, found, mask), at_tokens(family, expected, mask), rtol=0, atol=TOLERANCE
        )


def test_padding_changes_nothing(padded_side: tuple[Any, str], tokens: Any) -> None:
    family, side = padded_side
    model = family.make("reluformer:relu").double()
    row, mask = tokens(2, 9), padded(9, side)
    alone = family.logits(model, row[1:][mask[1:].bool()][None], torch.ones(1, 6, dtype=torch.long))
    found = at_tokens(family, family.logits(model, row, mask)[1:], mask[1:]).view_as(alone)
    torch.testing.assert_close(found, alone, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("rule", ["relu", "relu_norm", "softmax"])
def test_no_token_sees_the_future(decoder: Any, rule: str, tokens: Any) -> None:
    model = decoder.make(f"reluformer:{rule}").double()
    given = tokens(1, 9)
    changed = given.clone()
    changed[0, 6] = (given[0, 6] + 1) % 30 + 3
    if decoder.encodes:
        first, second = (model(given, decoder_input_ids=target).logits for target in (given, changed))
    else:
        first, second = (model(target).logits for target in (given, changed))
    assert torch.equal(first[:, :6], second[:, :6])
    assert not torch.equal(first[:, 6:], second[:, 6:])


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_cached_pass_is_the_full_pass(decoder: Any, chunk: int, tokens: Any) -> None:
    model = decoder.make("reluformer:relu").double()
    given, mask = tokens(2, 9), padded(9, "left")
    if decoder.encodes:
        full = model(given, attention_mask=padded(9, "right"), decoder_input_ids=given).logits
    else:
        full = decoder.logits(model, given, mask)
    cache, steps = None, []
    for start in range(0, 9, chunk):
        part = given[:, start : start + chunk]
        if decoder.encodes:
            target = {"decoder_input_ids": part, "past_key_values": cache, "use_cache": True}
            out = model(given, attention_mask=padded(9, "right"), **target)
        else:
            positions = (mask.cumsum(-1) - 1).clamp_min(0)[:, start : start + chunk]
            seen = mask[:, : start + chunk]
            out = model(part, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        steps.append(out.logits)
    found, shown = torch.cat(steps, 1), mask.bool() | torch.tensor(decoder.encodes)
    torch.testing.assert_close(found[shown], full[shown], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("rule", RULES)
def test_gradients(family: Any, rule: str, tokens: Any) -> None:
    mask = padded(8, "right")
    gradients = []
    for model in both(family, rule):
        at_tokens(family, family.logits(model, tokens(2, 8), mask), mask).square().mean().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient, rtol=0, atol=TOLERANCE, msg=name)


@pytest.mark.skipif(cpu.unavailable() is not None, reason=f"no kernel: {cpu.unavailable()}")
@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "marian"])
def test_the_kernel_serves(families: Any, name: str, side: str | None, tokens: Any, kernel_reads: list[str]) -> None:
    family = families[name]
    ours, plain = (family.make(f"{kind}:relu") for kind in ("reluformer", "plain"))
    mask = torch.ones(2, 9, dtype=torch.long) if side is None else padded(9, side)
    with torch.no_grad():
        found = family.logits(ours, tokens(2, 9), mask)
        shared = 2 if name == "llama" else 1  # a read for each head of keys
        assert len(kernel_reads) == (6 if family.encodes else 2 * shared)
        expected = family.logits(plain, tokens(2, 9), mask)
    torch.testing.assert_close(at_tokens(family, found, mask), at_tokens(family, expected, mask), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(cpu.unavailable() is not None, reason=f"no kernel: {cpu.unavailable()}")
def test_the_kernel_serves_decoding_with_shared_keys(families: Any, tokens: Any, kernel_reads: list[str]) -> None:
    model = families["llama"].make("reluformer:relu")
    with torch.no_grad():
        cache = model(tokens(2, 8), attention_mask=padded(8, "left"), use_cache=True).past_key_values
        kernel_reads.clear()
        model(tokens(2, 1), attention_mask=padded(9, "left"), past_key_values=cache)
    assert kernel_reads == ["relu", "relu"]


def test_generation_is_the_same_with_every_cache(families: Any, tokens: Any) -> None:
    model = families["llama"].make("reluformer:relu")
    mask = padded(8, "left")
    options = dict(attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)
    given = tokens(2, 8)
    without = model.generate(given, use_cache=False, **options)
    assert torch.equal(model.generate(given, past_key_values=DynamicCache(), **options), without)
    static = StaticCache(config=model.config, max_cache_len=20)
    assert torch.equal(model.generate(given, past_key_values=static, **options), without)


@pytest.mark.parametrize("side", ["left", "right", None])
def test_a_llama_with_grouped_heads_trains_and_decodes_with_the_sparse_rule(
    families: Any, tokens: Any, side: str | None
) -> None:
    ours, plain = both(families["llama"], "relu_chance")
    given, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.long) if side is None else padded(9, side)
    labels = given.masked_fill(mask == 0, -100)
    losses: list[list[float]] = []
    for model in (ours, plain):
        optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(given, attention_mask=mask, labels=labels).loss
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        losses.append(found)
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=TOLERANCE)
    assert losses[0][-1] < losses[0][0]
    if side != "right":  # transformers generates after padding on the left only
        options = dict(attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)
        for settings in ({}, {"num_beams": 3}):
            cached, uncached, expected = (
                model.generate(given, use_cache=use, **options, **settings)
                for model, use in ((ours, True), (ours, False), (plain, False))
            )
            assert torch.equal(cached, uncached)
            assert torch.equal(cached, expected)


def test_packed_sequences_do_not_see_each_other(families: Any, tokens: Any) -> None:
    model = families["llama"].make("reluformer:relu").double()
    given = tokens(1, 9)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    packed = model(given, position_ids=positions, use_cache=False).logits
    apart = [model(given[:, :4]).logits, model(given[:, 4:]).logits]
    torch.testing.assert_close(packed, torch.cat(apart, 1), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("form", ["boolean", "additive"])
def test_a_mask_of_the_users_own(families: Any, tokens: Any, form: str) -> None:
    """A prefix of four tokens that all see each other, then causal."""
    ours, plain = both(families["llama"], "relu")
    visible = torch.ones(9, 9, dtype=torch.bool).tril_()
    visible[:, :4] = True
    added = torch.zeros(9, 9).double().masked_fill(~visible, torch.finfo(torch.float64).min)[None, None]
    given = tokens(1, 9)
    found = ours(given, attention_mask=visible[None, None] if form == "boolean" else added).logits
    torch.testing.assert_close(found, plain(given, attention_mask=added).logits, rtol=0, atol=TOLERANCE)
    assert not torch.allclose(found, ours(given).logits)


def test_an_additive_mask_may_be_a_bias(families: Any, tokens: Any) -> None:
    ours, own = (families["llama"].make(name).double() for name in ("reluformer:softmax", "eager"))
    distance = -(torch.arange(9)[:, None] - torch.arange(9)).abs().double()
    bias = distance.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -math.inf)[None, None]
    found, expected = (model(tokens(1, 9), attention_mask=bias).logits for model in (ours, own))
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


def test_a_decoder_that_is_told_to_look_both_ways(families: Any, tokens: Any) -> None:
    ours, plain = both(families["llama"], "relu", is_causal=False)
    found, expected = (model(tokens(1, 9)).logits for model in (ours, plain))
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("rule", ["relu", "softmax"])
def test_weights_are_returned_when_asked_for(family: Any, rule: str, tokens: Any) -> None:
    ours, plain = both(family, rule)
    options = {"decoder_input_ids": tokens(1, 5)} if family.encodes else {}
    found, expected = (model(tokens(1, 7), output_attentions=True, **options) for model in (ours, plain))
    names = ["attentions"] if not family.encodes else ["encoder_attentions", "decoder_attentions", "cross_attentions"]
    for name in names:
        assert len(found[name]) == 2
        for ours_, plain_ in zip(found[name], expected[name], strict=True):
            torch.testing.assert_close(ours_, plain_, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=TOLERANCE)


def test_dropout_is_applied_and_said_once(families: Any, tokens: Any, recwarn: pytest.WarningsRecorder) -> None:
    attention_interface.warn_of_dropout.cache_clear()
    results = []
    for model in both(families["llama"], "relu", attention_dropout=0.5):
        torch.manual_seed(3)
        results.append(model.train()(tokens(2, 9)).logits)
        torch.manual_seed(4)
        assert not torch.equal(model(tokens(2, 9)).logits, results[-1])
    torch.testing.assert_close(*results, rtol=0, atol=TOLERANCE)
    assert [str(w.message)[:17] for w in recwarn.list if "dropout" in str(w.message)] == ["attention dropout"]
    assert torch.equal(model.eval()(tokens(2, 9)).logits, model(tokens(2, 9)).logits)


def test_a_rule_of_the_users_own(families: Any, tokens: Any) -> None:
    if "hub_test_square" not in rules.names():
        rules.register("hub_test_square")(lambda scores, n: scores.square() / n)
    try:
        hub.register()
        hub.register()
        PLAIN["hub_test_square"] = lambda s, n, visible: s.square() / n
        AttentionInterface.register("plain:hub_test_square", plain_attention("hub_test_square"))
        AttentionMaskInterface.register("plain:hub_test_square", eager_mask)
        ours, plain = both(families["llama"], "hub_test_square")
        torch.testing.assert_close(ours(tokens(1, 9)).logits, plain(tokens(1, 9)).logits, rtol=0, atol=TOLERANCE)
    finally:
        PLAIN.pop("hub_test_square", None)
        rules.unregister("hub_test_square")


def test_a_model_is_made_with_a_rule(families: Any, tokens: Any) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    def config() -> Any:
        return LlamaConfig(**families["llama"].options)

    made = LlamaForCausalLM._from_config(config(), attn_implementation="reluformer:relu").eval()
    expected = families["llama"].make("reluformer:relu")
    made.load_state_dict(expected.state_dict())
    assert torch.equal(made(tokens(1, 9)).logits, expected(tokens(1, 9)).logits)
    with pytest.raises(UnknownNameError, match="did you mean 'relu'"):
        LlamaForCausalLM._from_config(config(), attn_implementation="reluformer:rellu")


def test_an_unknown_rule_names_the_nearest(families: Any) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'softmax'"):
        families["llama"].make("eager").set_attn_implementation("reluformer:sofmax")


@pytest.mark.parametrize("rule", ["rela", "softmax_ln"])
def test_a_rule_with_a_norm_is_refused(families: Any, rule: str) -> None:
    with pytest.raises(ArgumentError, match="has parameters that the model does not hold"):
        families["bert"].make(f"reluformer:{rule}")
    q = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ArgumentError, match="take a rule without an output norm"):
        hub.attention_function(rule)(nn.Identity(), q, q, q, None, is_causal=True)


def test_a_model_with_attention_of_its_own_is_refused() -> None:
    from transformers import BloomConfig, BloomModel

    def config() -> Any:
        return BloomConfig(hidden_size=8, n_layer=1, n_head=2, vocab_size=11)

    with pytest.raises(ArgumentError, match="BloomModel computes attention by itself"):
        BloomModel._from_config(config(), attn_implementation="reluformer:relu")
    model = BloomModel(config())
    for asked in ("reluformer:relu", {"": "reluformer:relu"}):
        with pytest.raises(ArgumentError, match="BloomModel computes attention by itself"):
            model.set_attn_implementation(asked)
    model.set_attn_implementation({"": "eager"})
    assert model.config._attn_implementation == "eager"


def test_a_model_with_some_attention_of_its_own_is_refused() -> None:
    from transformers import LongT5Config, LongT5EncoderModel

    def config() -> Any:
        return LongT5Config(vocab_size=11, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)

    with pytest.raises(ArgumentError, match="its LongT5LocalAttention computes a softmax by itself"):
        LongT5EncoderModel._from_config(config(), attn_implementation="reluformer:relu")
    model = LongT5EncoderModel._from_config(config(), attn_implementation="eager")
    with pytest.raises(ArgumentError, match="its LongT5LocalAttention computes a softmax by itself"):
        model.set_attn_implementation("reluformer:relu")


def test_other_implementations_are_left_alone(families: Any) -> None:
    model = families["llama"].make("sdpa")
    model.set_attn_implementation("reluformer:relu")
    model.set_attn_implementation("eager")
    assert model.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="is not supported"):
        model.set_attn_implementation("relu")


class _Module(nn.Module):
    """An attention layer that says only what it is told to."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softcap": 30.0}, "soft capping of scores"),
        ({"s_aux": torch.zeros(2)}, "attention sinks"),
        ({"cache": object()}, "a paged cache"),
        ({"attention_mask": None}, "neither a mask nor is_causal"),
        ({"is_causal": True, "slots": 7}, "5 queries for 7 slots without a mask"),
        ({"is_causal": True, "sliding_window": 3}, "sliding window of 3 but gives 5 slots"),
        ({"is_causal": True, "cu_seq_lens_q": torch.tensor([0, 2, 5])}, "packs several sequences"),
        ({"attention_mask": torch.ones(1, 5, dtype=torch.bool)}, r"gives a mask \(1, 5\)"),
        ({"attention_mask": torch.ones(1, 1, 5, 5, dtype=torch.long)}, "could mean either"),
        ({"attention_mask": torch.ones(1, 1, 5, 6, dtype=torch.bool)}, "does not broadcast"),
        ({"is_causal": True, "heads": 3}, "3 heads of queries cannot share 2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_read_cannot_mean_is_refused(options: dict[str, Any], message: str) -> None:
    options = dict(options)
    query = torch.zeros(1, options.pop("heads", 2), 5, 4)
    slots = torch.zeros(1, 2, options.pop("slots", 5), 4)
    mask = options.pop("attention_mask", None)
    with pytest.raises(ArgumentError, match=message):
        hub.attention_function("relu")(_Module(), query, slots, slots, mask, **options)
