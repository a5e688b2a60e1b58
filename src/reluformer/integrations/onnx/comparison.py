"""How far exported graphs are from the model that they were traced from."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from reluformer.integrations.onnx.stepper import OnnxStepper
from reluformer.models.encoder_decoder import Encoded, ReLUFormer
from reluformer.translation.stepper import evaluating

_LENGTHS = (7, 3, 1)
"""Tokens of the sources that are read together: with padding, and one that is as short as can be."""


@torch.inference_mode()
def largest_difference(model: ReLUFormer, encoder: Path, decoder: Path) -> tuple[float, float]:
    """The largest difference of a log-probability, and the largest log-probability itself.

    Random sources go through the lengths that tracing could have fixed by mistake: a prefix
    of many tokens, single steps, beams that branch, and a source alone.
    """
    stepper = OnnxStepper(encoder, decoder)
    tokens = _Tokens(model.config.vocab_size)
    found = [_walk(model, stepper, tokens, _LENGTHS, beams=(3, 2)), _walk(model, stepper, tokens, (1,), beams=(1,))]
    return max(difference for difference, _ in found), max(size for _, size in found)


def _walk(
    model: ReLUFormer, stepper: OnnxStepper, tokens: _Tokens, lengths: tuple[int, ...], beams: tuple[int, ...]
) -> tuple[float, float]:
    """Decode a prefix, then a position with each of these numbers of beams."""
    sources = len(lengths)
    source, mask = tokens(sources, max(lengths)), torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    prefix = tokens(sources, 4 if sources > 1 else 1)
    differences, sizes, width = [], [], 1
    with evaluating(model):
        encoded = model.encode(source, mask)
        following, state = stepper.begin(source, mask, prefix)
        for count in (0, *beams):
            if count:
                parents = (torch.arange(count).flip(0) % width + width * torch.arange(sources)[:, None]).flatten()
                newest, width = tokens(sources * count, 1), count
                following = stepper.step(newest.flatten(), parents, state)
                prefix = torch.cat([prefix[parents], newest], 1)
            expected = _expected(model, prefix, encoded)
            differences.append(float((following - expected).abs().max()))
            sizes.append(float(expected.abs().max()))
    return max(differences), max(sizes)


def _expected(model: ReLUFormer, prefix: Tensor, encoded: Encoded) -> Tensor:
    """Log-probabilities after `prefix` (R, T) by the model's full pass."""
    times = prefix.size(0) // encoded.states.size(0)
    assert encoded.mask is not None
    states, mask = encoded.states.repeat_interleave(times, 0), encoded.mask.repeat_interleave(times, 0)
    last = model.decode(prefix, Encoded(states, mask, {}))[0][:, -1]
    return model.logits(last).log_softmax(-1)


class _Tokens:
    """Random ids of a vocabulary, the same in every run."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, rows: int, length: int) -> Tensor:
        return torch.randint(0, self._vocab_size, (rows, length), generator=self._generator)
