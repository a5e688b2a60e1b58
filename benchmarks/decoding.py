"""One step of decoding over a long cache: the trained run against a softmax model of the same size.

    python benchmarks/decoding.py --run runs/demo/reluformer --json

A step appends one token to every beam of every source, with a cache of 4096 slots in each
decoder layer: the run's own keys and values on a document, repeated to that length. The peer
has the run's sizes, softmax in all attention and the same cache; its weights are random, which
changes no softmax timing. The zero fraction is that of the run's weights at the step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import reluformer as rf
from attention_inputs import TrainedInputs, embedded_document
from measure import circumstances, publish
from reluformer.benchmarking import interleaved
from reluformer.errors import ReluformerError
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.native_stepper import NativeBeams, NativeStepper

ATTENTION = ("encoder_attention", "decoder_attention", "cross_attention")


def softmax_twin(model: ReLUFormer) -> ReLUFormer:
    """A model of the same sizes with softmax in all attention."""
    return ReLUFormer(model.config.replace(**dict.fromkeys(ATTENTION, "softmax"))).eval()


def filled(model: ReLUFormer, trained: TrainedInputs, batch: int, cache: int) -> tuple[NativeStepper, NativeBeams]:
    """A search that has decoded `cache` tokens of each source: its slots are those of the trained run."""
    if (reason := NativeStepper.refusal(model)) is not None:
        raise ReluformerError(f"this measures the compiled decoder: {reason}")
    stepper = NativeStepper(model)
    tokens = torch.randint(5, model.config.vocab_size, (batch, 64), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        _, beams = stepper.start(model.encode(tokens), tokens[:, :1])
        heads, layers = model.config.heads, model.config.decoder_layers
        _, keys, values = trained("causal", cache, heads * layers)
        for layer, slots in enumerate(beams.slots):
            own = slice(layer * heads, (layer + 1) * heads)
            own_keys, own_values = (part[:, own].expand(batch, -1, -1, -1).contiguous() for part in (keys, values))
            beams.slots[layer] = slots._replace(own_keys=own_keys, own_values=own_values)
        beams.ancestors = torch.arange(cache, dtype=torch.int32).expand(batch, -1).contiguous()
        beams.length = beams.used = cache
    return stepper, beams


def step_of(model: ReLUFormer, trained: TrainedInputs, batch: int, beam: int, cache: int) -> Callable[[], Tensor]:
    """Appends a token to every beam, each time to the same cache."""
    stepper, beams = filled(model, trained, batch, cache)
    tokens = torch.arange(batch * beam) % (model.config.vocab_size - 5) + 5
    stepper.step(tokens, torch.arange(batch).repeat_interleave(beam), beams)  # branches, and makes room
    length, used = beams.length, beams.used
    parents = torch.arange(batch * beam)

    def step() -> Tensor:
        beams.length, beams.used = length, used
        return stepper.step(tokens, parents, beams)

    step()
    return step


def zero_fraction(trained: TrainedInputs, model: ReLUFormer, cache: int) -> float:
    """Share of slots with a weight of exactly 0, for the run's last queries of the document, all layers and heads."""
    heads = model.config.heads * model.config.decoder_layers
    q, k, v = trained("causal", cache, heads)
    _, stats = rf.read(q[:, :, -64:], k, v, rule=model.config.decoder_attention, causal=True, return_stats=True)
    return float(stats.zero_fraction.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a trained run")
    parser.add_argument("--text", type=Path, help="the document that it reads, a sentence a line")
    parser.add_argument("--cache", type=int, default=4096, help="tokens decoded before the step")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="sources at once")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4], help="beams of each source")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    lines = arguments.text.read_text("utf-8").splitlines() if arguments.text else embedded_document()
    trained, model = TrainedInputs(arguments.run, lines), rf.load(arguments.run).model
    own = model.config.decoder_attention.name
    contestants = {own: model, "softmax twin": softmax_twin(model)}
    zeros = zero_fraction(trained, model, arguments.cache)
    rows: list[dict[str, Any]] = []
    for batch, beam in ((batch, beam) for batch in arguments.batches for beam in arguments.beams):
        print(f"{batch} sources x {beam} beams", file=sys.stderr, flush=True)
        steps = {name: step_of(found, trained, batch, beam, arguments.cache) for name, found in contestants.items()}
        timings = interleaved(steps, arguments.repeats)
        base = timings["softmax twin"].median
        for name, timing in timings.items():
            figures = {"milliseconds": round(1000 * timing.median, 3), "spread": round(timing.spread, 3)}
            over = {"time_over_softmax": round(timing.median / base, 3)}
            rows.append({"contestant": name, "batch": batch, "beam": beam, **figures, **over})
    if not arguments.json:
        print(f"zero fraction of '{own}': {zeros:.3f}")
        for row in rows:
            where = f"{row['batch']} x {row['beam']}"
            print(f"{where:>8}  {row['contestant']:14} {row['milliseconds']:9.2f} ms  {row['time_over_softmax']:.2f}")
    sizes = {name: getattr(model.config, name) for name in ("width", "heads", "decoder_layers", "slots", "vocab_size")}
    settings = {"cache": arguments.cache, "document_tokens": trained.tokens, **sizes}
    results = {"benchmark": "decoding", "settings": settings, **circumstances(), "zero_fraction": zeros, "rows": rows}
    publish(results, arguments.json, arguments.out)


if __name__ == "__main__":
    main()
