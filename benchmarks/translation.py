"""Beam search side by side with Marian's `generate` and CTranslate2 at the same size.

    python benchmarks/translation.py --json

All systems have width 256, 3 + 3 layers, 4 heads, feed-forward 1024 and a vocabulary of 8,000
with random weights, read 32 source tokens and decode 48 positions with 4 beams. They take
turns, with one thread and with all; the medians are compared, those of each system with the
number of threads that suits it better. Marian needs `transformers`, CTranslate2 also
`ctranslate2`; what is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from measure import circumstances, publish
from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.beam_search import Outline, beam_search
from reluformer.translation.native_stepper import stepper_of
from reluformer.translation.recipe import DecodingConfig

VOCABULARY, WIDTH, LAYERS, HEADS, SLOTS = 8000, 256, 3, 4, 1024
SOURCE, TARGET, BEAM = 32, 48, 4

Job = Callable[[], Any]
System = Callable[[torch.Tensor], Job]


def ours(rule: str) -> System:
    """This project with `rule` in all attention; the end is the last of the decoded positions."""
    rules: dict[str, Any] = dict(encoder_attention=rule, decoder_attention=rule, cross_attention=rule)
    sizes = dict(width=WIDTH, heads=HEADS, encoder_layers=LAYERS, decoder_layers=LAYERS, slots=SLOTS)
    stepper = stepper_of(ReLUFormer(ModelConfig(vocab_size=VOCABULARY, **sizes, **rules)).eval())
    config = DecodingConfig(beam=BEAM, min_length=TARGET - 1)

    def prepare(source: torch.Tensor) -> Job:
        outlines = [Outline((TARGET - 1,))] * source.size(0)

        def job() -> None:
            found = beam_search(stepper, source, config=config, outlines=outlines)
            assert all(len(best[0].tokens) == TARGET - 1 for best in found)

        return job

    return prepare


def marian_model() -> Any:
    """A random Marian; its padding comes last in the vocabulary, as CTranslate2 expects."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=SLOTS,
        decoder_ffn_dim=SLOTS,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=VOCABULARY - 1,
        decoder_start_token_id=VOCABULARY - 1,
        bos_token_id=1,
        eos_token_id=2,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config).eval()


def marian(model: Any) -> System:
    """Marian's `generate` as transformers does it."""

    def prepare(source: torch.Tensor) -> Job:
        def job() -> None:
            with torch.inference_mode():
                found = model.generate(
                    source,
                    attention_mask=torch.ones_like(source),
                    num_beams=BEAM,
                    min_new_tokens=TARGET,
                    max_new_tokens=TARGET,
                    do_sample=False,
                )
            assert found.shape == (source.size(0), TARGET + 1)

        return job

    return prepare


def ctranslate2_of(model: Any, compute_type: str, threads: int) -> System:
    """The same Marian, converted."""
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    words = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(3, VOCABULARY - 1))]
    spec = MarianMTLoader().get_model_spec(model)
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.unk_token, spec.config.eos_token, spec.config.decoder_start_token = words[0], words[2], words[2]
    spec.validate()
    spec.optimize(quantization=compute_type)
    with tempfile.TemporaryDirectory() as directory:
        spec.save(directory)
        translator = ctranslate2.Translator(
            directory, compute_type=compute_type, inter_threads=1, intra_threads=threads
        )

    def prepare(source: torch.Tensor) -> Job:
        rows = [[words[token] for token in row] for row in source.tolist()]

        def job() -> None:
            found = translator.translate_batch(
                rows, beam_size=BEAM, min_decoding_length=TARGET, max_decoding_length=TARGET, max_batch_size=0
            )
            assert all(len(best.hypotheses[0]) == TARGET for best in found)

        return job

    return prepare


def systems(threads: int) -> tuple[dict[str, System], list[str]]:
    """What can be measured here, and what is missing."""
    found, missing = {f"reluformer ({rule})": ours(rule) for rule in ("relu", "softmax")}, []
    try:
        model = marian_model()
        found["marian generate"] = marian(model)
    except ImportError:
        return found, ["Marian and CTranslate2 are left out: pip install transformers ctranslate2 sentencepiece"]
    try:
        for compute_type in ("float32", "int8"):
            found[f"ctranslate2 {compute_type}"] = ctranslate2_of(model, compute_type, threads)
    except ImportError:
        missing.append("CTranslate2 is left out: pip install ctranslate2")
    return found, missing


def measure(batch: int, rounds: int, contestants: dict[str, System], threads: int) -> dict[str, float]:
    """Tokens a second of each system: the median of `rounds` turns."""
    torch.set_num_threads(threads)
    source = torch.randint(5, VOCABULARY - 1, (batch, SOURCE), generator=torch.Generator().manual_seed(batch))
    jobs = {name: prepare(source) for name, prepare in contestants.items()}
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn > 0:  # the first is for warming up
                times[name].append(time.perf_counter() - start)
    return {name: round(batch * TARGET / statistics.median(seconds), 1) for name, seconds in times.items()}


def ratios(speed: dict[str, float]) -> dict[str, dict[str, float]]:
    """How much faster each of ours is than each peer."""
    own = [name for name in speed if name.startswith("reluformer")]
    return {name: {peer: round(speed[name] / speed[peer], 2) for peer in speed if peer not in own} for name in own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    parser.add_argument("--rounds", type=int, default=7, help="turns that are measured")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64], help="batch sizes")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    numbers = sorted({1, torch.get_num_threads()})
    contestants = {threads: systems(threads) for threads in numbers}
    results = {}
    for line in contestants[1][1]:
        print(line, file=sys.stderr)
    for batch in arguments.batches:
        speeds = {n: measure(batch, arguments.rounds, found, n) for n, (found, _) in contestants.items()}
        best = {name: max(speed[name] for speed in speeds.values()) for name in speeds[1]}
        results[str(batch)] = {"tokens_per_second_by_threads": speeds, "ratios_of_the_better": ratios(best)}
        if not arguments.json:
            print(f"batch {batch}")
            for name, tokens in best.items():
                each = "".join(f"{speed[name]:7.0f}" for speed in speeds.values())
                beside = "".join(f"  {ratio:5.2f} x {peer}" for peer, ratio in ratios(best).get(name, {}).items())
                print(f"  {name:22} {tokens:7.0f} tokens/s (threads {numbers}: {each} ){beside}")
    setting = {"source": SOURCE, "target": TARGET, "beam": BEAM, "rounds": arguments.rounds}
    figures = {"benchmark": "translation", "setting": setting, **circumstances(), "batches": results}
    publish(figures, arguments.json, arguments.out)


if __name__ == "__main__":
    main()
