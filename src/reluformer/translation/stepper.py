"""A decoder that goes on by one position for several beams of each source at a time.

Two kinds of it decode with a model and give the same numbers: `TorchStepper` for every rule
and device, and `NativeStepper`, one call of the compiled library for a whole position, where
it can be used. `stepper_of` chooses. What decodes without a model, as an exported one does,
is a `Stepper` of its own.

Shapes: B sources, K beams of each, R = B * K rows, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from reluformer.models.encoder_decoder import Encoded, ReLUFormer

_GROUPS = 128


class Beams(Protocol):
    """What has been decoded so far."""

    def select(self, sources: Tensor) -> None:
        """Keep these of the B sources, each with all of its beams."""


State = TypeVar("State", bound=Beams)


class Stepper(ABC, Generic[State]):
    """What beam search needs of a model."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the tokens must be."""

    @abstractmethod
    def begin(self, source: Tensor, mask: Tensor | None, prefix: Tensor) -> tuple[Tensor, State]:
        """Read sources (B, S) and the first tokens of their targets, `prefix` (B, T), T > 0, one beam of each.

        mask (B, S) is True at tokens, None = no padding. What may follow as in `step`, and the beams.
        """

    @abstractmethod
    def step(self, tokens: Tensor, parents: Tensor, beams: State) -> Tensor:
        """Append `tokens` (R) to the beams `parents` (R, row numbers of the step before).

        Log-probabilities (R, V) of what may follow, in at least single precision; the
        caller may write to them, and the next step does. The rows of one source stand
        together, as many for each; this may be another number than before, so one step
        both branches and reorders.
        """

    def best(self, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k greatest of each of the rows that a step gave, in falling order, and their places; (R, k) each."""
        return best_tokens(rows, k)


AnyStepper = Stepper[Any]


class ModelStepper(Stepper[State]):
    """A model ready to decode. It holds copies of weights: make a new one after training on."""

    def __init__(self, model: ReLUFormer) -> None:
        self.model = model

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.output_embedding.weight.device

    @torch.inference_mode()
    def begin(self, source: Tensor, mask: Tensor | None, prefix: Tensor) -> tuple[Tensor, State]:
        with evaluating(self.model) as model:
            return self.start(model.encode(source, mask), prefix)

    @abstractmethod
    def start(self, encoded: Encoded, prefix: Tensor) -> tuple[Tensor, State]:
        """As `begin`, with sources that are encoded already."""


@contextmanager
def evaluating(model: ReLUFormer) -> Iterator[ReLUFormer]:
    """The model without dropout, for as long as the block lasts."""
    was_training = model.training
    model.eval()
    try:
        yield model
    finally:
        model.train(was_training)


def best_tokens(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k greatest of each row (R, V) in falling order, and their places; (R, k) each.

    `topk` looks at one number after the other. So the vocabulary is dealt out into groups,
    whose maxima are found with vector instructions; the k best numbers are in the k groups
    with the best maxima.
    """
    rows, size = logits.shape
    depth = size // _GROUPS
    if depth < 8 or k * 4 > _GROUPS:
        return logits.topk(min(k, size), dim=1)
    dealt = logits[:, : depth * _GROUPS].view(rows, depth, _GROUPS)
    groups = dealt.amax(1).topk(k, dim=1).indices
    places = torch.arange(0, depth * _GROUPS, _GROUPS, device=logits.device)[:, None] + groups[:, None]
    rest = torch.arange(depth * _GROUPS, size, device=logits.device).expand(rows, -1)
    places = torch.cat([places.flatten(1), rest], 1)
    values, order = logits.gather(1, places).topk(k, dim=1)
    return values, places.gather(1, order)
