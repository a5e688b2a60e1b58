"""The optional parts of the package: which modules each extra brings, and what a command needs before it starts."""

from __future__ import annotations

from importlib.util import find_spec

from reluformer.errors import MissingExtraError

EXTRAS: dict[str, tuple[str, ...]] = {
    "plots": ("matplotlib",),
    "study": ("matplotlib", "scipy"),
    "formats": ("translate",),
    "tensorboard": ("tensorboard",),
    "hf": ("transformers",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "serve": ("fastapi", "uvicorn", "prometheus_client", "python_multipart"),
    "docs": ("mkdocs", "material", "mkdocstrings"),
}
"""The modules of each extra. Triton is not among them: `kernels.availability` tells about it."""


def missing_modules(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [module for module in EXTRAS[extra] if find_spec(module) is None]


def install_command(extra: str) -> str:
    """Return the command that installs an extra.

    Example:
        >>> install_command("plots")
        "pip install 'reluformer[plots]'"
    """
    return f"pip install 'reluformer[{extra}]'"


def require(extra: str, what: str) -> None:
    """Check that an extra is installed. A command calls it before it does any work.

    Args:
        extra: A key of `EXTRAS`.
        what: What needs it, for the message.

    Raises:
        MissingExtraError: A module is missing; the message has the command that installs it.
    """
    if missing := missing_modules(extra):
        raise MissingExtraError(f"{what} needs {', '.join(missing)}; {install_command(extra)}")
