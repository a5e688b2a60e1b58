"""Decoders, and steppers: decoders that advance all beams of all sources by one position.

Two decoders of a model give the same numbers. `TorchStepper` takes every rule and device.
`NativeDecoder` searches in the compiled library, where that can be used. `decoder_of` chooses
between them. An exported model has a `Stepper` of its own.

Shapes: B sources, K beams of each, R = B * K rows, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from reluformer.models.encoder_decoder import Encoded, ReLUFormer
from reluformer.translation.tokenizer import PAD

Result = TypeVar("Result")

_GROUPS = 128
_REMEMBERED = 2
"""The searches whose encoded sources a stepper keeps."""


class Beams(Protocol):
    """The state of a stepper: what has been decoded so far."""

    def select(self, sources: Tensor) -> None:
        """Keeps these of the B sources, each with all of its beams."""


State = TypeVar("State", bound=Beams)


class Decoder(ABC):
    """What can translate: a model, or what was exported of one."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device that tokens must be on."""


class ModelDecoder(Decoder):
    """A decoder of a model. It copies weights, so make a new one when the model was trained further."""

    def __init__(self, model: ReLUFormer) -> None:
        self.model = model

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.model.output_embedding.weight.device

    @torch.inference_mode()
    def encoded(self, sources: Sequence[Sequence[int]]) -> Encoded:
        """Returns encoded sources.

        Args:
            sources: The token ids of each source.
        """
        source, mask = padded(sources, self.device)
        with evaluating(self.model) as model:
            return model.encode(source, mask)


class Stepper(Decoder, Generic[State]):
    """What beam search needs of a decoder."""

    @abstractmethod
    def begin(self, source: Tensor, mask: Tensor | None, prefix: Tensor) -> tuple[Tensor, State]:
        """Reads sources and the first tokens of their targets, with one beam of each.

        Args:
            source: Token ids (B, S).
            mask: True at tokens, (B, S); None without padding.
            prefix: The first tokens of each target, (B, T), T > 0.

        Returns:
            The log-probabilities (B, V) of the next token, and the beams.
        """

    @abstractmethod
    def step(self, tokens: Tensor, parents: Tensor, beams: State) -> Tensor:
        """Appends a token to each beam.

        The rows of one source stand together, and every source has as many. This number may
        change from step to step, so one step both branches and reorders.

        Args:
            tokens: The token of each row, (R).
            parents: The row of the step before that each row continues, (R).
            beams: The beams, which are changed.

        Returns:
            The log-probabilities (R, V) of the next token, in at least single precision. The
            caller may write to them; the next step overwrites them.
        """

    def best(self, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Returns the k greatest of each row (R, V) of a step in falling order, and their tokens; (R, k) each."""
        return best_tokens(rows, k)


AnyStepper = Stepper[Any]


class ModelStepper(ModelDecoder, Stepper[State]):
    """A stepper of a model."""

    def __init__(self, model: ReLUFormer) -> None:
        super().__init__(model)
        self._recent: deque[dict[tuple[int, ...], Tensor]] = deque(maxlen=_REMEMBERED)

    @torch.inference_mode()
    def begin(self, source: Tensor, mask: Tensor | None, prefix: Tensor) -> tuple[Tensor, State]:
        with evaluating(self.model) as model:
            encoded = model.encode(source, mask)
            lengths = [source.size(1)] * len(source) if mask is None else mask.sum(1).tolist()
            rows = zip(source.tolist(), encoded.states, lengths, strict=True)
            self._recent.append({tuple(row[:length]): states[:length] for row, states, length in rows})
            return self.start(encoded, prefix)

    @torch.inference_mode()
    def encoded(self, sources: Sequence[Sequence[int]]) -> Encoded:
        """Returns encoded sources; those that the last searches began with are not encoded again."""
        known = {row: states for batch in self._recent for row, states in batch.items()}
        found = [known.get(tuple(row)) for row in sources]
        if not found or any(states is None for states in found):
            return super().encoded(sources)
        _, mask = padded(sources, self.device)
        states = pad_sequence([states for states in found if states is not None], batch_first=True)
        return Encoded(states, mask, {})

    @abstractmethod
    def start(self, encoded: Encoded, prefix: Tensor) -> tuple[Tensor, State]:
        """Does what `begin` does with sources that are encoded already."""


def padded(rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor | None]:
    """Pads rows of tokens to one length.

    Returns:
        The tokens (B, T), and a mask (B, T) that is True at tokens, or None where nothing is padded.
    """
    longest = max(map(len, rows), default=0)
    tokens = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.long, device=device)
    tokens = tokens.view(len(rows), longest)
    if all(len(row) == longest for row in rows):
        return tokens, None
    lengths = torch.tensor([[len(row)] for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) < lengths


def in_batches_of_similar_length(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    most_tokens: int,
    run: Callable[[list[Sequence[int]], list[Sequence[int]]], Iterable[Result]],
) -> list[Result]:
    """Runs a function on pairs, the longest first, in batches of at most `most_tokens` with their padding.

    Returns:
        What the function returns for each pair, in the order of the pairs.
    """
    sizes = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    found: dict[int, Result] = {}
    while order:
        rows = max(1, most_tokens // max(1, sizes[order[0]]))
        batch, order = order[:rows], order[rows:]
        results = run([sources[number] for number in batch], [targets[number] for number in batch])
        found.update(zip(batch, results, strict=True))
    return [found[number] for number in range(len(sizes))]


@contextmanager
def evaluating(model: ReLUFormer) -> Iterator[ReLUFormer]:
    """Switches the model to evaluation mode, without dropout, for the duration of the block."""
    was_training = model.training
    model.eval()
    try:
        yield model
    finally:
        model.train(was_training)


def best_tokens(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the k greatest of each row (R, V) in falling order, and their tokens; (R, k) each.

    `topk` looks at one number after the other. So the vocabulary is divided into groups, whose
    maxima are found with vector instructions. The k greatest numbers are in the k groups with
    the greatest maxima.
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
