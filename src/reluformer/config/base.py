"""Configuration: typed, frozen, and strict about names.

`Config` is the base of every section; an unknown key is refused with the nearest valid
one. The docstring under a field is its help text. Recipes are YAML files whose sections
are such models; `--set section.key=value` overrides single values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from reluformer.errors import ConfigError, nearest


class Config(BaseModel):
    """Base of all configuration: frozen, and a `ConfigError` for whatever does not fit."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_explain(type(self), error)) from None

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str) -> Self:
        """Build from untrusted data; errors begin with `where` it came from."""
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    def replace(self, **changes: Any) -> Self:
        """A copy with some values changed, validated again."""
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **changes})


def _explain(schema: type[BaseModel], error: ValidationError) -> str:
    """pydantic's findings in one sentence each, with the nearest name for an unknown key."""
    sentences = []
    for finding in error.errors():
        path = [str(part) for part in finding["loc"]]
        key = ".".join(path)
        if finding["type"] == "extra_forbidden":
            valid = _fields_at(schema, path[:-1])
            sentences.append(f"unknown key '{key}'; {nearest(path[-1], valid)}")
        elif finding["type"] == "missing":
            sentences.append(f"'{key}' is missing")
        else:
            message = finding["msg"].removeprefix("Value error, ")
            prefix = f"'{key}': " if key else ""
            got = "" if isinstance(finding["input"], Mapping | BaseModel) else f" (got {finding['input']!r})"
            sentences.append(f"{prefix}{message[:1].lower()}{message[1:]}{got}")
    return "; ".join(sentences)


def _fields_at(schema: type[BaseModel], path: list[str]) -> Iterable[str]:
    for part in path:
        inner = schema.model_fields[part].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return ()
        schema = inner
    return schema.model_fields


C = TypeVar("C", bound=Config)


def load_yaml(schema: type[C], path: str | Path, overrides: Iterable[str] = ()) -> C:
    """A recipe file as `schema`, with `section.key=value` overrides."""
    path = Path(path)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected sections with keys, as in configs/, got {type(values).__name__}")
    for override in overrides:
        _override(values, override)
    return schema.parse(values, where=str(path))


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override}: write it as section.key=value")
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override}: '{section}' is a single value, not a section")
    try:
        values[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override}: {' '.join(str(error).split())}") from None
    if isinstance(values[last], str):
        with suppress(ValueError):  # YAML reads 3e-4 as a string
            values[last] = float(text)
