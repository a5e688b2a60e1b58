"""Configuration: typed, frozen, and strict about names.

`Config` is the base of every section; an unknown key is refused with the nearest valid
one. The docstring under a field is its help text. Recipes are YAML files whose sections
are such models; `--set section.key=value` overrides single values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from yaml.composer import ComposerError

from reluformer.errors import ConfigError, nearest


class Config(BaseModel):
    """Base of all configuration: frozen, and a `ConfigError` for whatever does not fit."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _Findings(_findings(type(self), error)) from None

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


class Finding(NamedTuple):
    """One thing that does not fit: where, of what kind, and the rest of the sentence."""

    path: tuple[str, ...]
    kind: Literal["unknown", "missing", "value"]
    rest: str

    def __str__(self) -> str:
        key = ".".join(self.path)
        if self.kind == "unknown":
            return f"unknown key '{key}'; {self.rest}"
        if self.kind == "missing":
            return f"'{key}' is missing"
        return f"'{key}': {self.rest}" if key else self.rest


class _Findings(ConfigError):
    """A `ConfigError` that remembers its parts, so that the section around it can say where."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("; ".join(map(str, findings)))
        self.findings = findings


def _findings(schema: type[BaseModel], error: ValidationError) -> list[Finding]:
    """pydantic's findings, with the nearest name for an unknown key."""
    findings = []
    for detail in error.errors():
        path = tuple(map(str, detail["loc"]))
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, _Findings):  # from the section below
            findings += [Finding((*path, *inner.path), inner.kind, inner.rest) for inner in cause.findings]
        elif detail["type"] == "extra_forbidden":
            findings.append(Finding(path, "unknown", nearest(path[-1], schema.model_fields)))
        elif detail["type"] == "missing":
            findings.append(Finding(path, "missing", ""))
        elif detail["type"] == "model_type" and detail["input"] is None:
            findings.append(Finding(path, "value", "the section is empty; give it keys or leave it out"))
        else:
            message = detail["msg"].removeprefix("Value error, ")
            got = "" if isinstance(detail["input"], Mapping | BaseModel) else f" (got {detail['input']!r})"
            findings.append(Finding(path, "value", f"{message[:1].lower()}{message[1:]}{got}"))
    return findings


class _Loader(yaml.SafeLoader):
    """YAML as recipes use it: keys are names, none is given twice, and a date is text."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names: set[str] = set()
        for key, _ in node.value:
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                raise ComposerError(problem=f"expected a name as key, got {key.value}", problem_mark=key.start_mark)
            if key.value in names:
                raise ComposerError(problem=f"'{key.value}' is given twice", problem_mark=key.start_mark)
            names.add(key.value)
        return node


_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: str(node.value))

C = TypeVar("C", bound=Config)


def load_yaml(schema: type[C], path: str | Path, overrides: Iterable[str] = ()) -> C:
    """A recipe file as `schema`, with `section.key=value` overrides."""
    path = Path(path)
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
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
        if values.get(section) is None:
            values[section] = {}
        values = values[section]
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override}: '{section}' is a single value, not a section")
    try:
        values[last] = yaml.load(text, _Loader)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--set {override}: {' '.join(str(error).split())}") from None
    if isinstance(values[last], str):
        with suppress(ValueError):  # YAML reads 3e-4 as a string
            values[last] = float(text)
