from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from reluformer import rules
from reluformer.layers import TokenRead
from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.rules import RowCentered
from reluformer.training.config import TrainingConfig
from reluformer.training.loop import Trainer
from reluformer.training.optimizer import RuleWarmup
from reluformer.training.progress import SilentProgress
from reluformer.training.run import RunDirectory
from reluformer.translation.task import train

CENTRED = {"decoder_attention": "relu_exp", "cross_attention": "relu_exp"}


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
        for name in ("_forward", "_validate"):
            plain = getattr(Trainer, name)

            def noting(self: Trainer, *args: Any, name: str = name, plain: Any = plain, **options: Any) -> Any:
                own = all(r == centred() for r in TestRuleWarmup().rules_of(self.model) if isinstance(r, RowCentered))
                seen.append((name, own))
                return plain(self, *args, **options)

            monkeypatch.setattr(Trainer, name, noting)
        recipe = make_recipe(model=CENTRED, updates=4, rule_warmup=3, validate_every=2, validate_bleu=0)
        train(recipe, tmp_path / "run", prepared=prepared, progress=SilentProgress())
        update, validation = ("_forward", False), ("_validate", True)
        assert seen == [update, update, validation, ("_forward", True), ("_forward", True), validation]

    def test_training_goes_on_in_the_middle_of_it(self, make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
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
