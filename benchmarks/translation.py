"""Beam search side by side with CTranslate2, transformers' generate, Marian and ONNX Runtime.

    python benchmarks/translation.py --run runs/multi30k --sparse runs/multi30k-sparse --json
    python benchmarks/translation.py --json
    python benchmarks/translation.py --document 1000 --json

With `--run`, a trained softmax model translates the test sentences of its recipe, alone (batch 1),
16 or 64 at a time, and as one file, which each system divides as it likes. CTranslate2, generate
and ONNX Runtime have the same weights; Marian has random ones and targets of the mean length.
`--sparse` adds another run of ours. BLEU is that of the whole file.

Without `--run`, the weights are random: width 256, 3 + 3 layers, feed-forward 1024, a vocabulary of
8,000, 32 source tokens and 48 positions; the rules are relu, relu_chance and softmax. With
`--document 1000` it is one document of so many tokens on both sides.

All systems get tokens and return tokens. They take turns, with one thread and with all, and medians
are compared, those of each system with the number of threads that suits it better. Slow systems
translate only the first sentences of a turn. What is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import reluformer as rf
import translation_peers as peers
from measure import circumstances, publish
from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.beam_search import start_search
from reluformer.translation.native_decoder import NativeDecoder
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.scoring import read_split, score
from reluformer.translation.search import Outline
from reluformer.translation.tokenizer import END

ATTENTION = ("encoder_attention", "decoder_attention", "cross_attention")
SIZES = dict(vocab_size=8000, width=256, heads=4, encoder_layers=3, decoder_layers=3, slots=1024)
SOURCE, TARGET, RANDOM = 32, 48, 64
SENTENCES = {1: 100, 16: 320, 64: 640}
"""Sentences of a turn, by the size of batches; a file has all of them."""
SLOW = {1: 10, 16: 32, 64: 64}
FILE = 0
"""The batch size that stands for the whole file."""
REST = 0.3
"""Seconds before a turn: OpenMP's threads of the system before spin for 0.2 s, and would take a core from this one."""


@dataclass
class Contestant:
    """A system that takes part."""

    translate: peers.System
    slow: bool = False
    only_file: bool = False
    seconds: dict[int, list[float]] = field(default_factory=dict)
    """Of each turn and batch size, a sentence."""
    latencies: list[float] = field(default_factory=list)
    """Of single sentences."""

    def takes(self, batch: int) -> bool:
        return batch == FILE or not self.only_file

    def turn(self, batch: int, sources: peers.Tokens, warming_up: bool) -> None:
        counts = SLOW if self.slow else SENTENCES
        sources = sources[: counts.get(batch, 128 if self.slow else len(sources))]
        step, times = batch or len(sources), []
        time.sleep(REST)
        if not self.slow:
            self.translate(sources[:2])  # the caches are those of the system before
        for start in range(0, len(sources), step):
            rows = sources[start : start + step]
            started = time.perf_counter()
            found = self.translate(rows)
            times.append(time.perf_counter() - started)
            assert len(found) == len(rows)
        if not warming_up:
            self.seconds.setdefault(batch, []).append(sum(times) / len(sources))
            if batch == 1:
                self.latencies += times


def ours(decoder: NativeDecoder, config: DecodingConfig, forced: int | None = None) -> peers.System:
    """This project; with `forced`, the end is the last of so many positions."""

    def translate(sources: peers.Tokens) -> list[list[int]]:
        search = start_search(decoder, config)
        outlines = [Outline.of(source, config) if forced is None else Outline((forced - 1,)) for source in sources]
        numbers = [search.add(source, outline) for source, outline in zip(sources, outlines, strict=True)]
        while not search.done:
            search.run()
        return [list(search.hypotheses(number)[0].tokens) for number in numbers]

    return translate


def if_installed(found: dict[str, Contestant], name: str, make: Callable[[], peers.System], **options: Any) -> None:
    """Adds a peer, or says what is missing."""
    try:
        found[name] = Contestant(make(), **options)
    except ImportError as error:
        print(f"{name} is left out: pip install {error.name}", file=sys.stderr)


def random_systems(threads: int, length: int) -> dict[str, Contestant]:
    """Random weights; every target has the same length."""
    search = DecodingConfig(beam=4, min_length=length - 1)
    models = {
        rule: ReLUFormer(ModelConfig(**SIZES, **dict.fromkeys(ATTENTION, rule))).eval()
        for rule in ("relu", "relu_chance", "softmax")
    }
    found = {
        f"reluformer {kind} ({rule})": Contestant(ours(NativeDecoder(model, kind == "int8"), search, length))
        for rule, model in models.items()
        for kind in ("float32", "int8")
    }
    options = {"min_decoding_length": length, "max_decoding_length": length}
    for kind in ("float32", "int8"):

        def make(kind: str = kind) -> peers.System:
            return partial(peers.ctranslate2_of(models["softmax"], kind, threads, 4), **options)

        if_installed(found, f"ctranslate2 {kind}", make)
    if_installed(found, "marian generate", lambda: peers.marian_of(models["softmax"], 4, length), slow=True)
    return found


def trained_systems(run: Path, sparse: Path | None, threads: int, length: int) -> dict[str, Contestant]:
    """Our runs, and the peers with the weights of the first."""
    translator = rf.load(run)
    model, config = translator.model, translator.config
    if (reason := peers.refusal(model)) is not None:
        raise SystemExit(f"{run}: {reason}")
    runs = {"softmax": model} if sparse is None else {"softmax": model, "sparse": rf.load(sparse).model}
    found = {
        f"reluformer {kind} ({name})": Contestant(ours(NativeDecoder(one, kind == "int8"), config))
        for name, one in runs.items()
        for kind in ("float32", "int8")
    }
    greedy = ours(NativeDecoder(model, True), config.replace(beam=1))
    found["reluformer int8 (softmax), greedy"] = Contestant(greedy)
    for kind in ("float32", "int8"):
        make = partial(peers.ctranslate2_of, model, kind, threads, config.beam)
        if_installed(found, f"ctranslate2 {kind}", make)
        for together in (32, 64):
            name = f"ctranslate2 {kind}, own batches of {together}"
            if_installed(found, name, partial(make, together), only_file=True)
    if_installed(found, "onnx runtime int8", lambda: peers.onnx_of(run, config), slow=True)
    if_installed(found, "transformers generate", lambda: peers.generate_of(model, config), slow=True)
    marian = partial(peers.marian_of, model, config.beam, length)
    if_installed(found, "marian generate", marian, slow=True)
    return found


def rates(contestants: dict[str, Contestant], batch: int) -> dict[str, float]:
    """Sentences a second of each system: the median of its turns."""
    return {
        name: round(1 / statistics.median(one.seconds[batch]), 3)
        for name, one in contestants.items()
        if one.takes(batch)
    }


def ratios(speed: dict[str, float]) -> dict[str, dict[str, float]]:
    """How many times as fast each of ours is as each peer."""
    own = [name for name in speed if name.startswith("reluformer")]
    return {name: {peer: round(speed[name] / speed[peer], 2) for peer in speed if peer not in own} for name in own}


def percentiles(one: Contestant) -> dict[str, float]:
    """p50 and p95 of a single sentence in milliseconds."""
    times = sorted(one.latencies)
    return {f"p{share}": round(1000 * times[min(len(times) - 1, len(times) * share // 100)], 2) for share in (50, 95)}


def quality(contestants: dict[str, Contestant], run: Path, sources: peers.Tokens, references: Any) -> dict[str, Any]:
    """BLEU of each fast system on the whole file."""
    tokenizer = rf.load(run).tokenizer
    found = {}
    for name, one in contestants.items():
        if one.slow or one.only_file:
            continue
        texts = [[tokenizer.decode(row)] for row in one.translate(sources)]
        found[name] = round(score(texts, references).bleu.value, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a trained softmax run; default: random weights")
    parser.add_argument("--sparse", type=Path, help="another run of ours")
    parser.add_argument("--document", type=int, metavar="TOKENS", help="random weights and one document of this length")
    parser.add_argument("--limit", type=int, help="translate only the first sentences")
    parser.add_argument("--rounds", type=int, default=3, help="turns that are measured")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, FILE], help="batch sizes; 0 is the file")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    arguments = parser.parse_args()
    if arguments.document is not None:
        arguments.batches = [1]
    torch.manual_seed(0)
    references: Sequence[Any] = []
    if arguments.run is None:
        generator = torch.Generator().manual_seed(0)
        shape = (RANDOM, SOURCE) if arguments.document is None else (1, arguments.document)
        sources = torch.randint(5, SIZES["vocab_size"], shape, generator=generator).tolist()
        length = arguments.document or TARGET
        setting: dict[str, Any] = {**SIZES, "source": shape[1], "target": length, "beam": 4}
    else:
        documents = read_split(arguments.run, "test")[0][: arguments.limit]
        translator = rf.load(arguments.run)
        pairs = [pair for document in documents for pair in zip(document.src, document.tgt or (), strict=True)]
        sources = [[*tokens, END] for tokens in translator.tokenizer.encode_batch([source for source, _ in pairs])]
        references = [[target] for _, target in pairs]
        lengths = [len(translator.tokenizer.encode(target)) for _, target in pairs]
        model = translator.model.config.model_dump(mode="json")
        setting = {"run": str(arguments.run), "sentences": len(sources), "beam": translator.config.beam, "model": model}
    numbers = sorted({1, torch.get_num_threads()})
    contestants: dict[int, dict[str, Contestant]] = {}
    for threads in numbers:
        torch.set_num_threads(threads)  # before ONNX Runtime opens its sessions
        if arguments.run is None:
            contestants[threads] = random_systems(threads, length)
        else:
            mean = 1 + round(statistics.mean(lengths))
            contestants[threads] = trained_systems(arguments.run, arguments.sparse, threads, mean)
    results: dict[str, Any] = {}
    figures: dict[str, Any] = {"benchmark": "translation", "setting": {**setting, "rounds": arguments.rounds}}
    figures |= {**circumstances(), "batches": results}
    for batch in arguments.batches:
        for turn in range(arguments.rounds + 1):
            print(f"batch {batch or 'file'}, turn {turn} of {arguments.rounds}", file=sys.stderr, flush=True)
            for threads, found in contestants.items():
                torch.set_num_threads(threads)
                for one in found.values():
                    if one.takes(batch) and not (one.slow and turn != 1):
                        one.turn(batch, sources, warming_up=turn == 0)
        speeds = {threads: rates(found, batch) for threads, found in contestants.items()}
        best = {name: max(speed[name] for speed in speeds.values()) for name in speeds[numbers[0]]}
        results[str(batch or "file")] = {
            "sentences_per_second_by_threads": speeds,
            "ratios_of_the_better": ratios(best),
        }
        if batch == 1:
            figures["latency_milliseconds_by_threads"] = {
                threads: {name: percentiles(one) for name, one in found.items() if one.takes(1)}
                for threads, found in contestants.items()
            }
        publish(figures, False, arguments.out)  # what is measured is kept, should the rest be cut off
        if not arguments.json:
            print(f"batch {batch or 'file'}")
            for name, rate in best.items():
                each = "".join(f"{speed[name]:8.1f}" for speed in speeds.values())
                beside = "".join(f"  {ratio:.2f} x {peer}" for peer, ratio in ratios(best).get(name, {}).items())
                print(f"  {name:40} {rate:8.1f} sentences/s (threads {numbers}: {each} ){beside}")
    if arguments.run is not None:
        torch.set_num_threads(numbers[-1])
        figures["bleu"] = quality(contestants[numbers[0]], arguments.run, sources, references)
        print(figures["bleu"], file=sys.stderr)
    publish(figures, arguments.json, arguments.out)


if __name__ == "__main__":
    main()
