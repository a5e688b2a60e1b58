"""Long documents: a run whose rule has zeros against a softmax run of the same sizes.

    python benchmarks/decoding.py --run runs/chance --against runs/softmax --json

A document is joined from the sentences of the run's test split until it has `--tokens` source
tokens, and is translated in one window, sentence by sentence into as many sentences. The runs
take turns, each in float32 and in int8. Without `--against` the peer is a softmax twin: the run's
own weights with softmax in all attention, whose translations mean nothing, of the same length.
A run's speed is that of its target tokens; the zero fraction is that of its own reads.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import reluformer as rf
from measure import circumstances, publish
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.beam_search import start_search
from reluformer.translation.native_decoder import NativeDecoder
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.scoring import read_split
from reluformer.translation.search import Outline
from reluformer.translation.tokenizer import BEGIN, END, SEPARATOR, Tokenizer

ATTENTION = ("encoder_attention", "decoder_attention", "cross_attention")


def softmax_twin(model: ReLUFormer) -> ReLUFormer:
    """The same weights with softmax in all attention."""
    twin = ReLUFormer(model.config.replace(**dict.fromkeys(ATTENTION, "softmax"))).eval()
    twin.load_state_dict(model.state_dict(), strict=False)
    return twin


def documents(sentences: list[str], tokenizer: Tokenizer, tokens: int, count: int) -> list[list[int]]:
    """`count` documents of about so many tokens, with separators and end."""
    found: list[list[int]] = [[]]
    for sentence in sentences * (1 + tokens * count // max(1, len(sentences))):
        row = [*tokenizer.encode(sentence), SEPARATOR]
        if len(found[-1]) + len(row) > tokens:
            if len(found) == count:
                break
            found.append([])
        found[-1] += row
    return [[*document[:-1], END] for document in found]


def translate(decoder: NativeDecoder, source: list[int], config: DecodingConfig) -> tuple[int, ...]:
    """The tokens of the best hypothesis."""
    search = start_search(decoder, config)
    number = search.add(source, Outline.of(source, config))
    while not search.done:
        search.run()
    return search.hypotheses(number)[0].tokens


@torch.inference_mode()
def zero_fractions(model: ReLUFormer, source: list[int], target: tuple[int, ...]) -> dict[str, float]:
    """Shares of slots with a weight of exactly 0, of the encoder, the decoder and cross attention."""
    reads = model(torch.tensor([source]), torch.tensor([[BEGIN, *target]]), stats=True).reads
    kinds = {"encoder": ("encoder", "attention"), "decoder": ("decoder", "attention"), "cross": ("decoder", "cross")}
    found = {}
    for kind, (side, part) in kinds.items():
        rows = [stats for name, stats in reads.items() if name.startswith(side) and name.endswith(part)]
        slots = sum(float(stats.n_visible.expand_as(stats.row_sum).sum()) for stats in rows)
        zeros = sum(float((stats.zero_fraction * stats.n_visible).sum()) for stats in rows)
        found[kind] = round(zeros / max(1.0, slots), 4)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a trained run")
    parser.add_argument("--against", type=Path, help="a softmax run of the same sizes")
    parser.add_argument("--text", type=Path, help="sentences, one a line; default: the run's test split")
    parser.add_argument("--tokens", type=int, default=1000, help="source tokens of a document")
    parser.add_argument("--documents", type=int, default=2, help="documents of a turn, decoded one after the other")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 2, 4], help="hypotheses kept; 1 is greedy")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    arguments = parser.parse_args()
    translator = rf.load(arguments.run)
    peer = softmax_twin(translator.model) if arguments.against is None else rf.load(arguments.against).model
    if arguments.text is not None:
        sentences = arguments.text.read_text("utf-8").splitlines()
    else:
        sentences = [sentence for document in read_split(arguments.run, "test")[0] for sentence in document.src]
    sources = documents(sentences, translator.tokenizer, arguments.tokens, arguments.documents)
    configs = {beam: DecodingConfig(beam=beam) for beam in arguments.beams}
    rule = translator.model.config.decoder_attention.name
    twin = "softmax twin" if arguments.against is None else "softmax"
    models = {rule: translator.model, twin: peer}
    decoders = {(name, int8): NativeDecoder(model, int8) for name, model in models.items() for int8 in (False, True)}
    times: dict[Any, list[float]] = {(beam, *key): [] for beam in configs for key in decoders}
    tokens: dict[Any, int] = {}
    for turn in range(arguments.repeats + 1):
        print(f"turn {turn} of {arguments.repeats}", file=sys.stderr, flush=True)
        for beam, config in configs.items():
            for key, decoder in decoders.items():
                started = time.perf_counter()
                found = [translate(decoder, source, config) for source in sources]
                if turn > 0:  # the first is for warming up
                    times[beam, *key].append(time.perf_counter() - started)
                tokens[beam, *key] = sum(len(one) + 1 for one in found)
                if key == (rule, False):
                    zeros = zero_fractions(translator.model, sources[0], found[0])
    speeds = {key: tokens[key] / statistics.median(seconds) for key, seconds in times.items()}
    rows = [
        {
            "beam": beam,
            "contestant": name,
            "weights": "int8" if int8 else "float32",
            "target_tokens": tokens[beam, name, int8],
            "tokens_per_second": round(speed, 1),
            "speed_over_softmax": round(speed / speeds[beam, twin, int8], 3),
        }
        for (beam, name, int8), speed in speeds.items()
    ]
    if not arguments.json:
        print(f"zero fractions of '{rule}': {zeros}")
        for row in rows:
            print("  ".join(f"{value:>14}" for value in row.values()))
    names = ("width", "heads", "encoder_layers", "decoder_layers", "slots", "vocab_size")
    sizes = {name: getattr(translator.model.config, name) for name in names}
    settings = {"source_tokens": [len(source) for source in sources], **sizes}
    results = {"benchmark": "decoding", "settings": settings, **circumstances(), "zero_fractions": zeros, "rows": rows}
    publish(results, arguments.json, arguments.out)


if __name__ == "__main__":
    main()
