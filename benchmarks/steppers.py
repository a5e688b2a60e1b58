"""The decoder's step in torch against the model's own: is `TorchStepper` worth its code?

    python benchmarks/steppers.py --json

Both decode the same tokens for the same beams: once with `ReLUFormer.step` and its cache,
which moves with the beams, and once with `TorchStepper`, whose slots stay where they are.
The beams branch at random. A ratio above 1 says how many times faster `TorchStepper` is;
it stays in the package while that is 1.3 on lengths that documents have.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from measure import circumstances, publish
from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import DecoderState, Encoded, ReLUFormer
from reluformer.translation.stepper import AnyStepper, ModelStepper
from reluformer.translation.torch_stepper import TorchStepper

ATTENTION = ("encoder_attention", "decoder_attention", "cross_attention")
VOCABULARY = 8000
SOURCE = 32


class CachedStepper(ModelStepper[Any]):
    """The model's own step; the cached slots are reordered as the beams are."""

    @torch.inference_mode()
    def start(self, encoded: Encoded, prefix: Tensor) -> tuple[Tensor, DecoderState]:
        state = self.model.start(encoded)
        return self.model.logits(self.model.step(prefix, state)[:, -1]).log_softmax(-1), state

    @torch.inference_mode()
    def step(self, tokens: Tensor, parents: Tensor, beams: DecoderState) -> Tensor:
        beams.reorder(parents)
        return self.model.logits(self.model.step(tokens[:, None], beams)[:, -1]).log_softmax(-1)


def decoding(stepper: AnyStepper, batch: int, beam: int, positions: int) -> Callable[[], Tensor]:
    """Returns a function that decodes `positions` random tokens with `beam` beams of each of `batch` sources."""

    def decode() -> Tensor:
        generator = torch.Generator().manual_seed(0)

        def tokens(*shape: int) -> Tensor:
            return torch.randint(5, VOCABULARY, shape, generator=generator)

        lengths = torch.randint(SOURCE // 2, SOURCE + 1, (batch, 1), generator=generator)
        mask = torch.arange(SOURCE) < lengths
        following, beams = stepper.begin(tokens(batch, SOURCE), mask, torch.ones(batch, 1, dtype=torch.long))
        width = 1
        for _ in range(positions):
            stepper.best(following, beam)
            parents = torch.randint(0, width, (batch, beam), generator=generator).sort(1).values
            rows = (parents + width * torch.arange(batch)[:, None]).flatten()
            following = stepper.step(tokens(batch * beam), rows, beams)
            width = beam
        return following

    return decode


def least_seconds(contestants: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, float]:
    """Returns the least processor time of each contestant; they take turns."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(repeats):
        for name, decode in contestants.items():
            started = time.process_time()
            decode()
            best[name] = min(best[name], time.process_time() - started)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["tiny", "base"], help="sizes of the model")
    parser.add_argument("--rules", nargs="+", default=["softmax", "sparsemax"], help="the rule of all attention")
    parser.add_argument("--positions", type=int, nargs="+", default=[32, 128], help="tokens to decode")
    parser.add_argument("--batch", type=int, default=16, help="sources at once")
    parser.add_argument("--beam", type=int, default=4, help="beams of each source")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for preset, rule in ((preset, rule) for preset in arguments.presets for rule in arguments.rules):
        torch.manual_seed(0)
        model = ReLUFormer(ModelConfig.preset(preset, vocab_size=VOCABULARY, **dict.fromkeys(ATTENTION, rule))).eval()
        for positions in arguments.positions:
            print(f"{preset}, {rule}, {positions} positions", file=sys.stderr, flush=True)
            steppers = {"model.step": CachedStepper(model), "TorchStepper": TorchStepper(model)}
            sizes = arguments.batch, arguments.beam, positions
            contestants = {name: decoding(stepper, *sizes) for name, stepper in steppers.items()}
            found, wanted = contestants["TorchStepper"](), contestants["model.step"]()
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
            seconds = least_seconds(contestants, arguments.repeats)
            ratio = seconds["model.step"] / seconds["TorchStepper"]
            rows.append({"preset": preset, "rule": rule, "positions": positions, **seconds, "ratio": round(ratio, 2)})
    if not arguments.json:
        for row in rows:
            print(f"{row['preset']:8} {row['rule']:10} {row['positions']:4} positions  {row['ratio']:.2f} times")
    settings = {"batch": arguments.batch, "beam": arguments.beam, "vocabulary": VOCABULARY, "source": SOURCE}
    publish(
        {"benchmark": "steppers", "settings": settings, **circumstances(), "rows": rows}, arguments.json, arguments.out
    )


if __name__ == "__main__":
    main()
