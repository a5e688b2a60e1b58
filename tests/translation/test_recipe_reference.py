"""The reference of recipes: complete, up to date, and with examples that work."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from reluformer.cli import app
from reluformer.config import read_yaml
from reluformer.errors import ConfigError
from reluformer.translation import recipe_reference
from reluformer.translation.recipe import Recipe

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "configs" / "recipe.schema.json"
RECIPES = sorted((ROOT / "configs").glob("*.yaml"))
UPDATE = "the config classes have changed; run: make reference"
SPLIT = {"path": "data/valid.jsonl"}
# what an example needs beside it
COMPANIONS: dict[str, dict[str, Any]] = {
    "data.segments.join_across_groups": {"data.segments.join_documents": True},
    "data.segments.join_seed": {"data.segments.join_documents": "random"},
    "data.segments.join_shortest": {"data.segments.join_documents": "random"},
    "data.train.format": {"data.train.path": "a.po"},
    "data.valid.format": {"data.valid.path": "a.po"},
    "data.test.format": {"data.test.path": "a.po"},
    "training.patience": {"data.valid": SPLIT},
    "training.validate_bleu": {"data.valid": SPLIT},
    **{
        f"data.{split}.{one}": {f"data.{split}.{other}": "a.txt"}
        for split in ("train", "valid", "test")
        for one, other in (("src", "tgt"), ("tgt", "src"))
    },
    **{
        f"data.{split}.{key}": {f"data.{split}.path": "a.tsv"}
        for split in ("train", "valid", "test")
        for key in ("documents", "weight")
    },
}


def paths_and_examples() -> Iterator[tuple[str, Any]]:
    for section in recipe_reference.sections():
        for key in section.keys:
            value = yaml.safe_load(key.example)[key.name]
            yield from ((f"{path}.{key.name}".lstrip("."), value) for path in section.paths)


def with_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe as plain data: a corpus, and some values by their paths."""
    recipe: dict[str, Any] = {}
    if not any(path.startswith("data.train.") or path == "data" for path in values):
        values = {"data.train": {"path": "data/train.jsonl"}, **values}
    for path, value in values.items():
        *outer, last = path.split(".")
        inner = recipe
        for name in outer:
            inner = inner.setdefault(name, {})
        inner[last] = value
    return recipe


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8") == recipe_reference.markdown(), UPDATE


def test_the_schema_is_up_to_date() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == recipe_reference.json_schema(), UPDATE


def test_every_key_has_a_meaning() -> None:
    keys = [key for section in recipe_reference.sections() for key in section.keys]
    assert len(keys) > 80
    assert [key.name for key in keys if len(key.meaning) < 10 or not key.type or not key.default] == []
    assert [section.paths for section in recipe_reference.sections() if len(section.meaning) < 10] == []


@pytest.mark.parametrize(("path", "example"), [pytest.param(*one, id=one[0]) for one in paths_and_examples()])
def test_every_example_works(path: str, example: Any) -> None:
    recipe = Recipe(**with_values({**COMPANIONS.get(path, {}), path: example}))
    assert recipe.data.train is not None


def test_the_keys_of_the_model_are_those_of_its_config() -> None:
    (model,) = (section for section in recipe_reference.sections() if section.paths == ("model",))
    defaults = {key.name: key.default for key in model.keys}
    assert defaults["width"] == "by `size`: tiny `192`, iwslt `512`, base `512`"
    assert defaults["cross_attention"] == "by `architecture`: reluformer `relu`, transformer `softmax`"
    assert "vocab_size" not in defaults, "it comes from the tokenizer"


@pytest.fixture(scope="module")
def validator() -> Any:
    return pytest.importorskip("jsonschema_rs").validator_for(recipe_reference.json_schema())


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_editors_accept_the_recipes(path: Path, validator: Any) -> None:
    validator.validate(read_yaml(path))
    line = path.read_text(encoding="utf-8").splitlines()[0]
    found = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", line)
    assert found is not None and path.parent / found[1] == SCHEMA


@pytest.mark.parametrize(
    "values",
    [
        {"training.lrr": 1},
        {"training.lr": "fast"},
        {"training.updates": -1},
        {"model.vocab_size": 100},
        {"model.ffn": {"gamma": 2}},
        {"data.train": {"pth": "a.jsonl"}},
        {"decoding.stop": "never"},
    ],
    ids=str,
)
def test_editors_refuse_what_training_refuses(values: dict[str, Any], validator: Any) -> None:
    assert not validator.is_valid(with_values(values))
    with pytest.raises(ConfigError):
        Recipe(**with_values(values))


def test_the_command_explains_a_key_and_a_section() -> None:
    answer = CliRunner().invoke(app, ["recipe", "training.lr"]).stdout
    assert answer == (
        "training.lr\n    Highest learning rate, reached at the end of the warm-up.\n"
        "    number, > 0, ≤ 1e+30; default: 0.001; example: lr: 0.001\n"
    )
    assert "training.regularizer.margin" in CliRunner().invoke(app, ["recipe", "training"]).stdout
    assert "decoding.beam" in CliRunner().invoke(app, ["recipe"]).stdout
    with pytest.raises(ConfigError, match=r"no key 'training\.lrr'; did you mean 'lr'"):
        recipe_reference.explain("training.lrr")


def test_the_command_prints_schema_and_page() -> None:
    assert json.loads(CliRunner().invoke(app, ["recipe", "--schema"]).stdout) == recipe_reference.json_schema()
    assert CliRunner().invoke(app, ["recipe", "--markdown"]).stdout == recipe_reference.markdown()
