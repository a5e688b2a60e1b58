"""The base of every configuration: typed, frozen, and strict about names.

An unknown key is an error that names the nearest valid one. The docstring under a field is
its help text. Each part of the package declares its own section beside its code: the model
in `models.config`, training in `training.config`, the whole recipe in `translation.recipe`.
A recipe is a YAML file of such sections; `--set section.key=value` overrides single values.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from yaml.composer import ComposerError

from reluformer import files
from reluformer.errors import ConfigError, StorageError, nearest

_MOST_FINDINGS, _MOST_DEPTH, _MOST_NODES = 20, 50, 100_000


C = TypeVar("C", bound="Config")


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

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _Findings(_findings(type(self), error)) from None
        except UnicodeEncodeError:
            raise ConfigError("a key or value holds half a surrogate pair, which is no text") from None

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

    def differences(self, other: Config) -> str:
        """Returns how another configuration of the same class differs from this one; "" if it does not.

        Example:
            >>> class Size(Config):
            ...     width: int = 64
            >>> Size().differences(Size(width=32))
            'width is 32 there and 64 here'
        """
        triples = ((name, getattr(other, name), getattr(self, name)) for name in type(self).model_fields)
        return ", ".join(f"{name} is {_shown(a)} there and {_shown(b)} here" for name, a, b in triples if a != b)


def possible_path(path: Any) -> Any:
    """Returns a path as it was given.

    Raises:
        ValueError: No file can have this name: it holds a NUL character or half a surrogate pair.
    """
    if "\0" in str(path):
        raise ValueError("holds a NUL character, which no path has")
    try:
        os.fsencode(str(path))
    except UnicodeEncodeError:
        raise ValueError("holds half a surrogate pair, which no path has") from None
    return path


class OneOrSeveral:
    """Tells a JSON schema that a list of sections may also be written as a single section."""

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        several = handler(core_schema)
        return {"anyOf": [several["items"], several]}


def parse_list(schema: type[C], values: Iterable[Any]) -> tuple[C, ...]:
    """Builds a configuration from each value of a list; an error names the place in the list, from 0.

    Args:
        schema: The class of each configuration.
        values: Mappings, or configurations that exist already.

    Raises:
        ConfigError: A value does not fit.

    Example:
        >>> class Size(Config):
        ...     width: int = 64
        >>> try:
        ...     parse_list(Size, [{"width": 1}, {"widht": 2}])
        ... except ConfigError as error:
        ...     print(error)
        unknown key '1.widht'; did you mean 'width'? valid: width
    """
    made: list[C] = []
    findings: list[Finding] = []
    for place, value in enumerate(values):
        if isinstance(value, schema):
            made.append(value)
        elif not isinstance(value, Mapping):
            findings.append(Finding((str(place),), "value", f"expected a section with keys (got {_shown(value)})"))
        else:
            try:
                made.append(schema(**value))
            except _Findings as error:
                findings += [Finding((str(place), *one.path), one.kind, one.rest) for one in error.findings]
    if findings:
        raise _Findings(findings)
    return tuple(made)


class Finding(NamedTuple):
    """One value that does not fit: its path, the kind of problem, and the rest of the message."""

    path: tuple[str, ...]
    kind: Literal["unknown", "missing", "value"]
    rest: str

    def __str__(self) -> str:
        key = _cut(".".join(self.path))
        if self.kind == "unknown":
            return f"unknown key '{key}'; {self.rest}"
        if self.kind == "missing":
            return f"'{key}' is missing"
        return f"'{key}': {self.rest}" if key else self.rest


class _Findings(ConfigError):
    """A `ConfigError` that keeps its findings, so that the section around it can add its own path."""

    def __init__(self, findings: list[Finding]) -> None:
        more = len(findings) - _MOST_FINDINGS
        shown = [str(finding) for finding in findings[:_MOST_FINDINGS]] + [f"and {more} more"] * (more > 0)
        super().__init__("; ".join(shown))
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
            got = "" if isinstance(detail["input"], Mapping | BaseModel) else f" (got {_shown(detail['input'])})"
            findings.append(Finding(path, "value", f"{_cut(message[:1].lower() + message[1:], 500)}{got}"))
    return findings


def _cut(text: str, most: int = 100) -> str:
    """Returns a text of any length short enough for a message."""
    return text if len(text) <= most else f"{text[:most]}..."


def _shown(value: Any) -> str:
    """Returns a value as messages show it; Python refuses to print integers of more than 4,300 digits."""
    try:
        return _cut(repr(value))
    except (ValueError, RecursionError):
        return f"{type(value).__name__} that is too long to show"


class _Loader(yaml.SafeLoader):
    """Reads YAML as recipes use it: keys are names, no key occurs twice, and a date is text.

    Depth and size are limited; an alias counts as much as what it stands for.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise ComposerError(problem=f"nested more than {_MOST_DEPTH} levels deep", problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if is_alias:
            size = self._sizes.get(id(node))
            if size is None:
                raise ComposerError(problem="an alias stands inside of what it stands for", problem_mark=mark)
        else:
            size = 1 + sum(self._sizes[id(inner)] for inner in _inner_nodes(node))
        if size > _MOST_NODES:
            raise ComposerError(problem=f"more than {_MOST_NODES:,} values, aliases included", problem_mark=mark)
        self._sizes[id(node)] = size
        return node

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


def _inner_nodes(node: yaml.Node) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [inner for pair in node.value for inner in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: str(node.value))


def parse_yaml(text: str) -> Any:
    """Returns the value of a YAML text as recipes use it; see `read_yaml`.

    Raises:
        ValueError: The text is not valid, too deep or too large; the message has the place, on one line.
    """
    try:
        return yaml.load(text, _Loader)
    except (ValueError, RecursionError, OverflowError, yaml.YAMLError) as error:
        raise ValueError(_cut(" ".join(str(error).split()), 500)) from None


def read_yaml(path: Path) -> Any:
    """Returns the value of a YAML file.

    Raises:
        ConfigError: The file cannot be read, or is not valid YAML. Files, nesting and aliases have limits.
    """
    try:
        return parse_yaml(files.read_text(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except StorageError as error:
        raise ConfigError(str(error)) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None


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
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected sections with keys, as in configs/, got {type(values).__name__}")
    for override in overrides:
        _override(values, override)
    return schema.parse(values, where=str(path))


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    override = _cut(override, 200)
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
        values[last] = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"--set {override}: {error}") from None
    if isinstance(values[last], str):
        with suppress(ValueError):  # YAML reads 3e-4 as a string
            values[last] = float(text)
