"""The registry: rules by name, from functions and classes, files and installed packages."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
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
_searched: dict[str, tuple[str, ...]] = {}
"""The search path on which the rules of installed packages were last looked for; empty before."""
R = TypeVar("R", bound=Callable[..., Any])


def register(
    name: str = "", *, kind: Literal["pointwise", "rowwise"] = "pointwise", output_norm: OutputNorm | None = None
) -> Callable[[R], R]:
    """Returns a decorator that makes a rule known by `name` everywhere.

    A definition that is registered again, as in a notebook's cell that is run twice, replaces the first.

    Args:
        name: the name of the rule.
        kind: for a function: "pointwise" for `f(scores, n)`, "rowwise" for `f(scores, visible)`.
        output_norm: for a function: the norm that a layer applies to what was read.

    Returns:
        A decorator for a function, or for a frozen dataclass that derives from `Pointwise`, `Rowwise`, `RowNormalized`,
        `RowCentered` or `Formulated`. The fields of the class are the options of the rule. The options of a function
        are its further parameters; each has a default that is a number, a text, True or False.

    Raises:
        ArgumentError: the name is missing or taken, the definition is no rule, or its formula disagrees with its
            weights.

    Example:
        >>> import torch
        >>> from reluformer import rules
        >>> @rules.register("gelu_mean")
        ... def gelu_mean(scores, n, power=1.0):
        ...     return torch.nn.functional.gelu(scores) / n**power
        >>> rules.get({"name": "gelu_mean", "power": 0.5})
        gelu_mean(power=0.5)
        >>> rules.unregister("gelu_mean")
    """
    if not isinstance(name, str) or not name:
        shown = name.__name__ if inspect.isroutine(name) or inspect.isclass(name) else "my_rule"
        raise ArgumentError(f'a rule needs a name: write @rules.register("{shown}") above the definition')

    def decorate(definition: R) -> R:
        if name in _registry and _origin(_definitions[name]) != _origin(definition):
            raise ArgumentError(f"a rule named '{name}' is registered already; choose another name")
        _defaults.pop(name, None)
        if isinstance(definition, type):
            if not issubclass(definition, (Pointwise, Rowwise, RowNormalized, RowCentered, Formulated)):
                raise ArgumentError(
                    f"rule '{name}': the class must derive from rules.Pointwise, Rowwise, RowNormalized, RowCentered "
                    "or Formulated"
                )
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
    """Returns where a function or class was defined."""
    return getattr(definition, "__module__", None) or "", getattr(definition, "__qualname__", "")


def _class_from_function(
    name: str, function: Callable[..., Tensor], kind: str, output_norm: OutputNorm | None
) -> type[Rule]:
    if kind not in ("pointwise", "rowwise"):
        raise ArgumentError(f"rule '{name}': kind is {kind!r}; valid: pointwise, rowwise")
    base, method = (Pointwise, "activate") if kind == "pointwise" else (Rowwise, "normalize")
    options = _function_options(name, function, base)

    def call(self: Rule, scores: Tensor, extra: Tensor) -> Tensor:
        return function(scores, extra, **{option: getattr(self, option) for option in options})

    body = {
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__qualname__": getattr(function, "__qualname__", name),
        "__annotations__": {option: type(default) for option, default in options.items()},
        **options,
        method: call,
        "name": name,
        "output_norm": output_norm,
    }
    return dataclass(frozen=True)(type(name, (base,), body))


def _function_options(name: str, function: Callable[..., Tensor], base: type[Rule]) -> dict[str, Any]:
    """Returns the defaults of all parameters of a function after the first two, by name."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a built-in function without a signature
        return {}
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    first = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:2]
    options = {p.name: p.default for p in named if p not in first}
    for option, default in options.items():
        if default is inspect.Parameter.empty:
            raise ArgumentError(
                f"rule '{name}': parameter '{option}' has no default; a rule is a function of the scores and "
                f"{'n' if base is Pointwise else 'visible'}, and further parameters are options with a default"
            )
        if not isinstance(default, bool | int | float | str):
            raise ArgumentError(
                f"rule '{name}': the default of option '{option}' is of type {type(default).__name__}; "
                "an option is a number, a text, True or False"
            )
        if hasattr(base, option):
            raise ArgumentError(f"rule '{name}': an option cannot be named '{option}'; choose another name")
    return options


def unregister(name: str) -> None:
    """Forget the rule `name`, so that another one may take its name.

    Args:
        name: the name of a registered rule.

    Raises:
        UnknownNameError: there is no such rule.

    Example:
        >>> from reluformer import rules
        >>> @rules.register("cubed")
        ... def cubed(scores, n):
        ...     return scores.clamp(min=0) ** 3 / n
        >>> rules.unregister("cubed")
        >>> "cubed" in rules.names()
        False
    """
    if name not in _registry:
        raise UnknownNameError(f"unknown rule '{name}'; {nearest(name, _registry)}")
    for known in (_registry, _definitions, _defaults):
        known.pop(name, None)


def names() -> tuple[str, ...]:
    """Returns the name of every registered rule, those of installed packages included.

    Returns:
        The names, in the order in which the rules were registered.

    Example:
        >>> from reluformer import rules
        >>> "relu" in rules.names()
        True
    """
    _load_entry_points()
    return tuple(_registry)


def get(rule: str | Mapping[str, Any] | Rule) -> Rule:
    """Returns a rule.

    Args:
        rule: a name, a mapping `{"name": ..., option: ...}`, or a rule, which is returned as it is.

    Returns:
        The rule, a frozen object. Two rules with the same options are equal.

    Raises:
        UnknownNameError: there is no rule of that name.
        ArgumentError: an option does not exist or has a value that does not fit.

    Example:
        >>> from reluformer import rules
        >>> rules.get({"name": "relu", "gamma": 2.0})
        Relu(gamma=2.0, learn_gamma=False)
    """
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
    """Returns an option in the type of its default; YAML reads 1e-3 as text."""
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
    """Returns what `get` turns back into an equal rule.

    Args:
        rule: a rule whose class is registered.

    Returns:
        The name of the rule, or a mapping with those options that differ from their defaults.

    Raises:
        ArgumentError: the class of the rule is not registered.

    Example:
        >>> from reluformer import rules
        >>> rules.spec(rules.Relu(gamma=2.0))
        {'name': 'relu', 'gamma': 2.0}
    """
    if rule.name not in _registry or _origin(_registry[rule.name]) != _origin(type(rule)):
        raise ArgumentError(
            f"the rule {type(rule).__name__} is not registered, so no file can name it; decorate its class with "
            "@reluformer.rules.register"
        )
    options = {f.name: getattr(rule, f.name) for f in fields(rule) if getattr(rule, f.name) != f.default}
    return {"name": rule.name, **options} if options else rule.name


def load_plugin(path: str | Path) -> tuple[str, ...]:
    r"""Run a user's Python file that registers rules, and return the names that it added.

    Args:
        path: the Python file.

    Returns:
        The names of the rules that the file registered.

    Raises:
        ArgumentError: the file does not exist, fails, or registers no rule.

    Example:
        >>> from pathlib import Path
        >>> from reluformer import rules
        >>> lines = [
        ...     "from reluformer import rules",
        ...     "@rules.register('cubed')",
        ...     "def cubed(scores, n):",
        ...     "    return scores.clamp(min=0) ** 3 / n",
        ... ]
        >>> written = Path("my_rules.py").write_text("\n".join(lines))
        >>> rules.load_plugin("my_rules.py")
        ('cubed',)
        >>> rules.unregister("cubed")
    """
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
    """Returns the names of the rules that plugin files registered."""
    return tuple(name for name, known in _definitions.items() if _origin(known)[0].startswith(PLUGIN_PREFIX))


def _load_entry_points() -> None:
    """Load the rules of installed packages: an entry point of the group names a function, class or module.

    They are looked for again once `sys.path` has changed, as more packages may be found there.
    """
    path = tuple(sys.path)
    if _searched.get("path") == path:
        return
    _searched["path"] = path  # before: what is imported may ask for the names of rules itself
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            definition = entry.load()  # a module registers its rules while it is imported
        except Exception as error:
            _searched.clear()
            raise ArgumentError(
                f"entry point '{entry.name} = {entry.value}' of {ENTRY_POINT_GROUP}: {type(error).__name__}: {error}; "
                "fix or uninstall the package that brings it"
            ) from error
        if callable(definition) and not any(known is definition for known in _definitions.values()):
            if entry.name not in _registry:
                register(entry.name)(definition)
