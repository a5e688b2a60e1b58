"""The files of the study: complete, consistent, and every run of them can be built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from reluformer import rules
from reluformer.errors import ConfigError, UnknownNameError
from reluformer.language.recipe import LanguageModelRecipe, LanguageTrainingConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.models.language_model import LanguageModel
from reluformer.study import experiment
from reluformer.study.evaluation import MEASURES as EVALUATED
from reluformer.study.experiment import SCALES, Experiment
from reluformer.study.measures import EVALUATION
from reluformer.study.plan import make_plan
from reluformer.study.synthetic import RecallModel, RecallTask
from reluformer.study.trainings import model_of, register_controls
from reluformer.training.config import TrainingConfig
from reluformer.translation.recipe import ModelRecipe

NAMES = [path.stem for path in (Path(experiment.__file__).parent / "experiments").glob("*.yaml")]


@pytest.fixture
def controls_known() -> Iterator[None]:
    """The controls are registered inside a test only: other tests go through all rules."""
    before = set(rules.names())
    register_controls()
    yield
    for name in set(rules.names()) - before:
        rules.unregister(name)


def test_every_claim_of_the_paper_has_an_experiment() -> None:
    claims = {claim for name in NAMES for claim in experiment.load(name).claims}
    assert {claim for claim in claims if claim.startswith("C")} == {f"C{number}" for number in range(1, 11)}
    assert set(experiment.names()) == set(NAMES) >= {"ffn", "slots", "recall", "variance", "regularizer", "length"}


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_gets_a_verdict(name: str) -> None:
    one = experiment.load(name)
    assert {judgement.claim for judgement in one.verdicts} == set(one.claims)


@pytest.mark.usefixtures("controls_known")
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_every_run_can_be_built(name: str, scale: experiment.Scale) -> None:
    plan = make_plan([name], scale, 1, sweeps=True)
    models = {}
    for run in plan.runs.values():
        content = run.content
        if run.kind == "training":
            TrainingConfig(**{"lr": 1e-3, **content["training"]})
            recipe = ModelRecipe(**{**model_of(content["model"]), "encoder_layers": 1, "decoder_layers": 1})
            models[repr(recipe)] = recipe
        elif run.kind == "language":
            LanguageTrainingConfig(**{"lr": 1e-3, **content["training"]})
            with torch.device("meta"):
                assert LanguageModel(LanguageModelRecipe(**{**content["model"], "layers": 1}).with_vocabulary(400))
        elif run.kind == "recall":
            assert RecallModel(RecallTask(**content["task"]), rule=content["rule"], **content["model"])
        elif run.kind == EVALUATION:
            assert set(content["measures"]) <= set(EVALUATED)
    for recipe in models.values():
        with torch.device("meta"):
            assert ReLUFormer(recipe.with_vocabulary(400))


def test_unknown_names_list_the_valid_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown experiment 'varience'; did you mean 'variance'\?.*recall"):
        experiment.load("varience")
    with pytest.raises(UnknownNameError, match=r"unknown scale 'tiny'; .*paper, quick, small"):
        experiment.check_scale("tiny")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v["verdicts"][0]["conditions"][0].update(metric="los"), "unknown metric 'los'; did you mean 'loss'"),
        (lambda v: v["verdicts"][0]["conditions"][0].update(test="above"), "test 'above' needs a limit"),
        (lambda v: v["verdicts"][0]["conditions"][0].update(limit=1.0), "takes no limit"),
        (lambda v: v["figures"][0].update(metric="lss"), "unknown metric 'lss'; did you mean 'loss'"),
        (lambda v: v["figures"][0].update(kind="lines", x="slts"), "there is no axis 'slts'"),
        (lambda v: v["claims"].update(gates=v["claims"]["C1"]), "claim 'gates': a letter and a number"),
    ],
)
def test_mistakes_are_told_before_anything_runs(change: Callable[[Any], None], message: str) -> None:
    values = experiment.load("ffn").model_dump(mode="json", exclude_none=True)
    change(values)
    with pytest.raises(ConfigError, match=message):
        Experiment.parse(values, where="ffn.yaml")


def test_files_beside_the_experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(experiment.__file__).parent / "experiments" / "ffn.yaml"
    for name in ("ffn.yaml", "ffn.yaml~"):
        (tmp_path / name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(experiment, "declarations", lambda kind: tmp_path)
    assert experiment.names() == ("ffn",)
    (tmp_path / "gates.yaml").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"gates\.yaml: its name is 'ffn'"):
        experiment.names()


def test_a_verdict_on_a_label_that_is_not_in_the_grid_is_refused() -> None:
    values = experiment.load("ffn").model_dump(mode="json")
    values["verdicts"][0]["conditions"][0]["a"] = {"rule": "softmaxx"}
    with pytest.raises(ConfigError, match="axis 'rule' has no choice 'softmaxx'; did you mean 'softmax'"):
        Experiment.parse(values, where="ffn.yaml")
