"""The registry: rules by name, from functions and classes, files and installed packages."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from torch import Tensor

from reluformer.errors import ArgumentError, ReluformerError, UnknownNameError, nearest
from reluformer.rules.base import (
    Formulated,
    OutputNorm,
    Pointwise,
    RowCentered,
    RowNormalized,
    Rowwise,
    Rule,
    formula_of,
)

ENTRY_POINT_GROUP = "reluformer.rules"
PLUGIN_PREFIX = "reluformer_plugin_"

_registry: dict[str, Callable[..., Rule]] = {}
_definitions: dict[str, Any] = {}
"""What was decorated, a function or a class, by the name of its rule."""
_defaults: dict[str, Rule] = {}
"""Rules that were asked for by name alone, made once."""
_state = {"entry_points_loaded": False}
R = TypeVar("R", bound=Callable[..., Any])


def register(
    name: str, *, kind: Literal["pointwise", "rowwise"] = "pointwise", output_norm: OutputNorm | None = None
) -> Callable[[R], R]:
    """Decorator that makes a rule known by `name` everywhere.

    On a function: `f(scores, n)` for a pointwise rule, `f(scores, visible)` for a
    row-wise one. On a frozen dataclass derived from `Pointwise` or `Rowwise`: as it is,
    its fields being the options of the rule. The same definition again, as of a notebook's
    cell that is run twice, takes the place of the first.
    """

    def decorate(definition: R) -> R:
        if name in _registry and _origin(_definitions[name]) != _origin(definition):
            raise ArgumentError(f"a rule named '{name}' is registered already; choose another name")
        _defaults.pop(name, None)
        if isinstance(definition, type):
            if not issubclass(definition, (Pointwise, Rowwise, RowNormalized, RowCentered, Formulated)):
                raise ArgumentError(f"rule '{name}': the class must derive from rules.Pointwise or rules.Rowwise")
            definition.name = name
            _compare_formula(definition)
            _registry[name] = definition
        elif callable(definition):
            _registry[name] = _class_from_function(name, definition, kind, output_norm)
        else:
            raise ArgumentError(f"rule '{name}': expected a function or a class, got {type(definition).__name__}")
        _definitions[name] = definition
        return definition

    return decorate


def _compare_formula(definition: type[Rule]) -> None:
    """Compare the formula of the rule with default options now, so that a wrong one is reported where it is written."""
    options = fields(definition) if is_dataclass(definition) else ()
    if all(option.default is not MISSING for option in options) and not definition.__abstractmethods__:
        rule = definition()
        formula = rule.formula()
        if formula is not None and formula.activation != "other":
            formula_of(rule)


def _origin(definition: Any) -> tuple[str, str]:
    """Where a function or class was defined."""
    return getattr(definition, "__module__", None) or "", getattr(definition, "__qualname__", "")


def _class_from_function(
    name: str, function: Callable[..., Tensor], kind: str, output_norm: OutputNorm | None
) -> type[Rule]:
    if kind not in ("pointwise", "rowwise"):
        raise ArgumentError(f"rule '{name}': kind is {kind!r}; valid: pointwise, rowwise")
    base, method = (Pointwise, "activate") if kind == "pointwise" else (Rowwise, "normalize")
    body = {
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__qualname__": getattr(function, "__qualname__", name),
        method: lambda self, scores, extra: function(scores, extra),
        "name": name,
        "output_norm": output_norm,
    }
    return dataclass(frozen=True)(type(name, (base,), body))


def names() -> tuple[str, ...]:
    """Every registered rule, those of installed entry points included."""
    _load_entry_points()
    return tuple(_registry)


def get(rule: str | Mapping[str, Any] | Rule) -> Rule:
    """A rule from its name, from `{"name": ..., option: ...}`, or as it is."""
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, str) and rule in _defaults:
        return _defaults[rule]
    if isinstance(rule, Mapping):
        options = dict(rule)
        name = options.pop("name", None)
    else:
        name, options = rule, {}
    if not isinstance(name, str):
        raise ArgumentError(
            f"rule: expected a name, a mapping with 'name', or a rule object, got {type(rule).__name__} {rule!r}"
        )
    if name not in _registry:
        _load_entry_points()
    if name not in _registry:
        raise UnknownNameError(
            f"unknown rule '{name}'; {nearest(name, _registry)}; --plugin FILE adds rules of your own"
        )
    factory = _registry[name]
    defaults = {field.name: field.default for field in fields(cast(Any, factory))} if options else {}
    for option, value in options.items():
        if option not in defaults:
            raise ArgumentError(
                f"rule '{name}' has no option '{option}'; {nearest(option, defaults) if defaults else 'it takes none'}"
            )
        options[option] = _checked(f"rule '{name}': {option}", value, defaults[option])
    made = factory(**options)
    if not options:
        _defaults[name] = made
    return made


def _checked(where: str, value: Any, default: Any) -> Any:
    """An option of the kind that its default is; YAML reads 1e-3 as a text."""
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ArgumentError(f"{where} must be true or false, got {value!r}")
    elif isinstance(default, int | float):
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ArgumentError(f"{where} must be a finite number, got {value!r}")
        return int(number) if isinstance(default, int) and number.is_integer() else number
    return value


def spec(rule: Rule) -> str | dict[str, Any]:
    """What `get` turns back into an equal rule: the name, or a mapping where options differ."""
    if rule.name not in _registry or _origin(_registry[rule.name]) != _origin(type(rule)):
        raise ArgumentError(
            f"the rule {type(rule).__name__} is not registered, so no file can name it; decorate its class with "
            "@reluformer.rules.register"
        )
    options = {f.name: getattr(rule, f.name) for f in fields(rule) if getattr(rule, f.name) != f.default}
    return {"name": rule.name, **options} if options else rule.name


def load_plugin(path: str | Path) -> tuple[str, ...]:
    """Run a Python file of the user's that registers rules; the names it added."""
    path = Path(path)
    if not path.is_file():
        raise ArgumentError(f"--plugin {path}: no such file")
    before = set(_registry)
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]  # two plugins may share a file name
    module_spec = importlib.util.spec_from_file_location(f"{PLUGIN_PREFIX}{path.stem}_{place}", path)
    if module_spec is None or module_spec.loader is None:
        raise ArgumentError(f"--plugin {path}: not a Python file; its name must end in .py")
    module = sys.modules[module_spec.name] = importlib.util.module_from_spec(
        module_spec
    )  # where dataclasses look it up
    try:
        module_spec.loader.exec_module(module)
    except ReluformerError:
        raise
    except Exception as error:
        raise ArgumentError(f"--plugin {path}: {type(error).__name__}: {error}") from error
    added = tuple(name for name in _registry if name not in before or _origin(_definitions[name])[0] == module.__name__)
    if not added:
        raise ArgumentError(f"--plugin {path}: registers no rule; decorate a function with @reluformer.rules.register")
    return added


def from_plugins() -> tuple[str, ...]:
    """The rules that plugin files registered."""
    return tuple(name for name, known in _definitions.items() if _origin(known)[0].startswith(PLUGIN_PREFIX))


def _load_entry_points() -> None:
    """Rules of installed packages: an entry point of the group names a function, class or module."""
    if _state["entry_points_loaded"]:
        return
    _state["entry_points_loaded"] = True  # before: what is imported may ask for the names of rules itself
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            definition = entry.load()  # a module registers its rules while it is imported
        except Exception as error:
            _state["entry_points_loaded"] = False
            raise ArgumentError(
                f"entry point '{entry.name} = {entry.value}' of {ENTRY_POINT_GROUP}: {type(error).__name__}: {error}; "
                "mend or uninstall the package that brings it"
            ) from error
        if callable(definition) and not any(known is definition for known in _definitions.values()):
            if entry.name not in _registry:
                register(entry.name)(definition)
