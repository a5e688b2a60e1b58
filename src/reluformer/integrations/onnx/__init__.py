"""ONNX: a trained run as two graphs that any ONNX runtime computes, and beam search on top of them.

    from reluformer.hub import onnx

    onnx.export_run(Path("runs/demo/reluformer"), Path("exported"), quantize=None, opset=None, force=False)
    translator = onnx.load("exported")
    translator.translate(["A document."])

Needs the extra `[onnx]`; its packages are imported when a name is first used.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from reluformer.errors import MissingExtraError

if TYPE_CHECKING:
    from reluformer.integrations.onnx.graphs import export_run as export_run
    from reluformer.integrations.onnx.runtime import load as load

_HOME = {
    "export_run": ("reluformer.integrations.onnx.graphs", ("onnx", "onnxscript", "onnxruntime")),
    "load": ("reluformer.integrations.onnx.runtime", ("onnxruntime",)),
}
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'reluformer.integrations.onnx' has no attribute '{name}'")
    module, packages = _HOME[name]
    if missing := [package for package in packages if find_spec(package) is None]:
        raise MissingExtraError(
            f"reluformer.integrations.onnx.{name} needs {', '.join(missing)}; install what is missing with: "
            "pip install 'reluformer[onnx]'"
        )
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
