"""8-bit arithmetic for the linear layers of exported graphs, on CPUs."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

QUANTIZERS = ("int8",)


def quantize_graph(path: Path, kind: str) -> None:
    """Rewrite the graph in `path`: weights in 8 bits by column, activations in 8 bits as they come."""
    assert kind in QUANTIZERS
    onnx.save(_with_own_output_matrix(onnx.load(path)), path)
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # it advises an optimisation that the exporter has done already
    try:
        quantize_dynamic(
            path,
            path,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,  # 7 bits of weight: CPUs without VNNI add pairs of products in 16 bits
            weight_type=QuantType.QInt8,
        )
    finally:
        logger.setLevel(level)


def _with_own_output_matrix(model: ModelProto) -> ModelProto:
    """x W^T as a product with a matrix of its own: onnxruntime would turn W itself, which embeds tokens, too."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for place, node in enumerate(model.graph.node):
        if node.op_type != "Gemm" or node.input[1] not in weights:
            continue
        turned = np.ascontiguousarray(numpy_helper.to_array(weights[node.input[1]]).T)
        name = f"{node.input[1]}.turned"
        model.graph.initializer.append(numpy_helper.from_array(turned, name))
        product = helper.make_node("MatMul", [node.input[0], name], list(node.output), name=node.name)
        model.graph.node[place].CopyFrom(product)
    return model
