"""Every recipe in configs/ is valid, builds its model at its own size, and trains when it is made small."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch

import reluformer as rf
from reluformer.config import load_yaml
from reluformer.training.progress import SilentProgress
from reluformer.translation.recipe import Recipe
from reluformer.translation.task import train

CONFIGS = Path(__file__).parents[1] / "configs"
RECIPES = sorted(CONFIGS.glob("*.yaml"))
SMALL = [
    *(f"data.{split}={{embedded: {{documents: 12, sentences: [2, 4]}}}}" for split in ("train", "valid", "test")),
    "data.tokenizer={vocab_size: 400}",
    *("model.width=16", "model.heads=2", "model.slots=24", "model.encoder_layers=1", "model.decoder_layers=1"),
    *(
        "training.updates=2",
        "training.warmup=1",
        "training.rule_warmup=1",
        "training.tokens_per_batch=512",
        "training.accumulate=1",
    ),
    *("training.validate_every=2", "training.validate_bleu=0", "training.precision=fp32"),
]


def test_the_recipes_of_the_design_are_there() -> None:
    assert {"demo", "multi30k", "multi30k-sparse", "europarl7-doc", "iwslt14", "europarl7", "wmt14"} <= {
        path.stem for path in RECIPES
    }


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_it_builds_at_its_own_size(path: Path) -> None:
    recipe = load_yaml(Recipe, path)
    with torch.device("meta"):
        model = rf.ReLUFormer(recipe.model_config_for(recipe.data.tokenizer.vocab_size))
    assert model.parameter_count() > 100_000
    assert path.read_text(encoding="utf-8").startswith("# ")


def commands(path: Path) -> list[list[str]]:
    """The arguments of every `reluformer train` in the comments of a recipe."""
    comments = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    lines = "\n".join(comments).replace("\\\n", "").splitlines()
    return [shlex.split(line)[2:] for line in lines if line.startswith("reluformer train ")]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_commands_in_its_comments_work_as_typed(path: Path) -> None:
    for recipe_file, *options in commands(path):
        assert recipe_file == f"configs/{path.name}"
        given = list(zip(options[::2], options[1::2], strict=True))
        assert {option for option, _ in given} <= {"--run", "--init-from", "--set"}
        recipe = load_yaml(Recipe, path, [value for option, value in given if option == "--set"])
        assert recipe.decoding_as_trained.window_tokens == recipe.data.segments.segment_tokens
        assert (recipe.training.regularizer is None) == (recipe.model.architecture == "transformer")


def test_the_commands_are_found() -> None:
    assert [len(commands(CONFIGS / f"{name}.yaml")) for name in ("europarl7-doc", "europarl7", "multi30k")] == [2, 1, 1]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_it_trains_when_made_small(path: Path, tmp_path: Path) -> None:
    recipe = load_yaml(Recipe, path, SMALL)
    result = train(recipe, tmp_path / "run", progress=SilentProgress())
    assert (result.status, result.step) == ("finished", 2)
    assert rf.load(tmp_path / "run").translate_documents([["A lamp."]])[0][0] is not None
