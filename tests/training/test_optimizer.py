"""What happens to the weights in an update: averages, learning rate, and rules that are eased in."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from reluformer import rules
from reluformer.errors import ArgumentError, ConfigError
from reluformer.layers import TokenRead
from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.rules import RowCentered
from reluformer.training.config import TrainingConfig
from reluformer.training.optimizer import MovingAverage, RuleWarmup, learning_rate, mean_of
from reluformer.training.progress import SilentProgress
from reluformer.training.run import RunDirectory
from reluformer.translation.task import TranslationObjective, train

CENTRED = {"decoder_attention": "relu_exp", "cross_attention": "relu_exp"}


def scalar_module(value: float) -> nn.Linear:
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, value)
    return module


def test_moving_average_by_hand() -> None:
    module = scalar_module(0.0)
    average = MovingAverage(module, decay=0.5)
    nn.init.constant_(module.weight, 8.0)
    average.update(1)  # early decay (1 + 1) / (10 + 1)
    assert average.average[0].item() == pytest.approx(8 * 9 / 11)
    average.update(100)
    assert average.average[0].item() == pytest.approx((8 * 9 / 11 + 8) / 2)


def test_in_place_swaps_and_swaps_back_even_after_an_error() -> None:
    module = scalar_module(1.0)
    average = MovingAverage(module, decay=0.5)
    nn.init.constant_(module.weight, 3.0)
    inside = []

    def fail() -> None:
        with average.in_place():
            inside.append(module.weight.item())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert inside == [1.0]
    assert module.weight.item() == 3.0
    assert average.average[0].item() == 1.0


def test_mean_of_several_states() -> None:
    states = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, 6.0])}]
    mean = mean_of(states)
    assert mean["w"].tolist() == [2.0, 4.0]
    assert mean["w"].dtype == torch.float32


def test_nothing_has_no_mean() -> None:
    with pytest.raises(ArgumentError, match="no weights"):
        mean_of([])


def rates(at: list[int], **values: object) -> list[float]:
    config = TrainingConfig(lr=0.01, **values)
    return [learning_rate(config, update) for update in at]


def test_warm_up_is_linear_and_reaches_the_highest_rate() -> None:
    assert rates([1, 2, 4], warmup=4) == pytest.approx([0.0025, 0.005, 0.01])


def test_inverse_sqrt_halves_when_updates_are_four_times_the_warm_up() -> None:
    assert rates([4, 16, 64], warmup=4, schedule="inverse_sqrt") == pytest.approx([0.01, 0.005, 0.0025])


def test_cosine_is_half_in_the_middle_and_nearly_zero_at_the_end() -> None:
    middle, last = rates([15, 24], warmup=5, updates=24, schedule="cosine")
    assert middle == pytest.approx(0.005)
    assert last == pytest.approx(0.01 * 0.5 * (1 + math.cos(math.pi * 19 / 20)))


def test_constant_stays() -> None:
    assert rates([1, 100], warmup=0, schedule="constant") == [0.01, 0.01]


def test_inverse_sqrt_without_warm_up_starts_at_the_highest_rate() -> None:
    assert rates([1, 4], warmup=0) == pytest.approx([0.01, 0.005])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"schedule": "cosine", "updates": 10, "warmup": 10}, "warmup"),
        ({"ema_decay": 0.9, "average_last": 2}, "unset one"),
        ({"average_last": 9, "keep_checkpoints": 3}, "keep_checkpoints"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"learning_rate": 1}, "unknown key"),
    ],
)
def test_what_does_not_fit_together_is_refused(values: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        TrainingConfig(**values)


def centred() -> RowCentered:
    rule = rules.get("relu_exp")
    assert isinstance(rule, RowCentered)
    return rule


class TestEasing:
    def test_it_begins_close_to_softmax_and_ends_with_the_rule_itself(self) -> None:
        scores, n = torch.randn(6, 8, 30, dtype=torch.float64), torch.tensor(30.0, dtype=torch.float64)
        begun = centred().eased(0).weights(scores, n, None)
        assert (begun - torch.softmax(scores, -1)).abs().max() < 0.01
        assert (begun > 0).all()
        assert centred().eased(1) == centred()

    def test_zeros_become_more_all_the_way(self) -> None:
        scores, n = 2 * torch.randn(20, 50), torch.tensor(50.0)
        zeros = [int((centred().eased(step / 5).weights(scores, n, None) == 0).sum()) for step in range(6)]
        assert zeros == sorted(zeros) and zeros[0] < zeros[2] < zeros[5]


class TestRuleWarmup:
    def rules_of(self, model: Any) -> list[Any]:
        return [module.rule for module in model.modules() if isinstance(module, TokenRead)]

    def test_a_function_of_the_step_that_leaves_other_rules_alone(self) -> None:
        model = ReLUFormer(ModelConfig(vocab_size=40, width=16, heads=2, encoder_layers=1, decoder_layers=1, **CENTRED))
        own = self.rules_of(model)
        warmup = RuleWarmup(model, 10)
        warmup.ease(5)
        eased = self.rules_of(model)
        assert [rule == centred().eased(0.5) for rule in eased] == [isinstance(rule, RowCentered) for rule in own]
        assert all(new is old for new, old in zip(eased, own, strict=True) if not isinstance(old, RowCentered))
        warmup.ease(12)
        assert self.rules_of(model) == own
        warmup.ease(1)
        warmup.restore()
        assert self.rules_of(model) == own

    def test_training_eases_and_validation_does_not(
        self, make_recipe: Any, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[tuple[str, bool]] = []
        plain = TranslationObjective.forward

        def noting(objective: TranslationObjective, *args: Any) -> Any:
            rules_now = [rule for rule in self.rules_of(objective.model) if isinstance(rule, RowCentered)]
            phase = ("update" if objective.training else "validation", all(rule == centred() for rule in rules_now))
            if not seen or seen[-1] != phase or objective.training:  # validation has several batches
                seen.append(phase)
            return plain(objective, *args)

        monkeypatch.setattr(TranslationObjective, "forward", noting)
        recipe = make_recipe(model=CENTRED, updates=4, rule_warmup=3, validate_every=2, validate_bleu=0)
        train(recipe, tmp_path / "run", prepared=prepared, progress=SilentProgress())
        update, validation = ("update", False), ("validation", True)
        assert seen == [update, update, validation, ("update", True), ("update", True), validation]

    def test_training_resumes_in_the_middle_of_it(self, make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
        options = dict(model=CENTRED, rule_warmup=6, log_every=1, validate_bleu=0, ema_decay=None, schedule="constant")
        at_once = make_recipe(updates=8, checkpoint_every=4, **options)
        train(at_once, tmp_path / "at_once", prepared=prepared, progress=SilentProgress())
        logs = [event["loss"] for event in RunDirectory(tmp_path / "at_once").log.events("train")]

        class Stopping(SilentProgress):
            def update(self, report: Any) -> None:
                if report.step == 4:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(at_once, tmp_path / "twice", prepared=prepared, progress=Stopping())
        train(at_once, tmp_path / "twice", prepared=prepared, progress=SilentProgress())
        assert [event["loss"] for event in RunDirectory(tmp_path / "twice").log.events("train")] == logs


@pytest.mark.parametrize(
    ("options", "says"),
    [({"updates": 10, "rule_warmup": 11}, "never ends"), ({"rule_warmup": 5, "compile": True}, "compile")],
)
def test_what_cannot_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TrainingConfig(**options)
