"""The base of every configuration: typed, frozen, and strict about names.

An unknown key is an error that names the nearest valid one. The docstring under a field is
its help text. Each part of the package declares its own section beside its code: the model
in `models.config`, training in `training.config`, the whole recipe in `translation.recipe`.
A recipe is a YAML file of such sections; `--set section.key=value` overrides single values.
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
    """The base class of all configuration; it raises `ConfigError` for whatever does not fit.

    Example:
        >>> class Size(Config):
        ...     width: int = 64
        >>> Size(width=32).replace(width=16)
        Size(width=16)
        >>> try:
        ...     Size(widht=32)
        ... except ConfigError as error:
        ...     print(error)
        unknown key 'widht'; did you mean 'width'? valid: width
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _Findings(_findings(type(self), error)) from None

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str) -> Self:
        """Builds the configuration from untrusted data; its errors begin with `where` the data came from."""
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some values changed; the copy is validated again."""
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **changes})


class Finding(NamedTuple):
    """One value that does not fit: its path, the kind of problem, and the rest of the message."""

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
    """A `ConfigError` that keeps its findings, so that the section around it can add its own path."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("; ".join(map(str, findings)))
        self.findings = findings


def _findings(schema: type[BaseModel], error: ValidationError) -> list[Finding]:
    """Returns the findings of pydantic, with the nearest name for an unknown key."""
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
    """Reads YAML as recipes use it: keys are names, no key occurs twice, and a date is text."""

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
    """Reads a YAML file as a configuration.

    Args:
        schema: The configuration class to build.
        path: The file to read.
        overrides: Single values that replace those of the file, each as "section.key=value".

    Returns:
        The validated configuration.

    Raises:
        ConfigError: The file cannot be read, or a key or value does not fit `schema`.
    """
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
