"""The public conformance suite: does an implementation of `read` mean the same?

    pytest --pyargs reluformer.conformance                                # what is built in
    pytest --pyargs reluformer.conformance --impl my_package:my_function  # yours
    pytest --pyargs reluformer.conformance --impl my_package:my_function --rules relu,softmax

`my_function` takes the arguments of `reluformer.read` except `impl`. Where it cannot do a
rule or an option it raises `reluformer.errors.ArgumentError`, and the case is skipped.
`--rules` names the rules that your function has. The suite then tests these alone, and refusing
a plain read of one of them is a failure.
A built-in implementation gets only the cases that it can read, and refusing one of them is a failure.
The suite compares outputs, statistics and gradients with the reference in float64, and
checks the properties that no rule may lose. `check` runs it from Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from reluformer.errors import ArgumentError, MissingExtraError

__all__ = ["check"]


def check(read: str | Callable[..., Any], rules: Sequence[str] | None = None, *, quiet: bool = True) -> tuple[str, ...]:
    """Run the suite on one implementation in this process.

    Args:
        read: a function with the arguments of `reluformer.read` except `impl`, or the name of a built-in one.
        rules: the names of the rules to test; the default is every rule.
        quiet: whether pytest prints nothing.

    Returns:
        The ids of the tests that failed; an empty tuple if the implementation conforms.

    Raises:
        ArgumentError: there is no such implementation or rule, or no test ran to its end.
        MissingExtraError: pytest is not installed.

    Example:
        >>> from reluformer import conformance
        >>> conformance.check("reference", rules=["relu_plain"])
        ()
    """
    try:
        import pytest
    except ImportError:
        raise MissingExtraError("the conformance suite needs pytest: pip install pytest") from None
    from reluformer.conformance.cases import check_rules, distinct, functions
    from reluformer.conformance.plugin import Outcome

    outcome = Outcome()
    name = read if isinstance(read, str) else f"{read.__module__}:{getattr(read, '__qualname__', type(read).__name__)}"
    options = ["-c", os.devnull, "--rootdir", os.path.dirname(__file__), "-p", "no:cacheprovider"]  # no one's settings
    if rules is not None:
        check_rules(name, rules)
        options += ["--rules", ",".join(distinct(rules))]
    if quiet:
        options += ["-p", "no:terminal"]
    if callable(read):
        functions[name] = read
    try:
        code = pytest.main(["--pyargs", "reluformer.conformance", "--impl", name, *options], plugins=[outcome])
    finally:
        functions.pop(name, None)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not (outcome.passed or outcome.failed):
        raise ArgumentError(
            f"the conformance suite tested nothing of {name} (pytest ended with {int(code)}); quiet=False shows why"
        )
    return tuple(outcome.failed)
