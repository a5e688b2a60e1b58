"""The errors that a user can cause; each message says what is wrong, where, and what to do.

What the package checks itself raises a `ReluformerError`; the command line prints its message
without a traceback. Errors of Python, PyTorch and the operating system that nobody checks for,
such as a lack of memory, keep their own types. Subclasses also derive from the built-in error
that a Python caller would expect, so `except ValueError` keeps working.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ReluformerError(Exception):
    """The base of all errors that a user can cause and fix.

    Example:
        >>> import reluformer as rf
        >>> try:
        ...     rf.rules.get("sofmax")
        ... except rf.ReluformerError as error:
        ...     print(error)
        unknown rule 'sofmax'; did you mean 'softmax'? valid: ...
    """


class ArgumentError(ReluformerError, ValueError):
    """An argument has a wrong shape, type or value."""


class UnknownNameError(ReluformerError, LookupError):
    """A rule, preset or implementation was named that does not exist."""


class ConfigError(ReluformerError, ValueError):
    """A configuration does not fit the schema."""


class StorageError(ReluformerError, OSError):
    """A saved model or run is missing, damaged, or of another kind."""


class DataError(ReluformerError, ValueError):
    """A corpus or document cannot be read as it is."""


class UnfinishedRunWarning(UserWarning):
    """A run has not finished, so its best weights so far are used."""


class MissingExtraError(ReluformerError, ImportError):
    """An optional part of the package is needed and not installed."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns a hint for a mistyped name: the closest valid one, then all of them.

    Example:
        >>> nearest("sofmax", ["relu", "softmax"])
        "did you mean 'softmax'? valid: relu, softmax"
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"{hint}valid: {', '.join(names)}"
