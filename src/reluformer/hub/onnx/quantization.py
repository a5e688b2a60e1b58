"""8-bit arithmetic for the linear layers of exported graphs, on CPUs."""

from __future__ import annotations

import logging
from pathlib import Path

QUANTIZERS = ("int8",)


def quantize_graph(path: Path, kind: str) -> None:
    """Rewrite the graph in `path`: weights in 8 bits by column, activations in 8 bits as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    assert kind in QUANTIZERS
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # it advises an optimisation that the exporter has done already
    try:
        quantize_dynamic(
            path, path, op_types_to_quantize=["MatMul", "Gemm"], per_channel=True, weight_type=QuantType.QInt8
        )
    finally:
        logger.setLevel(level)
