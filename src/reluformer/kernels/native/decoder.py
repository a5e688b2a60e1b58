"""The C structs of the decoder's step, as `decoder.h` declares them, and the calls that take them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor, nn

from reluformer.kernels.cpu import loaded

READ_RELU, READ_SOFTMAX, READ_RELU_EXP = range(3)


class Linear(Structure):
    """A linear layer y = x W^T + bias, with the weight in panels."""

    _fields_ = (("panels", c_void_p), ("bias", c_void_p), ("inputs", c_int64), ("outputs", c_int64))


class Norm(Structure):
    """A LayerNorm."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_double))


class DecoderLayer(Structure):
    """A decoder block."""

    _fields_ = (
        ("own_norm", Norm),
        ("cross_norm", Norm),
        ("ffn_norm", Norm),
        ("query_key_value", Linear),
        ("own_output", Linear),
        ("cross_query", Linear),
        ("cross_output", Linear),
        ("ffn_keys", Linear),
        ("ffn_values", Linear),
        ("own_offset", c_void_p),
        ("cross_offset", c_void_p),
    )


class ReadRule(Structure):
    """How scores become weights; the numbers are those of READ_RELU_EXP."""

    _fields_ = (
        ("kind", c_int64),
        ("threshold", c_double),
        ("growth", c_double),
        ("spread", c_double),
        ("floor", c_double),
        ("delta", c_double),
        ("highest", c_double),
        ("chance", c_double),
        ("cap", c_double),
    )


class Decoder(Structure):
    """All weights of a decoder, and its sizes."""

    _fields_ = (
        ("width", c_int64),
        ("heads", c_int64),
        ("layers", c_int64),
        ("slots", c_int64),
        ("vocabulary", c_int64),
        ("pre_norm", c_int64),
        ("path", c_int64),
        ("own_rule", ReadRule),
        ("cross_rule", ReadRule),
        ("embedding_scale", c_double),
        ("embedding", c_void_p),
        ("layer", POINTER(DecoderLayer)),
        ("norm", Norm),
        ("output", Linear),
    )


class LayerSlots(Structure):
    """The slots that one layer reads."""

    _fields_ = (
        ("own_keys", c_void_p),
        ("own_values", c_void_p),
        ("source_keys", c_void_p),
        ("source_values", c_void_p),
    )


class Position(Structure):
    """One position of a search."""

    _fields_ = (
        ("batch", c_int64),
        ("beams", c_int64),
        ("threads", c_int64),
        ("length", c_int64),
        ("used", c_int64),
        ("capacity", c_int64),
        ("source_capacity", c_int64),
        ("tokens", c_void_p),
        ("parents", c_void_p),
        ("old_ancestors", c_void_p),
        ("ancestors", c_void_p),
        ("ancestor_stride", c_int64),
        ("source_lengths", c_void_p),
        ("sinusoid", c_void_p),
        ("cosine", c_void_p),
        ("sine", c_void_p),
        ("own_scale", c_double),
        ("source_scales", c_void_p),
        ("slots", POINTER(LayerSlots)),
        ("log_probabilities", c_void_p),
    )


class Weights:
    """Tensors laid out for the library, kept alive for as long as a decoder points to them."""

    def __init__(self) -> None:
        self.path = loaded().path
        self._kept: list[Any] = []

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Returns a linear layer from a weight (out, in)."""
        outputs, inputs = weight.shape
        weight = weight.detach().contiguous()
        panels = torch.empty(loaded().panel_floats(self.path, inputs, outputs))
        loaded().pack_linear(self.path, panels.data_ptr(), weight.data_ptr(), inputs, outputs)
        return Linear(self.pointer(panels), None if bias is None else self.pointer(bias), inputs, outputs)

    def norm(self, norm: nn.Module) -> Norm:
        """Returns a LayerNorm, or an empty struct for any other module."""
        if not isinstance(norm, nn.LayerNorm):
            return Norm(None, None, 0.0)
        return Norm(self.pointer(norm.weight), self.pointer(norm.bias), norm.eps)

    def pointer(self, tensor: Tensor) -> int:
        """Returns the address of the tensor, or of a contiguous copy."""
        tensor = tensor.detach().contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def layers(self, layers: Sequence[DecoderLayer]) -> Any:
        """Returns an array of layers."""
        array = (DecoderLayer * len(layers))(*layers)
        self._kept.append(array)
        return array


def decode(decoder: Decoder, position: Position) -> None:
    """Computes one position: writes the log-probabilities of its rows, its new slots and its ancestors."""
    if loaded().decode(ctypes.byref(decoder), ctypes.byref(position)):
        raise MemoryError("no memory for one position of the decoder; translate smaller batches")


def best(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the k greatest of each row (R, V), contiguous, in falling order, and their places; (R, k) each."""
    count, size = rows.shape
    values, places = torch.empty(count, k), torch.empty(count, k, dtype=torch.long)
    library, threads = loaded(), torch.get_num_threads()
    addresses = values.data_ptr(), places.data_ptr()
    library.best(library.path, rows.data_ptr(), count, size, k, *addresses, threads)
    return values, places
