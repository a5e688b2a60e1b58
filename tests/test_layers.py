"""Both memories, their initial variance, and what a rule asks of a layer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import reluformer as rf
from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.kernels import cpu
from reluformer.kernels import products as dense_products
from reluformer.layers import Attention, AttentionOptions, FeedForward, GatedRMSNorm, SlotCache, TokenSlots

RULES = rules.names()


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class TestFeedForward:
    @pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
    @pytest.mark.parametrize("rule", RULES)
    def test_it_is_a_read_of_learned_slots(self, rule: str, bias: bool) -> None:
        ffn = FeedForward(6, 11, rules.get(rule), bias=bias).double()
        torch.nn.init.normal_(ffn.keys.weight)
        if bias:
            torch.nn.init.normal_(ffn.keys.bias)
            torch.nn.init.normal_(ffn.values.bias)
        x = normal(2, 5, 6, dtype=torch.float64)
        keys = ffn.keys.weight[None, None].expand(2, 1, 11, 6)
        values = ffn.values.weight.t()[None, None].expand(2, 1, 11, 6)
        read = rf.read(x[:, None], keys, values, rule=rule, scale=1.0, bias=ffn.keys.bias if bias else None)[:, 0]
        expected = ffn.norm(read + ffn.values.bias if bias else read)
        torch.testing.assert_close(ffn(x)[0], expected)

    @pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
    @pytest.mark.parametrize("rule", ["relu", "relu_plain", "relu2", "rela"])
    def test_training_of_many_rows_goes_through_the_kernel(
        self, rule: str, bias: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if reason := cpu.unavailable():
            pytest.skip(reason)
        monkeypatch.setattr(dense_products, "available", lambda: False)
        ffn = FeedForward(24, 1024, rules.get(rule), bias=bias)
        exact = FeedForward(24, 1024, rules.get(rule), bias=bias).double()
        exact.load_state_dict(ffn.state_dict())
        x, probe = normal(2, 150, 24), normal(2, 150, 24, seed=1)
        products: list[tuple[int, ...]] = []
        linear = torch.nn.functional.linear
        monkeypatch.setattr(torch.nn.functional, "linear", lambda *a: (products.append(a[0].shape), linear(*a))[1])
        found = []
        for layer, dtype in ((ffn, torch.float32), (exact, torch.float64)):
            leaves = [x.to(dtype).requires_grad_(), *layer.parameters()]
            out = layer(leaves[0])[0]
            found.append((out.detach(), *torch.autograd.grad((out * probe.to(dtype)).sum(), leaves)))
        assert len(products) == 2  # those of the exact layer: float64 is not for the kernel
        for one, other in zip(*found, strict=True):
            assert float((one - other).abs().max()) <= 2e-5 * max(1.0, float(other.abs().max()))

    @pytest.mark.parametrize(("bias", "through_the_kernel"), [(0.0, 0), (-2.0, 1)], ids=["dense", "sparse"])
    def test_where_dense_products_are_wide_a_few_rows_say_whether_the_kernel_pays(
        self, bias: float, through_the_kernel: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if reason := cpu.unavailable():
            pytest.skip(reason)
        monkeypatch.setattr(dense_products, "wide", lambda *_: True)
        ffn = FeedForward(24, 512, rules.get("relu_plain"))
        torch.nn.init.constant_(ffn.keys.bias, bias)
        reads: list[int] = []
        read = rf.memory.read
        monkeypatch.setattr(rf.memory, "read", lambda *given, **named: (reads.append(1), read(*given, **named))[1])
        monkeypatch.setattr(dense_products, "linear", torch.nn.functional.linear)
        x = normal(1, 1500, 24)
        found = ffn(x)[0]
        assert len(reads) == through_the_kernel
        torch.testing.assert_close(found, ffn.eval()(x)[0])
        ffn.train()(x[:, :900])  # too few rows
        assert len(reads) == through_the_kernel

    @pytest.mark.parametrize("how", ["few rows", "eval", "no gradient", "hook", "replaced", "softmax"])
    def test_other_reads_of_learned_slots_are_dense_products(self, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
        class Scaled(torch.nn.Linear):
            """A linear layer that somebody else put in."""

        ffn = FeedForward(8, 2048, rules.get("softmax" if how == "softmax" else "relu")).train(how != "eval")
        x = normal(1, 8 if how == "few rows" else 300, 8)
        if how == "hook":
            ffn.keys.register_forward_hook(lambda *_: None)
        if how == "replaced":
            ffn.keys = Scaled(8, 2048)
        monkeypatch.setattr(rf.memory, "read", lambda *_, **__: pytest.fail("it went through the kernel"))
        with torch.set_grad_enabled(how != "no gradient"):
            assert ffn(x)[0].shape == x.shape

    def test_at_inference_a_few_rows_read_only_the_slots_that_fired(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if reason := cpu.unavailable():
            pytest.skip(reason)
        ffn = FeedForward(512, 1024, rules.get("relu_plain")).eval()
        torch.nn.init.constant_(ffn.keys.bias, -1.0)
        x = normal(2, 1, 512)
        gathered: list[int] = []
        gather = cpu.gather_values
        monkeypatch.setattr(cpu, "gather_values", lambda *given: (gathered.append(1), gather(*given))[1])
        with torch.no_grad():
            for _ in range(2):  # the second time with other values: a kept copy must not be read
                torch.testing.assert_close(ffn(x)[0], ffn.values(ffn.weights(x)))
                ffn.values.weight.mul_(2)
        assert len(gathered) == 2
        ffn(x)  # with gradients
        ffn.train()(x)
        assert len(gathered) == 2

    @pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
    def test_a_trace_holds_no_product_of_the_kernel(self) -> None:
        ffn = FeedForward(512, 1024, rules.get("relu_plain")).eval().requires_grad_(False)
        torch.nn.init.constant_(ffn.keys.bias, -1.0)
        x = normal(2, 1, 512)
        traced = torch.jit.trace(lambda x: ffn(x)[0], x)
        torch.testing.assert_close(traced(-x), ffn.values(ffn.weights(-x)))

    def test_biases_as_in_the_paper(self) -> None:
        assert FeedForward(4, 8, rules.get("relu_plain")).keys.bias is not None
        assert FeedForward(4, 8, rules.get("softmax")).keys.bias is None
        assert FeedForward(4, 8, rules.get("softmax"), bias=True).values.bias is not None

    @pytest.mark.parametrize("slots", [32, 1024, 4096])
    @pytest.mark.parametrize("rule", ["relu_plain", "relu", "relu2", "relu_seqlen", "sigmoid"])
    def test_a_pointwise_read_starts_with_variance_one(self, rule: str, slots: int) -> None:
        """Within 15 %: 4 x 64 x 256 reads of one draw of the slots."""
        torch.manual_seed(0)
        variance = FeedForward(256, slots, rules.get(rule))(normal(4, 64, 256))[0].var().item()
        assert variance == pytest.approx(1, rel=0.15)

    def test_softmax_reads_far_less_than_the_ffn_from_the_same_values(self) -> None:
        """Claim C2: the variance is about e/n of that of the values, where plain ReLU has n/2."""
        torch.manual_seed(0)
        x, slots = normal(4, 64, 256), 1024
        softmax = FeedForward(256, slots, rules.get("softmax"))
        assert softmax.value_std == pytest.approx(FeedForward(256, slots, rules.get("relu_plain")).value_std)
        assert softmax(x)[0].var().item() == pytest.approx(2 / slots * math.e / slots, rel=0.2)

    def test_a_given_value_std(self) -> None:
        torch.manual_seed(0)
        ffn = FeedForward(64, 512, rules.get("softmax"), value_std=0.3)
        assert ffn.values.weight.std().item() == pytest.approx(0.3, rel=0.02)


class TestVarianceOfAttention:
    """The paper's argument in the layer itself, whose keys and values come from the same tokens."""

    @staticmethod
    def read_variance(rule: str, slots: int) -> float:
        """The layer's own projections on uncorrelated tokens of variance one."""
        torch.manual_seed(0)
        attention = Attention(128, 4, rules.get(rule))
        tokens = normal(4, slots, 128)
        with torch.no_grad():
            read, _ = attention.read(
                attention.split_heads(attention.query(normal(4, 16, 128, seed=1))), attention.slots(tokens)
            )
        return read.var().item()

    @pytest.mark.parametrize("slots", [16, 64, 256, 1024, 4096])
    def test_relu_stays_at_one(self, slots: int) -> None:
        assert self.read_variance("relu", slots) == pytest.approx(1, rel=0.1)

    @pytest.mark.parametrize("slots", [16, 64, 256, 1024, 4096])
    def test_relu_plain_grows_with_the_slots(self, slots: int) -> None:
        assert self.read_variance("relu_plain", slots) == pytest.approx(slots / 2, rel=0.1)

    @pytest.mark.parametrize("slots", [256, 1024, 4096])
    def test_without_orthogonal_keys_and_values_it_would_grow(self, slots: int) -> None:
        """1 + n / (2 D) on average over draws; 30 %, as six draws of 128 columns scatter by about 20 %."""
        variances = []
        for seed in range(6):
            torch.manual_seed(seed)
            attention = Attention(128, 4, rules.get("relu"))
            torch.nn.init.normal_(attention.key_value.weight, std=128**-0.5)
            with torch.no_grad():
                q = attention.split_heads(attention.query(normal(2, 16, 128, seed=2 * seed + 1)))
                read, _ = attention.read(q, attention.slots(normal(2, slots, 128, seed=2 * seed)))
            variances.append(read.var().item())
        assert sum(variances) / 6 == pytest.approx(1 + slots / 256, rel=0.3)


class TestAttention:
    def test_a_learned_gamma_starts_at_one_and_divides_the_weights(self) -> None:
        x = normal(2, 5, 8)
        for name in ("relu", "relu2"):
            torch.manual_seed(0)
            plain = Attention(8, 2, rules.get(name))
            learned = Attention(8, 2, rules.get({"name": name, "learn_gamma": True}))
            learned.load_state_dict(plain.state_dict(), strict=False)
            torch.testing.assert_close(learned(x)[0], plain(x)[0])
            assert learned.log_gamma is not None
            with torch.no_grad():
                learned.log_gamma.fill_(math.log(3.0))
            torch.testing.assert_close(learned(x)[0], plain(x)[0] / 3)  # the output bias is zero
        assert plain.log_gamma is None

    def test_a_learned_offset_starts_at_zero_and_is_added_to_the_scores_of_its_head(self) -> None:
        x = normal(2, 5, 8)
        for name in ("relu", "relu2", "relu_norm", "sigmoid"):
            torch.manual_seed(0)
            plain, learned = (Attention(8, 2, rules.get(name), True, learn_offset=learns) for learns in (False, True))
            learned.load_state_dict(plain.state_dict(), strict=False)
            torch.testing.assert_close(learned(x)[0], plain(x)[0])
            assert plain.read.offset is None and learned.read.offset is not None
            with torch.no_grad():
                learned.read.offset.copy_(torch.tensor([0.5, -0.25]))
            q, slots = learned.split_heads(learned.query(x)), learned.slots(x)
            bias = torch.tensor([0.5, -0.25]).view(1, 2, 1, 1)
            expected = rf.read(q, slots.keys, slots.values, rule=name, causal=True, bias=bias)
            read, _ = learned.read(q, slots, stats=True)
            torch.testing.assert_close(read, expected)
            torch.testing.assert_close(learned.read(q, slots)[0], expected)
            learned(x)[0].sum().backward()
            assert learned.read.offset.grad is not None and learned.read.offset.grad.abs().min() > 0

    def test_a_rowwise_rule_learns_no_offset(self) -> None:
        assert Attention(8, 2, rules.get("softmax"), learn_offset=True).read.offset is None

    def test_the_output_norm_is_over_the_concatenated_heads(self) -> None:
        attention = Attention(8, 2, rules.get("softmax_ln"))
        assert isinstance(attention.norm, torch.nn.LayerNorm)
        assert attention.norm.normalized_shape == (8,)
        assert isinstance(Attention(8, 2, rules.get("rela")).norm, GatedRMSNorm)
        assert not list(Attention(8, 2, rules.get("relu")).norm.parameters())

    def test_gated_rms_norm_by_hand(self) -> None:
        norm = GatedRMSNorm(2)
        with torch.no_grad():
            norm.gain.copy_(torch.tensor([2.0, 1.0]))
            norm.gate.copy_(torch.tensor([1.0, 0.0]))
        x = torch.tensor([3.0, 4.0])
        rms = math.sqrt(12.5)
        expected = torch.tensor([2 * 3 / rms / (1 + math.exp(-3)), 4 / rms / 2])
        torch.testing.assert_close(norm(x), expected)

    def test_one_source_serves_several_rows(self) -> None:
        attention = Attention(8, 2, rules.get("relu"))
        slots = attention.slots(normal(2, 5, 8), mask=torch.tensor([[True] * 5, [True] * 3 + [False] * 2]))
        x = normal(6, 1, 8, seed=1)
        repeated = TokenSlots(*(part.repeat_interleave(3, 0) for part in slots[:3]))
        torch.testing.assert_close(attention(x, slots=slots)[0], attention(x, slots=repeated)[0])


class TestSlotCache:
    def test_it_grows_and_keeps_everything(self) -> None:
        cache = SlotCache()
        parts = [TokenSlots(normal(2, 1, n, 3, seed=n), normal(2, 1, n, 4, seed=50 + n)) for n in (1, 2, 40, 1)]
        for part in parts:
            slots = cache.append(part)
        assert torch.equal(slots.keys, torch.cat([part.keys for part in parts], dim=2))
        assert torch.equal(slots.values, torch.cat([part.values for part in parts], dim=2))

    def test_reordering_follows_the_beams(self) -> None:
        cache = SlotCache()
        first = TokenSlots(normal(3, 1, 2, 3), normal(3, 1, 2, 3, seed=1))
        cache.append(first)
        cache.reorder(torch.tensor([2, 2, 0]))
        new = TokenSlots(normal(3, 1, 1, 3, seed=2), normal(3, 1, 1, 3, seed=3))
        slots = cache.append(new)
        assert torch.equal(slots.keys, torch.cat([first.keys[[2, 2, 0]], new.keys], dim=2))


class TestAttentionOfLanguageModels:
    """Grouped heads, windows, forget gates, shifts, norms and output gates."""

    PRO = AttentionOptions(key_heads=2, forget="spread", qk_norm=True, output_gate=True, shift=True)

    @pytest.mark.parametrize("rule", ["softmax", "softmax1", "relu", "relu_chance", "tra"])
    @pytest.mark.parametrize(
        "options",
        [
            AttentionOptions(key_heads=1),
            AttentionOptions(window=(3, 0)),
            AttentionOptions(forget="zero"),
            AttentionOptions(forget="fixed", shift=True),
            PRO,
        ],
        ids=["grouped", "window", "forget", "fixed", "pro"],
    )
    def test_decoding_equals_the_full_pass(self, rule: str, options: AttentionOptions) -> None:
        attention = Attention(16, 4, rules.get(rule), causal=True, options=options).double()
        x = normal(2, 11, 16).double()
        whole, _ = attention(x)
        cache, found = SlotCache(), []
        for begin, end in ((0, 4), (4, 5), (5, 6), (6, 11)):
            found.append(attention(x[:, begin:end], cache=cache)[0])
        torch.testing.assert_close(torch.cat(found, dim=1), whole)

    @pytest.mark.parametrize("rule", ["softmax", "relu_chance"])
    def test_packed_sequences_do_not_see_each_other(self, rule: str) -> None:
        attention = Attention(16, 4, rules.get(rule), causal=True, options=self.PRO).double()
        x = normal(1, 12, 16).double()
        packed, _ = attention(x, offsets=torch.tensor([0, 5, 12]))
        for begin, end in ((0, 5), (5, 12)):
            torch.testing.assert_close(packed[:, begin:end], attention(x[:, begin:end])[0])

    def test_forget_gates_start_with_memories_from_2_to_2000_tokens(self) -> None:
        attention = Attention(16, 4, rules.get("softmax"), causal=True, options=AttentionOptions(forget="spread"))
        assert attention.forget_bias is not None
        memories = 1 / (1 - torch.sigmoid(attention.forget_bias.double()))
        torch.testing.assert_close(memories[[0, -1]], torch.tensor([2000.0, 2.0]).double(), rtol=1e-4, atol=0)
        halves = Attention(16, 4, rules.get("softmax"), causal=True, options=AttentionOptions(forget="zero"))
        assert halves.forget_bias is not None and not halves.forget_bias.any()

    def test_the_sums_of_a_gate_are_in_float32_at_least(self) -> None:
        attention = Attention(16, 4, rules.get("softmax"), causal=True, options=AttentionOptions(forget="zero"))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            gate = attention.slots(normal(1, 9, 16)).gate
        assert gate is not None and gate.dtype == torch.float32

    def test_a_learned_sink_is_a_parameter_of_each_head(self) -> None:
        attention = Attention(16, 4, rules.get({"name": "softmax1", "learn_sink": True}), causal=True)
        out, _ = attention(normal(1, 9, 16))
        out.sum().backward()
        assert attention.read.sink is not None and attention.read.sink.grad is not None
        assert attention.read.sink.grad.abs().min() > 0

    def test_every_parameter_gets_a_gradient(self) -> None:
        attention = Attention(16, 4, rules.get("softmax"), causal=True, options=self.PRO)
        attention(normal(2, 9, 16))[0].square().sum().backward()
        assert all(
            p.grad is not None and p.grad.abs().max() > 0
            for name, p in attention.named_parameters()
            if name != "key_value.bias"
        )

    def test_a_cache_of_another_model_is_refused(self) -> None:
        gated = Attention(16, 4, rules.get("softmax"), causal=True, options=AttentionOptions(forget="zero"))
        plain, grouped = (
            Attention(16, 4, rules.get("softmax"), causal=True, options=AttentionOptions(key_heads=heads))
            for heads in (4, 2)
        )
        wide, shifted = (
            Attention(width, 4, rules.get("softmax"), causal=True, options=AttentionOptions(shift=width == 16))
            for width in (32, 16)
        )
        cache = SlotCache()
        plain(normal(1, 3, 16), cache=cache)
        for other, width, message in (
            (gated, 16, "forget gates 0 there and 4 here"),
            (grouped, 16, "key heads 4 there and 2 here"),
            (wide, 32, "head width 4 there and 8 here, width of values 4 there and 8 here"),
            (shifted, 16, "shift False there and True here"),
        ):
            with pytest.raises(ArgumentError, match=f"cache belongs to another model or batch: {message}; start a new"):
                other(normal(1, 1, width), cache=cache)
        with pytest.raises(ArgumentError, match=r"dtype torch.float32 there and torch.float64 here; start a new cache"):
            plain.double()(normal(1, 1, 16).double(), cache=cache)
        assert cache.length == 3

    @pytest.mark.parametrize("shift", [False, True], ids=["plain", "shift"])
    @pytest.mark.parametrize(
        ("offsets", "message"),
        [
            (torch.tensor([0, 9]), "offsets must rise from 0 to the number of slots, 5"),
            (torch.tensor([0, 4, 3, 5]), "offsets must rise from 0 to the number of slots, 5"),
            (torch.tensor([0.0, 5.0]), "offsets must be a tensor of integers"),
            ([0, 5], "offsets must be a tensor of integers"),
        ],
        ids=str,
    )
    def test_offsets_that_do_not_fit_are_refused(self, offsets: object, message: str, shift: bool) -> None:
        attention = Attention(16, 4, rules.get("relu"), causal=True, options=AttentionOptions(shift=shift))
        with pytest.raises(ArgumentError, match=message):
            attention(normal(1, 5, 16), offsets=offsets)

    def test_packed_sequences_cannot_follow_a_cache(self) -> None:
        attention, cache = Attention(16, 4, rules.get("relu"), causal=True, options=self.PRO), SlotCache()
        attention(normal(1, 3, 16), cache=cache)
        with pytest.raises(ArgumentError, match="offsets with 2 queries and 5 slots"):
            attention(normal(1, 2, 16), offsets=torch.tensor([0, 2]), cache=cache)

    @pytest.mark.parametrize("options", [AttentionOptions(), PRO], ids=["plain", "pro"])
    def test_no_tokens_give_nothing_and_change_no_cache(self, options: AttentionOptions) -> None:
        attention = Attention(16, 4, rules.get("relu_chance"), causal=True, options=options)
        x, nothing = normal(2, 5, 16), normal(2, 0, 16)
        assert attention(nothing)[0].shape == (2, 0, 16)
        cache = SlotCache()
        parts = [attention(part, cache=cache)[0] for part in (nothing, x[:, :3], nothing, x[:, 3:])]
        torch.testing.assert_close(torch.cat(parts, dim=1), attention(x)[0])

    @pytest.mark.parametrize(
        ("width", "heads", "options", "message"),
        [
            (16, 4, {"key_heads": 3}, "key_heads=3 does not divide heads=4; use a divisor"),
            (16, 4, {"key_heads": 0}, "key_heads=0 must be at least 1"),
            (16, 0, {}, "heads=0 must be at least 1"),
            (30, 4, {}, "heads=4 does not divide width=30; change one of them"),
            (16, 4, {"forget": "foo"}, "forget='foo' is unknown; valid: fixed, spread, zero"),
            (16, 4, {"forget": "spred"}, "forget='spred' is unknown; did you mean 'spread'"),
            (16, 4, {"forget": "zero", "forget_on": "weight"}, "forget_on='weight' .* did you mean 'weights'"),
        ],
    )
    def test_options_that_do_not_fit_are_refused(
        self, width: int, heads: int, options: dict[str, object], message: str
    ) -> None:
        with pytest.raises(ArgumentError, match=message):
            Attention(width, heads, rules.get("softmax"), options=AttentionOptions(**options))

    def test_a_cache_follows_its_beams(self) -> None:
        attention = Attention(16, 4, rules.get("relu"), causal=True, options=self.PRO).double()
        x = normal(2, 6, 16).double()
        cache = SlotCache()
        attention(x[:, :4], cache=cache)
        cache.reorder(torch.tensor([1, 0]))
        out = attention(x.flip(0)[:, 4:], cache=cache)[0]
        torch.testing.assert_close(out, attention(x)[0].flip(0)[:, 4:])
