"""The public door to `reluformer.integrations.transformers`.

from reluformer import hub

hub.register()
model = AutoModel.from_pretrained(..., attn_implementation="reluformer:relu")
"""

from __future__ import annotations

from typing import Any

from reluformer.integrations import onnx as _onnx
from reluformer.integrations import transformers as _integration


def __getattr__(name: str) -> Any:
    return _onnx if name == "onnx" else getattr(_integration, name)


def __dir__() -> list[str]:
    return ["onnx", *dir(_integration)]
