"""The reference of recipes: complete for every task, up to date, and with examples that work."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from reluformer import recipe_reference
from reluformer.cli import app
from reluformer.config import load_yaml, read_yaml
from reluformer.errors import ConfigError
from reluformer.loading import RECIPES, recipe_class

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "configs" / "recipe.schema.json"
SHIPPED = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name != "accelerate")
CORPORA: dict[str, tuple[str, Any]] = {
    "translation": ("data.train", {"path": "data/train.jsonl"}),
    "language": ("data.train", {"path": "data/train.txt"}),
    "images": ("data.gratings", {"train": 100}),
}
"""What a recipe of each task needs at least."""
UPDATE = "the config classes have changed; run: make reference"
SPLITS = ("train", "valid", "test")
# what an example needs beside it
COMPANIONS: dict[str, dict[str, dict[str, Any]]] = {
    "translation": {
        "data.segments.join_across_groups": {"data.segments.join_documents": True},
        "data.segments.join_seed": {"data.segments.join_documents": "random"},
        "data.segments.join_shortest": {"data.segments.join_documents": "random"},
        "training.patience": {"data.valid": {"path": "data/valid.jsonl"}},
        "training.validate_bleu": {"data.valid": {"path": "data/valid.jsonl"}},
        **{f"data.{split}.format": {f"data.{split}.path": "a.po"} for split in SPLITS},
        **{
            f"data.{split}.{one}": {f"data.{split}.{other}": "a.txt"}
            for split in SPLITS
            for one, other in (("src", "tgt"), ("tgt", "src"))
        },
        **{
            f"data.{split}.{key}": {f"data.{split}.path": "a.tsv"}
            for split in SPLITS
            for key in ("documents", "weight")
        },
    },
    "language": {
        "model.learn_offset": {"model.attention": "relu"},
        "training.patience": {"data.valid": {"path": "data/valid.txt"}},
        **{
            f"data.{split}.{key}": {f"data.{split}.path": "a.txt"}
            for split in SPLITS
            for key in ("format", "field", "documents")
        },
    },
    "images": {},
}


def paths_and_examples() -> Iterator[tuple[str, str, Any]]:
    for task in RECIPES:
        for section in recipe_reference.sections(task):
            for key in section.keys:
                value = task if key.name == "task" else yaml.safe_load(key.example)[key.name]
                yield from ((task, f"{path}.{key.name}".lstrip("."), value) for path in section.paths)


def with_values(task: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe as plain data: its task, what it needs at least, and some values by their paths."""
    needed, content = CORPORA[task]
    if not any(path.startswith((f"{needed}.", "data.directory")) or path == "data" for path in values):
        values = {needed: content, **values}
    recipe: dict[str, Any] = {"task": task}
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


@pytest.mark.parametrize(("task", "most"), [("translation", 80), ("language", 60), ("images", 50)])
def test_every_key_has_a_meaning(task: str, most: int) -> None:
    keys = [key for section in recipe_reference.sections(task) for key in section.keys]
    assert len(keys) > most
    assert [key.name for key in keys if len(key.meaning) < 10 or not key.type or not key.default] == []
    assert [section.paths for section in recipe_reference.sections(task) if len(section.meaning) < 10] == []


@pytest.mark.parametrize(
    ("task", "path", "example"), [pytest.param(*one, id=f"{one[0]}-{one[1]}") for one in paths_and_examples()]
)
def test_every_example_works(task: str, path: str, example: Any, validator: Any) -> None:
    values = with_values(task, {**COMPANIONS[task].get(path, {}), path: example})
    validator.validate(values)
    assert recipe_class(values)(**values).data is not None


def test_the_page_has_every_key_of_every_task() -> None:
    parts = dict(zip(RECIPES, re.split(r"^## ", recipe_reference.markdown(), flags=re.MULTILINE)[1:], strict=True))
    for key in ("decoding.beam", "data.source_lang"):
        assert f"| `{key.rpartition('.')[2]}` |" in parts["translation"] and key not in parts["language"]
    for key in ("context", "packed", "field", "qk_norm", "forget"):
        assert f"| `{key}` |" in parts["language"]
    for key in ("directory", "noise", "patch", "pooling"):
        assert f"| `{key}` |" in parts["images"]
    assert "| `lr` |" not in parts["images"], "the keys of training that all tasks share stand there once"


def test_the_keys_of_a_model_are_those_of_its_config() -> None:
    (model,) = (section for section in recipe_reference.sections() if section.paths == ("model",))
    defaults = {key.name: key.default for key in model.keys}
    assert defaults["width"] == "by `size`: tiny `192`, iwslt `512`, base `512`"
    assert defaults["cross_attention"] == "by `architecture`: reluformer `relu`, transformer `softmax`"
    assert "vocab_size" not in defaults, "it comes from the tokenizer"
    (model,) = (section for section in recipe_reference.sections("language") if section.paths == ("model",))
    assert {key.name: key.default for key in model.keys}["width"] == "by `size`: tiny `128`, small `256`, base `768`"


@pytest.fixture(scope="module")
def validator() -> Any:
    return pytest.importorskip("jsonschema_rs").validator_for(recipe_reference.json_schema())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_editors_accept_the_recipes(path: Path, validator: Any) -> None:
    values = read_yaml(path)
    validator.validate(values)
    load_yaml(recipe_class(values), path)
    line = path.read_text(encoding="utf-8").splitlines()[0]
    found = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", line)
    assert found is not None and (path.parent / found[1]).resolve() == SCHEMA


def test_recipes_of_every_task_are_shipped() -> None:
    assert {recipe_class(path) for path in SHIPPED} == set(RECIPES.values())


@pytest.mark.parametrize(
    ("task", "values"),
    [
        ("translation", {"training.lrr": 1}),
        ("translation", {"training.lr": "fast"}),
        ("translation", {"training.updates": -1}),
        ("translation", {"model.vocab_size": 100}),
        ("translation", {"model.ffn": {"gamma": 2}}),
        ("translation", {"data.train": {"pth": "a.jsonl"}}),
        ("translation", {"decoding.stop": "never"}),
        ("translation", {"data.context": 512}),
        ("translation", {"model.patch": 4}),
        ("language", {"decoding.beam": 4}),
        ("language", {"data.train": {"src": "a.en", "tgt": "a.de"}}),
        ("language", {"model.encoder_layers": 3}),
        ("language", {"training.validate_bleu": 100}),
        ("images", {"data.context": 512}),
        ("images", {"model.size": "tiny"}),
        ("images", {"data.gratings": {"size": 1}}),
    ],
    ids=str,
)
def test_editors_refuse_what_training_refuses(task: str, values: dict[str, Any], validator: Any) -> None:
    recipe = with_values(task, values)
    assert not validator.is_valid(recipe)
    with pytest.raises(ConfigError):
        recipe_class(recipe)(**recipe)


def test_a_recipe_without_a_task_is_for_translation(validator: Any) -> None:
    named = with_values("translation", {"decoding.beam": 2})
    unnamed = {key: value for key, value in named.items() if key != "task"}
    validator.validate(unnamed)
    schema = recipe_class(unnamed)
    assert schema is recipe_class(named) is RECIPES["translation"]
    assert schema(**unnamed) == schema(**named)
    assert not validator.is_valid({**named, "task": "speech"})


def test_the_command_explains_a_key_and_a_section() -> None:
    answer = CliRunner().invoke(app, ["recipe", "training.lr"]).stdout
    assert answer == (
        "training.lr\n    Highest learning rate, reached at the end of the warm-up.\n"
        "    number, > 0, ≤ 1e+30; default: 0.001; example: lr: 0.001\n"
        "    task: translation, language, images\n"
    )
    assert (
        CliRunner()
        .invoke(app, ["recipe", "data.context"])
        .stdout.endswith("example: context: 512\n    task: language\n")
    )
    assert recipe_reference.explain("data.gratings.noise").endswith("\n    task: images")
    smoothing = recipe_reference.explain("training.label_smoothing").split("\n\n")
    assert [part.rpartition("task: ")[2] for part in smoothing] == ["translation", "language", "images"]
    assert "training.regularizer.margin" in CliRunner().invoke(app, ["recipe", "training"]).stdout
    assert "decoding.beam" in CliRunner().invoke(app, ["recipe"]).stdout
    with pytest.raises(ConfigError, match=r"no key 'training\.lrr'; did you mean 'lr'"):
        recipe_reference.explain("training.lrr")


def test_the_command_prints_schema_and_page() -> None:
    assert json.loads(CliRunner().invoke(app, ["recipe", "--schema"]).stdout) == recipe_reference.json_schema()
    assert CliRunner().invoke(app, ["recipe", "--markdown"]).stdout == recipe_reference.markdown()
