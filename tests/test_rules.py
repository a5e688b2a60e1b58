"""The registry, rules of one's own, and the moments behind the variance argument."""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor

import reluformer as rf
from reluformer import rules
from reluformer.errors import ArgumentError, UnknownNameError


@pytest.fixture(autouse=True)
def clean_registry() -> Iterator[None]:
    before = rules.names()
    yield
    for name in set(rules.names()) - set(before):
        rules.unregister(name)


def test_every_rule_of_the_design_is_registered() -> None:
    assert set(rules.names()) >= {
        *("softmax", "softmax_ln", "relu", "relu_plain", "relu_seqlen"),
        *("relu2", "rela", "sigmoid", "sparsemax", "entmax15"),
    }


@pytest.mark.parametrize("name", rules.names())
def test_specification_round_trip(name: str) -> None:
    assert rules.spec(rules.get(name)) == name
    assert rules.get(rules.spec(rules.get(name))) == rules.get(name)


def test_options_round_trip() -> None:
    rule = rules.Relu(gamma=2.0, learn_gamma=True)
    assert rules.spec(rule) == {"name": "relu", "gamma": 2.0, "learn_gamma": True}
    assert rules.get({"name": "relu", "gamma": 2.0, "learn_gamma": True}) == rule


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("sofmax", UnknownNameError, "did you mean 'softmax'"),
        ({"name": "relu", "gama": 1}, ArgumentError, "rule 'relu' has no option 'gama'; did you mean 'gamma'"),
        ({"name": "softmax", "gamma": 1}, ArgumentError, "rule 'softmax' has no option 'gamma'; it takes none"),
        ({"name": "relu", "gamma": -1}, ArgumentError, "gamma must be a positive number, got -1"),
        ({"name": "relu_seqlen", "alpha": math.nan}, ArgumentError, "alpha must be a finite number, got nan"),
        (
            {"name": "pointwise_seqlen", "alpha": -0.5},
            ArgumentError,
            "alpha must not be negative, got -0.5; 1 is usual",
        ),
        ({"name": "pointwise_seqlen", "h": "gelo"}, ArgumentError, "h is 'gelo'; did you mean 'gelu'"),
        (
            {"name": "relu_exp", "spread": "wide"},
            ArgumentError,
            "'relu_exp': spread must be a finite number, got 'wide'",
        ),
        ({"name": "relu_exp", "delta": True}, ArgumentError, "delta must be a finite number, got True"),
        ({"name": "relu_exp", "cap": 0}, ArgumentError, "'relu_exp': cap must be a positive number, got 0"),
        ({"name": "polynomial", "p": 2.5}, ArgumentError, "'polynomial': p must be a whole number, got 2.5.* use 3"),
        ({"name": "relu_exp", "cap": "high"}, ArgumentError, "'relu_exp': cap must be a positive number, got 'high'"),
        ({"name": "relu", "learn_gamma": "no"}, ArgumentError, "learn_gamma must be true or false, got 'no'"),
        ({"gamma": 1}, ArgumentError, "a mapping with 'name'"),
    ],
)
def test_bad_rules(given: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        rules.get(given)


def test_gamma_divides_the_weights() -> None:
    q, k, v = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 2)
    for name in ("relu", "relu2"):
        plain, halved = rf.read(q, k, v, rule=name), rf.read(q, k, v, rule=rules.get({"name": name, "gamma": 2.0}))
        torch.testing.assert_close(halved, plain / 2)


class TestVarianceTheory:
    @pytest.mark.parametrize("n", [1, 16, 4096])
    def test_closed_forms(self, n: int) -> None:
        """E[ReLU] = 1/sqrt(2 pi), E[ReLU^2] = 1/2, E[ReLU^4] = 3/2; quadrature to 1e-6."""
        for name, variance in (("relu_plain", n / 2), ("relu", 1.0), ("relu2", 1.0), ("relu_seqlen", 0.5 / n)):
            rule = rules.get(name)
            assert isinstance(rule, rules.Pointwise)
            assert rule.read_variance(n) == pytest.approx(variance, rel=1e-6)
        assert rules.Relu().moments(1)[0] == pytest.approx(math.sqrt(2) / math.sqrt(2 * math.pi), rel=1e-6)

    def test_correlated_values_as_the_notes_say(self) -> None:
        """1 + 0.318 rho (n - 1): about 17 at rho = 0.05, n = 1024."""
        variance = rules.Relu().read_variance(1024, correlation=0.05)
        assert variance == pytest.approx(1 + 0.05 * 1023 / math.pi, rel=1e-6)
        assert variance == pytest.approx(17.3, abs=0.05)


class TestARuleOfOnesOwn:
    def use_everywhere(self, name: str) -> None:
        """In read, in the FFN, in attention and in the model."""
        out = rf.read(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4), rule=name)
        assert torch.isfinite(out).all()
        config = rf.ModelConfig.preset(
            "tiny", vocab_size=20, ffn=name, encoder_attention=name, decoder_attention=name, cross_attention=name
        )
        logits = rf.ReLUFormer(config)(torch.tensor([[5, 6, 7]]), torch.tensor([[1, 8]])).logits
        assert torch.isfinite(logits).all()
        assert rf.ModelConfig(**config.model_dump(mode="json")) == config

    def test_a_pointwise_function(self) -> None:
        @rules.register("softplus_mean")
        def softplus_mean(scores: Tensor, n: Tensor) -> Tensor:
            return torch.nn.functional.softplus(scores) / n

        assert "softplus_mean" in rules.names()
        self.use_everywhere("softplus_mean")

    def test_the_same_definition_again_takes_the_place_of_the_first(self) -> None:
        """As of a cell of a notebook that is run twice."""
        cell = "@rules.register('steep')\ndef steep(scores, n):\n    return factor * torch.relu(scores) / n"
        names = {"rules": rules, "torch": torch, "__name__": "__main__"}
        q = torch.randn(1, 1, 3, 4)
        for factor in (1.0, 2.0):
            exec(cell, {**names, "factor": factor})
            plain = rf.read(q, q, q, rule="relu_seqlen")
            torch.testing.assert_close(rf.read(q, q, q, rule="steep"), factor * plain)
        with pytest.raises(ArgumentError, match="registered already"):
            exec(cell, {**names, "__name__": "elsewhere"})

    def test_a_subclass_of_softmax_with_weights_of_its_own_is_not_read_as_softmax(self) -> None:
        @rules.register("sharp")
        @dataclass(frozen=True)
        class Sharp(rules.Softmax):
            def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
                return super().normalize(4 * scores, visible)

        q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 9, 8)
        torch.testing.assert_close(rf.read(q, k, k, rule="sharp"), rf.read(4 * q, k, k, rule="softmax"))
        with pytest.raises(ArgumentError, match="impl='sdpa' cannot read rule 'sharp' here: it reads only softmax"):
            rf.read(q, k, k, rule="sharp", impl="sdpa")

    def test_a_rowwise_function_with_an_output_norm(self) -> None:
        @rules.register("relu_share", kind="rowwise", output_norm="layer_norm")
        def relu_share(scores: Tensor, visible: Tensor) -> Tensor:
            positive = torch.relu(scores) * visible
            return positive / (1 + positive.sum(-1, keepdim=True))

        self.use_everywhere("relu_share")
        assert rules.get("relu_share").output_norm == "layer_norm"

    def test_a_plugin_file(self, tmp_path: Path) -> None:
        plugin = tmp_path / "my_rules.py"
        plugin.write_text(
            textwrap.dedent("""
                import torch
                from reluformer import rules

                @rules.register("gelu_mean")
                def gelu_mean(scores, n):
                    return torch.nn.functional.gelu(scores) / n
            """)
        )
        assert rules.load_plugin(plugin) == ("gelu_mean",)
        self.use_everywhere("gelu_mean")

    def test_plugins_of_one_file_name_do_not_take_each_others_place(self, tmp_path: Path) -> None:
        source = "from reluformer import rules\n@rules.register('mine')\ndef mine(scores, n): return scores.relu()"
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "my_rules.py").write_text(source)
        assert rules.load_plugin(tmp_path / "a" / "my_rules.py") == ("mine",)
        with pytest.raises(ArgumentError, match="registered already"):
            rules.load_plugin(tmp_path / "b" / "my_rules.py")

    def test_numbers_of_ones_own_rule_are_checked(self) -> None:
        @rules.register("kth")
        @dataclass(frozen=True)
        class Kth(rules.ReluPlain):
            k: int = 3
            t: float = 1

        assert rules.get({"name": "kth", "k": "4", "t": 0.5}) == Kth(4, 0.5)
        assert type(rules.get({"name": "kth", "k": "4"}).k) is int  # type: ignore[attr-defined]
        with pytest.raises(ArgumentError, match="rule 'kth': k must be a finite number, got 'three'"):
            rules.get({"name": "kth", "k": "three"})

    def test_a_plugin_with_a_dataclass_and_postponed_annotations(self, tmp_path: Path) -> None:
        plugin = tmp_path / "shifted.py"
        plugin.write_text(
            textwrap.dedent("""
                from __future__ import annotations
                from dataclasses import dataclass
                from reluformer import rules

                @rules.register("shifted")
                @dataclass(frozen=True)
                class Shifted(rules.ReluPlain):
                    by: float = 1.0

                    def activate(self, scores, n):
                        return (scores - self.by).relu()
            """)
        )
        for _ in range(2):
            assert rules.load_plugin(plugin) == ("shifted",)
        assert rules.spec(rules.get({"name": "shifted", "by": "5e-1"})) == {"name": "shifted", "by": 0.5}

    @pytest.mark.parametrize("kind", ["pointwise", "rowwise"])
    def test_default_arguments_of_a_function_are_options(self, kind: Any) -> None:
        @rules.register("powered", kind=kind)
        def powered(scores: Tensor, n: Tensor, power: float = 1.0, *, shift: int = 0, squared: bool = False) -> Tensor:
            activation = (scores - shift).relu() ** power
            return activation.square() if squared else activation

        scores = torch.tensor([[3.0, -1.0, 5.0]])
        n = torch.tensor([[3.0]])
        rule = rules.get({"name": "powered", "power": "5e-1", "shift": 1, "squared": True})
        assert rules.spec(rule) == {"name": "powered", "power": 0.5, "shift": 1, "squared": True}
        assert rules.get(rules.spec(rule)) == rule != rules.get("powered")
        torch.testing.assert_close(rule.weights(scores, n, None), torch.tensor([[2.0, 0.0, 4.0]]))
        torch.testing.assert_close(rules.get("powered").weights(scores, n, None), scores.relu())
        with pytest.raises(ArgumentError, match="has no option 'pover'; did you mean 'power'"):
            rules.get({"name": "powered", "pover": 2})
        self.use_everywhere("powered")

    @pytest.mark.parametrize("use", ["@rules.register", "@rules.register()", "@rules.register('')"])
    def test_a_rule_without_a_name_is_refused_with_the_right_form(self, tmp_path: Path, use: str) -> None:
        plugin = tmp_path / "nameless.py"
        plugin.write_text(f"from reluformer import rules\n{use}\ndef mine(scores, n): return scores.relu()\n")
        name = "mine" if use.endswith("register") else "my_rule"
        with pytest.raises(ArgumentError, match=re.escape(f'a rule needs a name: write @rules.register("{name}")')):
            rules.load_plugin(plugin)

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("x = 1", "registers no rule"),
            (
                "from reluformer import rules\n@rules.register('x')\ndef f(s, n, power): return s",
                "parameter 'power' has no default",
            ),
            (
                "from reluformer import rules\n@rules.register('x')\ndef f(s, n, parts=()): return s",
                "'parts' is of type tuple",
            ),
            (
                "from reluformer import rules\n@rules.register('x')\ndef f(s, n, weights=1): return s",
                "cannot be named 'weights'",
            ),
            ("import no_such_module_here", "ModuleNotFoundError"),
            ("from reluformer import rules\n@rules.register('relu')\ndef f(s, n): return s", "registered already"),
            ("from reluformer import rules\nrules.register('x')(3)", "expected a function or a class, got int"),
            ("from reluformer import rules\nrules.register('x', kind='both')(print)", "valid: pointwise, rowwise"),
            ("from reluformer import rules\nrules.register('x')(dict)", "must derive from rules.Pointwise"),
        ],
    )
    def test_a_bad_plugin_says_why(self, tmp_path: Path, source: str, message: str) -> None:
        plugin = tmp_path / "bad.py"
        plugin.write_text(source)
        with pytest.raises(ArgumentError, match=message):
            rules.load_plugin(plugin)

    def test_a_missing_plugin(self, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="no such file"):
            rules.load_plugin(tmp_path / "none.py")

    def install(self, folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, entry: str) -> None:
        """A package as pip would leave it: a module and its metadata."""
        (folder / "their_rules.py").write_text(textwrap.dedent(source))
        info = folder / "their_rules-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-rules\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[reluformer.rules]\n{entry}\n")
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "their_rules", raising=False)

    def test_an_entry_point(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = "def swish(scores, n):\n    return scores.sigmoid() * scores / n\n"
        self.install(tmp_path, monkeypatch, source, "swish_mean = their_rules:swish")
        assert metadata.entry_points(group="reluformer.rules").names == {"swish_mean"}
        assert "swish_mean" in rules.names()
        self.use_everywhere("swish_mean")

    def test_an_entry_point_that_names_a_decorated_function(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = """
            from reluformer import rules

            @rules.register("relu_part", kind="rowwise")
            def relu_part(scores, visible):
                return scores.relu() * visible
        """
        self.install(tmp_path, monkeypatch, source, "part = their_rules:relu_part")
        assert "relu_part" in rules.names()
        assert "part" not in rules.names()

    def test_an_entry_point_that_asks_for_the_rules_itself(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = (
            "from reluformer import rules\nknown = rules.names()\n\ndef mine(scores, n):\n    return scores.relu()\n"
        )
        self.install(tmp_path, monkeypatch, source, "asking = their_rules:mine")
        assert "asking" in rules.names()

    def test_a_broken_entry_point_says_so_each_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.install(tmp_path, monkeypatch, "import no_such_module_here", "mine = their_rules:mine")
        for _ in range(2):
            with pytest.raises(ArgumentError, match=r"'mine = their_rules:mine'.*no_such_module_here"):
                rules.names()


class TestReluExp:
    def test_what_a_whole_row_has_in_common_changes_nothing(self) -> None:
        scores, n = torch.randn(3, 5, 40, dtype=torch.float64), torch.tensor(40.0, dtype=torch.float64)
        rule = rules.get("relu_exp")
        moved = scores + torch.randn(3, 5, 1, dtype=torch.float64) * 100
        torch.testing.assert_close(rule.weights(moved, n, None), rule.weights(scores, n, None))

    def test_no_row_dies_of_what_it_has_in_common_and_low_scores_weigh_exactly_nothing(self) -> None:
        visible = torch.arange(6) < torch.arange(1, 7)[:, None]
        weights = rules.get("relu_exp").weights(
            -50 + torch.randn(9, 6, 6), visible.sum(-1, keepdim=True).float(), visible
        )
        assert (weights.sum(-1) > 0).all()
        assert weights[..., 5, :].eq(0).float().mean() > 0.2

    def test_scores_that_would_overflow_stay_finite(self) -> None:
        scores = torch.tensor([[900.0, 800.0, *8 * [-900.0]]], requires_grad=True)
        weights = rules.get("relu_exp").weights(scores, torch.tensor([[10.0]]), None)
        weights[0, 0].backward()
        assert scores.grad is not None and scores.grad.isfinite().all()
        torch.testing.assert_close(weights.detach(), torch.tensor([[0.5, 0.5, *8 * [0.0]]]))


class TestReluRest:
    """Softmax in two parts: few slots by weight, and the mean of all for the rest."""

    @pytest.mark.parametrize(("level", "deviation"), [(0.5, 0.3), (2.0, 1.5), (-0.4, 0.8), (9.0, 8.0), (1.0, 0.1)])
    def test_the_rest_is_the_mean_of_normal_scores_cut_at_one(self, level: float, deviation: float) -> None:
        places = torch.linspace(-12, 12, 400_001, dtype=torch.float64)
        density = torch.exp(-places.square() / 2) / math.sqrt(2 * math.pi)
        cut = torch.exp(deviation * places - level).clamp(max=1)
        expected = 7 * torch.trapezoid(cut * density, places)
        given = (torch.tensor(x, dtype=torch.float64) for x in (level, deviation, 7.0))
        torch.testing.assert_close(rules.rest_mass(*given), expected, rtol=1e-7, atol=1e-9)

    def test_the_rest_of_a_very_sharp_row_is_finite_with_its_gradient(self) -> None:
        deviation = torch.tensor([0.1, 11.0, 13.0, 40.0, 300.0], requires_grad=True)
        rest = rules.rest_mass(1.1 * deviation, deviation, torch.tensor(512.0))
        assert (rest[1:] < rest[:-1]).all() and rest[-1] > 512 * NormalDist().cdf(-1.1)
        rest.sum().backward()
        assert deviation.grad is not None and deviation.grad.isfinite().all()

    def test_a_flat_row_reads_the_mean_and_every_row_sums_to_one(self) -> None:
        v = torch.randn(1, 1, 60, 4, dtype=torch.float64)
        flat, k = torch.zeros(1, 1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 60, 8, dtype=torch.float64)
        weights, _ = rf.weights(flat, k, {"name": "relu_rest", "spread": 1.0})  # with 0.1 deviations at least
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / 60))
        read = rf.read(flat, k, v, rule={"name": "relu_rest", "spread": 1.0})
        torch.testing.assert_close(read, v.mean(2, keepdim=True))
        q = 3 * torch.randn(1, 1, 60, 8, dtype=torch.float64)
        row_sum = rf.weights(q, k, "relu_rest", causal=True)[1].row_sum
        torch.testing.assert_close(row_sum, torch.ones_like(row_sum))

    @pytest.mark.parametrize("chance", [0.6, 0.77])
    def test_it_is_far_nearer_to_softmax_than_its_sparse_part_alone(self, chance: float) -> None:
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 4, 512, 32) for _ in range(3))
        softmax = rf.read(q, k, v, rule="softmax")
        parts = {"spread": -1.0, "chance": chance}
        whole, stats = rf.read(q, k, v, rule={"name": "relu_rest", **parts}, return_stats=True)
        alone = rf.read(q, k, v, rule={"name": "relu_chance", **parts})
        assert stats.zero_fraction.mean() > 0.85
        assert (whole - softmax).norm() < 0.4 * (alone - softmax).norm()

    def test_slots_without_a_weight_of_their_own_share_the_rest_evenly(self) -> None:
        torch.manual_seed(0)
        q, k = torch.randn(1, 1, 5, 8), torch.randn(1, 1, 40, 8)
        weights, stats = rf.weights(q, k, "relu_rest")
        for row, zeros in zip(weights[0, 0], stats.zero_fraction[0, 0], strict=True):
            assert int(torch.isclose(row, row.min(), rtol=1e-5).sum()) == round(float(zeros) * 40) > 20

    def test_a_slot_fades_with_its_gate(self) -> None:
        q, k = torch.randn(1, 1, 6, 8), torch.randn(1, 1, 6, 8)
        forget = torch.tensor([0.0, 0.0, -50.0, -50.0, -50.0, -50.0])  # the first two positions are forgotten
        weights, _ = rf.weights(q, k, "relu_rest", causal=True, gate=forget)
        assert (weights[0, 0, 2:, :2] < 1e-6).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, 6))

    def test_a_cap_is_refused(self) -> None:
        with pytest.raises(ArgumentError, match="no row can die; drop the option `cap`"):
            rules.get({"name": "relu_rest", "cap": 0.5})


class TestCap:
    """No level lies nearer to the best score of its row than the cap."""

    # Equal scores, one slot, one hit among many, a level far above all scores, and one below the capped one.
    ROWS = (
        ([0.3] * 6, 6, 0.0),
        ([0.3] * 6, 1, 0.0),
        ([9.0, 0.0, 0.1, -0.2, 0.0, 0.1], 6, 0.0),
        ([1.0, 0.5, 0.2, 0.1, 0.0, -0.1], 6, 50.0),
        ([1.0, 0.5, 0.2, 0.1, 0.0, -0.1], 4, -1.0),
    )

    @pytest.mark.parametrize(("scores", "seen", "threshold"), ROWS)
    def test_it_moves_the_level_as_its_formula_says(self, scores: list[float], seen: int, threshold: float) -> None:
        row, visible = torch.tensor([scores], dtype=torch.float64), torch.arange(6) < seen
        n = torch.tensor([[float(seen)]], dtype=torch.float64)
        free = rules.ReluExp(threshold=threshold, spread=1.0, growth=0.0)
        mean, deviation = row[:, :seen].mean(), (row[:, :seen].var(correction=0) + free.FLOOR).sqrt()
        level = torch.minimum(mean + deviation + threshold, row[:, :seen].max() - 0.5)
        raised = torch.relu(torch.expm1(row - level)) * visible
        weights = rules.ReluExp(threshold=threshold, spread=1.0, growth=0.0, cap=0.5).weights(row, n, visible)
        torch.testing.assert_close(weights, raised / (0.1 + raised.sum()))
        assert float(weights.max()) >= math.expm1(0.5) / (0.1 + seen * math.expm1(0.5)) - 1e-12

    def test_a_row_that_is_far_enough_below_its_best_score_is_left_alone(self) -> None:
        scores, n = torch.randn(50, 40, dtype=torch.float64), torch.tensor(40.0, dtype=torch.float64)
        free, capped = rules.ReluExp(), rules.ReluExp(cap=1e-3)
        assert torch.equal(capped.weights(scores, n, None), free.weights(scores, n, None))

    def test_the_gradient_of_a_capped_level_goes_to_the_first_of_the_best(self) -> None:
        scores = torch.tensor([[1.0, 3.0, 2.5, 3.0]], dtype=torch.float64, requires_grad=True)
        level = rules.Level(threshold=10.0, cap=1.0).of_scores(scores, torch.tensor([[4.0]]), None)
        assert level.item() == 2.0
        (gradient,) = torch.autograd.grad(level.sum(), scores)
        assert gradient.tolist() == [[0.0, 1.0, 0.0, 0.0]]

    def test_weights_are_differentiable_through_it(self) -> None:
        scores = torch.randn(7, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
        visible = torch.arange(9) < torch.tensor([[9], [1], [2], [5], [9], [3], [0]])
        n = visible.sum(-1, keepdim=True).clamp_min(1).double()
        rule = rules.ReluExp(threshold=2.0, cap=0.7)
        assert torch.autograd.gradcheck(lambda x: rule.weights(x, n, visible), (scores,))

    def test_a_row_that_sees_nothing_weighs_nothing(self) -> None:
        scores = torch.full((2, 3), float("-inf"), dtype=torch.float64)
        hidden = torch.zeros(2, 3, dtype=torch.bool)
        weights = rules.ReluExp(cap=1.0).weights(scores, torch.ones(2, 1, dtype=torch.float64), hidden)
        assert torch.equal(weights, torch.zeros(2, 3, dtype=torch.float64))

    def test_it_is_kept_while_a_rule_is_eased_in_and_in_files(self) -> None:
        rule = rules.get({"name": "relu_exp", "cap": 1.5})
        assert rule.eased(0.3).cap == 1.5
        assert rules.spec(rule) == {"name": "relu_exp", "cap": 1.5}
