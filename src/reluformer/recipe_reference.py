"""The reference of recipes: every key of every task with type, default, meaning and an example.

It is read from the config classes. `reluformer recipe` prints it, docs/recipe.md is the same as a page, and
configs/recipe.schema.json is the JSON schema that editors understand. The key `task` of a recipe selects the keys that
belong to it. A new key needs only its field with a docstring, which is its meaning. `examples=[...]` of the field gives
an example where the type does not tell a good one. `make reference` writes both files.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import annotated_types
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import models_json_schema

from reluformer import rules
from reluformer.config import OneOrSeveral
from reluformer.errors import ConfigError, nearest
from reluformer.loading import RECIPES
from reluformer.models.config import ModelSection
from reluformer.rules import Rule

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WORDS: dict[Any, str] = {
    int: "integer",
    float: "number",
    bool: "true or false",
    str: "text",
    Path: "path",
    Rule: "rule",
}
_SIGNS = (
    (annotated_types.Gt, "gt", ">"),
    (annotated_types.Ge, "ge", "≥"),
    (annotated_types.Lt, "lt", "<"),
    (annotated_types.Le, "le", "≤"),
)
_INTRODUCTION = """# Recipe reference

A recipe is a YAML file that decides a training run, and how a translation model translates. Its key `task` says what
is trained: `translation`, `language` or `images`. A recipe without it trains a translation model. This page lists
every key of every task. It is made from the config classes by `reluformer recipe --markdown`, and a test compares it
with them.

`reluformer recipe training.lr` explains one key or section in the terminal, with the tasks that it belongs to.
`--set training.lr=0.002` changes one value of a recipe.

Editors that know the YAML language server complete and check keys if the file begins with this line:

```yaml
# yaml-language-server: $schema=recipe.schema.json
```

They complete the keys of the task that the recipe names.

`reluformer recipe --schema` prints that JSON schema; configs/ has it as
[recipe.schema.json](../configs/recipe.schema.json).

A small recipe has a corpus and leaves the rest to the defaults:

```yaml
data:
  train: {path: data/train.jsonl.gz}
  valid: {path: data/valid.jsonl.gz}
training:
  max_minutes: 60
```

A rule is written as its name, or with its options: `relu` or `{name: relu, gamma: 4}`. *Unset* is written as `null`, or
by leaving the key out.
"""


_TITLES = {"translation": "Translation", "language": "Language models", "images": "Image models"}
_DEFAULT_TASK = "translation"


class RecipeKey(NamedTuple):
    """One key of a recipe, as the reference shows it."""

    name: str
    type: str
    default: str
    meaning: str
    example: str
    """One line of YAML."""


class RecipeSection(NamedTuple):
    """The keys of one configuration class, and the places of a recipe that take it."""

    schema: type[BaseModel]
    """The configuration class."""
    paths: tuple[str, ...]
    """Such as "data.train"; the recipe itself is ""."""
    meaning: str
    keys: tuple[RecipeKey, ...]


def sections(task: str = _DEFAULT_TASK) -> list[RecipeSection]:
    """Returns the sections of a recipe of a task, from the outside in.

    Example:
        >>> [key.name for key in sections()[0].keys]
        ['task', 'data', 'model', 'training', 'decoding']
        >>> [key.name for key in sections("images")[0].keys]
        ['task', 'data', 'model', 'training']
    """
    paths: dict[type[BaseModel], list[str]] = {}
    _collect(RECIPES[task], "", paths)
    return [
        RecipeSection(schema, tuple(found), _text(schema.__doc__), tuple(_keys(schema)))
        for schema, found in paths.items()
    ]


def explain(path: str) -> str:
    """Returns the reference of a key or a section of any task as plain text; "" is every key.

    Raises:
        ConfigError: No recipe has such a key.
    """
    found: dict[tuple[str, RecipeKey], list[str]] = {}
    for task in RECIPES:
        for section in sections(task):
            for place in section.paths:
                for key in section.keys:
                    found.setdefault((f"{place}.{key.name}".lstrip("."), key), []).append(task)
    shown = [(name, key) for name, key in found if not path or name == path or name.startswith(f"{path}.")]
    if not shown:
        parent, _, name = path.rpartition(".")
        beside = {known.rpartition(".")[2]: known for known, _ in found if known.rpartition(".")[0] == parent}
        place = f"; {nearest(name, beside)}" if beside else ""
        raise ConfigError(f"a recipe has no key '{path}'{place}; `reluformer recipe` lists all")
    return "\n\n".join(
        f"{name}\n    {key.meaning}\n    {key.type}; default: {key.default}; example: {key.example}\n"
        f"    task: {', '.join(found[name, key])}".replace("`", "")
        for name, key in shown
    )


def markdown() -> str:
    """Returns docs/recipe.md."""
    parts = [_INTRODUCTION]
    general = sections(_DEFAULT_TASK)
    for task in RECIPES:
        parts.append(f"## {_TITLES[task]}\n")
        parts += [_part(section, [] if task == _DEFAULT_TASK else general) for section in sections(task)]
    return "\n".join(parts)


def json_schema() -> dict[str, Any]:
    """Returns the JSON schema of recipes: `task` selects the schema of one, in which a model has all of its keys."""
    references, together = models_json_schema([(schema, "validation") for schema in RECIPES.values()])
    definitions = together["$defs"]
    every = [section.schema for task in RECIPES for section in sections(task)]
    models = [schema for schema in every if issubclass(schema, ModelSection)]
    definitions |= models_json_schema([(model.kind, "validation") for model in models])[1]["$defs"]
    for task, recipe in RECIPES.items():
        definition = definitions[recipe.__name__]
        definition["properties"] = {**definition["properties"], "task": {"const": task}}
        del definition["properties"]["model"]["default"]
    for model in models:
        _complete(definitions[model.__name__], model, definitions.pop(model.kind.__name__)["properties"])
    by_task: dict[str, Any] = references[RECIPES[_DEFAULT_TASK], "validation"]
    for task, recipe in RECIPES.items():
        if task != _DEFAULT_TASK:
            named = {"properties": {"task": {"const": task}}, "required": ["task"]}
            by_task = {"if": named, "then": references[recipe, "validation"], "else": by_task}
    shown = {"task": {"enum": list(RECIPES), "default": _DEFAULT_TASK, "description": _task_key().meaning}}
    recipes = {"type": "object", "properties": shown, **by_task, "$defs": definitions}
    return {"$schema": _DIALECT, **_without_titles(recipes), "title": "Recipe of reluformer"}


def _complete(definition: dict[str, Any], schema: type[ModelSection], keys: Mapping[str, Any]) -> None:
    """Add the keys of a model to the definition of its section of a recipe."""
    for name, content in keys.items():
        if name != "vocab_size":
            default = schema.kind.model_fields[name].default
            known = {} if _preset_default(schema, name) else {"default": _plain(default)}  # others depend on size
            given = {key: value for key, value in content.items() if key != "default"}
            definition["properties"][name] = {**given, **known}
    definition["additionalProperties"] = False


def _part(section: RecipeSection, general: Sequence[RecipeSection]) -> str:
    """Returns a section of the page; of what `general` has, only the keys that differ from it."""
    title = ", ".join(f"`{path}`" for path in section.paths if path) or "Sections"
    like = next((one for one in general if issubclass(section.schema, one.schema)), None)
    keys, meaning = section.keys, section.meaning
    if like is not None:
        keys = tuple(key for key in keys if key not in like.keys)
        beside = ", ".join(f"`{path}`" for path in like.paths)
        meaning = f"{meaning} The keys are those of {beside} for translation" + ("; these differ." if keys else ".")
    lines = [f"### {title}", "", meaning, ""]
    if keys:
        lines += ["| key | type | default | meaning | example |", "| --- | --- | --- | --- | --- |"]
        lines += [
            "| "
            + " | ".join(map(_cell, (f"`{key.name}`", key.type, key.default, key.meaning, f"`{key.example}`")))
            + " |"
            for key in keys
        ]
        lines.append("")
    return "\n".join(lines)


# ---------------------------------------------------------------------- fields of the classes


def _fields(schema: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields of a class; those of a model come from the class of its configuration, too."""
    yield from ((name, field) for name, field in schema.model_fields.items() if name != "task")
    if issubclass(schema, ModelSection):
        yield from ((name, field) for name, field in schema.kind.model_fields.items() if name != "vocab_size")


def _collect(schema: type[BaseModel], path: str, paths: dict[type[BaseModel], list[str]]) -> None:
    """Find where each class is used, in the order in which a reader meets it."""
    paths.setdefault(schema, []).append(path)
    for name, field in _fields(schema):
        for inner in _sections_in(field.annotation):
            _collect(inner, f"{path}.{name}".lstrip("."), paths)


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return list(dict.fromkeys(schema for part in get_args(annotation) for schema in _sections_in(part)))


def _keys(schema: type[BaseModel]) -> Iterator[RecipeKey]:
    if schema in RECIPES.values():
        yield _task_key()
    for name, field in _fields(schema):
        default = _preset_default(schema, name) or _default(field)
        example = f"{name}: {_yaml(_example(field))}"
        yield RecipeKey(name, _type(field.annotation, field.metadata), default, _text(field.description), example)


def _task_key() -> RecipeKey:
    """Returns the key that every recipe has, and whose value decides its other keys."""
    meaning = "What is trained; a recipe without this key trains a translation model. The other keys depend on it."
    return RecipeKey("task", _type(Literal[tuple(RECIPES)]), f"`{_DEFAULT_TASK}`", meaning, "task: language")


def _type(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Returns a type in words, with its limits."""
    if any(isinstance(mark, OneOrSeveral) for mark in metadata):
        return "section or list of sections"
    limits = "".join(
        f", {sign} {_number(getattr(limit, attribute))}"
        for limit in metadata
        for kind, attribute, sign in _SIGNS
        if isinstance(limit, kind)
    )
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part) for part in parts if part is not types.NoneType) + limits
    if origin is Annotated:
        return _type(parts[0], annotation.__metadata__)
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in parts)
    if origin is tuple and parts[-1] is Ellipsis:
        return f"list of {_type(parts[0])}s"
    if origin is tuple:
        return f"list of {len(parts)}: {_type(parts[0])}"
    if origin is list:
        return f"list of: {_type(parts[0])}"
    if _sections_in(annotation):
        return "section"
    return _WORDS.get(annotation, getattr(annotation, "__name__", str(annotation))) + limits


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and value < 1e15 else f"{value:g}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is None:
        return "unset"
    if isinstance(field.default, BaseModel):
        return "its defaults"
    return f"`{_yaml(_plain(field.default))}`"


def _preset_default(schema: type[BaseModel], name: str) -> str | None:
    """Returns the default of a model's key that depends on size or architecture; None for all others."""
    if not issubclass(schema, ModelSection) or name not in schema.kind.model_fields:
        return None
    kind = schema.kind

    def values(choices: Sequence[str], key: str) -> dict[str, str]:
        presets = {one: kind.preset(**{"size": "tiny", key: one}, vocab_size=1) for one in choices}
        return {one: _yaml(_plain(getattr(preset, name))) for one, preset in presets.items()}

    for key in ("size", "architecture"):
        found = values(get_args(schema.model_fields[key].annotation), key)
        if len(set(found.values())) > 1:
            return f"by `{key}`: " + ", ".join(f"{one} `{value}`" for one, value in found.items())
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, Rule):
        return rules.spec(value)
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value


def _yaml(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1000)
        .removesuffix("...\n")
        .strip()
    )


# ---------------------------------------------------------------------- examples


def _example(field: FieldInfo) -> Any:
    """Returns the example of a field: its own, or another value than the default if the type tells one."""
    if field.examples:
        return field.examples[0]
    default = None if field.is_required() else field.default
    return _example_of(field.annotation, _plain(default))


def _example_of(annotation: Any, default: Any) -> Any:
    if inner := _sections_in(annotation):
        name, field = next(_fields(inner[0]))
        return {name: _example(field)}
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return next(choice for choice in (*reversed(parts), default) if choice != default or len(parts) == 1)
    if annotation is bool:
        return not default
    if annotation is Rule:
        return {"name": "relu", "gamma": 4.0}
    if default is not None:
        return default
    if origin in (Union, types.UnionType, Annotated, list):
        return _example_of(parts[0], default)
    return {int: 1, float: 1.0, Path: "file"}.get(annotation, "text")


# ---------------------------------------------------------------------- text


def _text(docstring: str | None) -> str:
    """Returns a docstring without its doctests, on one line."""
    return " ".join((docstring or "").partition("Example:")[0].split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _without_titles(schema: Any) -> Any:
    """Returns a schema without the titles that only repeat the names of keys."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: {key: _without_titles(part) for key, part in value.items()}
        if name in ("properties", "$defs")
        else _text(value)
        if name == "description" and isinstance(value, str)
        else _without_titles(value)
        for name, value in schema.items()
        if not (name == "title" and isinstance(value, str))
    }
