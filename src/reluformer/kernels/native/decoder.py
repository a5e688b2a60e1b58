"""The C structs of translation, as `decoder.h` and `search.h` declare them, and the calls that take them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_int64, c_void_p
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from reluformer.kernels.native.library import loaded

READ_RELU, READ_SOFTMAX, READ_RELU_EXP = range(3)
GOES_ON, DONE, NO_MEMORY, NOT_FINITE = range(4)


class DecoderLinear(Structure):
    """A linear layer y = x W^T + bias, with the weight in panels of float32 or int8: `Linear` of decoder.h."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("bytes", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("by_slot", c_void_p),
    )


class Norm(Structure):
    """A LayerNorm."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_double))


class Embedding(Structure):
    """Rows of embeddings in float32, or in int8 with a scale each."""

    _fields_ = (("floats", c_void_p), ("bytes", c_void_p), ("scales", c_void_p))


class Layer(Structure):
    """A block of the encoder or the decoder."""

    _fields_ = (
        ("own_norm", Norm),
        ("cross_norm", Norm),
        ("ffn_norm", Norm),
        ("query_key_value", DecoderLinear),
        ("own_output", DecoderLinear),
        ("cross_query", DecoderLinear),
        ("cross_key_value", DecoderLinear),
        ("cross_output", DecoderLinear),
        ("ffn_keys", DecoderLinear),
        ("ffn_values", DecoderLinear),
        ("own_offset", c_void_p),
        ("cross_offset", c_void_p),
    )


class ReadRule(Structure):
    """How scores become weights: factor and exponent of READ_RELU, the other numbers of READ_RELU_EXP."""

    _fields_ = (
        ("kind", c_int64),
        ("factor", c_double),
        ("exponent", c_double),
        ("threshold", c_double),
        ("growth", c_double),
        ("spread", c_double),
        ("floor", c_double),
        ("delta", c_double),
        ("highest", c_double),
        ("chance", c_double),
        ("cap", c_double),
    )


class Model(Structure):
    """All weights of an encoder and decoder, and their sizes."""

    _fields_ = (
        ("width", c_int64),
        ("heads", c_int64),
        ("slots", c_int64),
        ("vocabulary", c_int64),
        ("encoder_layers", c_int64),
        ("decoder_layers", c_int64),
        ("pre_norm", c_int64),
        ("path", c_int64),
        ("separator", c_int64),
        ("adds_positions", c_int64),
        ("encoder_rule", ReadRule),
        ("own_rule", ReadRule),
        ("cross_rule", ReadRule),
        ("embedding_scale", c_double),
        ("source_embedding", Embedding),
        ("target_embedding", Embedding),
        ("encoder", POINTER(Layer)),
        ("decoder", POINTER(Layer)),
        ("encoder_norm", Norm),
        ("decoder_norm", Norm),
        ("output", DecoderLinear),
        ("positions", c_int64),
        ("sinusoids", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
    )


class SearchOptions(Structure):
    """How to search."""

    _fields_ = (
        ("beam", c_int64),
        ("n_best", c_int64),
        ("min_length", c_int64),
        ("stops_at_beam", c_int64),
        ("batch_tokens", c_int64),
        ("length_penalty", c_double),
    )


class SentenceTask(Structure):
    """A source, the prefix of its target and its outline."""

    _fields_ = (
        ("source", c_void_p),
        ("source_length", c_int64),
        ("prefix", c_void_p),
        ("prefix_length", c_int64),
        ("limits", c_void_p),
        ("limit_count", c_int64),
        ("aligned", c_int64),
        ("wants_reads", c_int64),
    )


class _Found(Structure):
    _fields_ = (("length", c_int64), ("spans", c_int64), ("score", c_double), ("normalised", c_double))


class Found(NamedTuple):
    """A hypothesis."""

    tokens: tuple[int, ...]
    reads: npt.NDArray[np.float32] | None
    """What each token read of each sentence of the source, where that was asked for."""
    score: float
    normalised: float


class Weights:
    """Tensors laid out for the library, kept alive for as long as a model points to them.

    Args:
        quantised: Whether matrices become int8, with a scale for each row.
    """

    def __init__(self, quantised: bool = False) -> None:
        self.path = loaded().path
        self.quantised = quantised
        self._kept: list[Any] = []
        self._rows: dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]] = {}

    def linear(self, weight: Tensor, bias: Tensor | None, by_slot: bool = False) -> DecoderLinear:
        """Returns a linear layer from a weight (out, in); `by_slot` for inputs of which many are zero."""
        outputs, inputs = weight.shape
        weight = weight.detach().contiguous()
        layer = DecoderLinear(bias=None if bias is None else self.pointer(bias), inputs=inputs, outputs=outputs)
        if not self.quantised:
            panels = torch.empty(loaded().panel_floats(self.path, inputs, outputs))
            loaded().pack_linear(self.path, panels.data_ptr(), weight.data_ptr(), inputs, outputs)
            layer.panels = self.pointer(panels)
            return layer
        rows, scales = self._quantised(weight)
        packed = torch.empty(loaded().byte_panel_size(inputs, outputs), dtype=torch.int8)
        sums = torch.empty(outputs, dtype=torch.int32)
        slots = torch.empty(loaded().byte_slots_size(inputs, outputs) if by_slot else 0, dtype=torch.int8)
        slot_rows = slots.data_ptr() if by_slot else None
        loaded().pack_bytes(rows.data_ptr(), inputs, outputs, packed.data_ptr(), sums.data_ptr(), slot_rows)
        layer.bytes, layer.scales, layer.sums = map(self.pointer, (packed, scales, sums))
        layer.by_slot = self.pointer(slots) if by_slot else None
        return layer

    def embedding(self, table: Tensor) -> Embedding:
        """Returns rows of embeddings."""
        if not self.quantised:
            return Embedding(floats=self.pointer(table))
        rows, scales = self._quantised(table.detach().contiguous())
        return Embedding(bytes=self.pointer(rows), scales=self.pointer(scales))

    def _quantised(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rows of a matrix in int8, and their scales; those of a matrix that is used twice are shared."""
        key = weight.data_ptr(), tuple(weight.shape)
        if key not in self._rows:
            rows, scales = torch.empty(weight.shape, dtype=torch.int8), torch.empty(weight.size(0))
            loaded().quantise(weight.data_ptr(), *weight.shape, rows.data_ptr(), scales.data_ptr())
            self._kept.append(weight)
            self._rows[key] = rows, scales
        return self._rows[key]

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

    def layers(self, layers: Sequence[Layer]) -> Any:
        """Returns an array of layers."""
        array = (Layer * len(layers))(*layers)
        self._kept.append(array)
        return array

    @property
    def size(self) -> int:
        """The bytes that they take."""
        tensors = {part.data_ptr(): part for part in self._kept if isinstance(part, Tensor)}
        return sum(part.numel() * part.element_size() for part in tensors.values())


class CompiledSearch:
    """A search of the library, which is freed with this object.

    Args:
        model: The model; it must outlive the search.
        options: How to search.
    """

    def __init__(self, model: Model, options: SearchOptions) -> None:
        self._model = model
        self._library = loaded()
        self._handle = self._library.search(ctypes.byref(model), ctypes.byref(options))
        if not self._handle:
            raise MemoryError("no memory for a search")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.search_end(self._handle)

    def add(
        self, source: Sequence[int], prefix: Sequence[int], limits: Sequence[int], aligned: bool, reads: bool
    ) -> int:
        """Adds a sentence, and returns its number."""
        lists = [(c_int64 * len(row))(*row) for row in (source, prefix, limits)]
        arguments = (part for row in lists for part in (ctypes.addressof(row), len(row)))
        number: int = self._library.search_add(self._handle, ctypes.byref(SentenceTask(*arguments, aligned, reads)))
        if number < 0:
            raise MemoryError("no memory for another sentence")
        return number

    def run(self, positions: int, microseconds: int) -> int:
        """Decodes for so many positions or microseconds, without the interpreter's lock; returns the status."""
        return int(self._library.search_run(self._handle, positions, microseconds, torch.get_num_threads()))

    def finished(self) -> list[int]:
        """Returns the sentences that finished since the last call."""
        numbers = (c_int64 * 256)()
        found: list[int] = []
        while count := self._library.search_finished(self._handle, ctypes.addressof(numbers), len(numbers)):
            found += numbers[:count]
        return found

    def drop(self, number: int) -> None:
        """Forgets a sentence, finished or not."""
        self._library.search_drop(self._handle, number)

    def hypotheses(self, number: int) -> list[Found]:
        """Returns the hypotheses of a finished sentence, best first."""
        return [self._found(number, rank) for rank in range(self._library.search_count(self._handle, number))]

    def settled(self, number: int) -> Found:
        """Returns the tokens with which every hypothesis of a sentence begins that can still win."""
        return self._found(number, -1)

    def _found(self, number: int, rank: int) -> Found:
        found = _Found()
        arguments = self._handle, number, rank, ctypes.byref(found)
        if self._library.search_hypothesis(*arguments, None, None):
            raise MemoryError("no memory for a hypothesis")
        tokens = (ctypes.c_int32 * found.length)()
        reads = np.empty((found.length, found.spans), np.float32) if found.spans else None
        if self._library.search_hypothesis(
            *arguments, ctypes.addressof(tokens), None if reads is None else reads.ctypes.data
        ):
            raise MemoryError("no memory for a hypothesis")
        return Found(tuple(tokens), reads, found.score, found.normalised)
