"""A run beside its ONNX exports: the same numbers and text, BLEU, speed and size, float32 and int8.

    python benchmarks/onnx_export.py --run runs/softmax --run runs/relu --data ../shared/data --json

Translates the test set of Multi30k (English to German) in DATA/multi30k with 4 beams. Each run
is exported first, unless EXPORTS/RUN/float32 and EXPORTS/RUN/int8 are there already. Speed is
that of whole batches and of single sentences; the systems take turns, and medians are
compared. int8 may change translations. float32 must not, and the command fails if it does.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from measure import circumstances, publish
from reluformer.benchmarking import interleaved
from reluformer.integrations import onnx as exports
from reluformer.integrations.onnx import manifest
from reluformer.integrations.onnx.runtime import OnnxStepper
from reluformer.translation.scoring import score
from reluformer.translation.stepper import padded
from reluformer.translation.tokenizer import BEGIN, END
from reluformer.translation.translator import Translator, load_run

BEAM = 4
COMPARED = 200
"""Sentences whose logits and texts are compared, and that are translated in each turn."""
SINGLE = 20
"""Sentences of a turn that translates one at a time."""
TOLERANCE = 1e-4
KINDS = {"float32": None, "int8": "int8"}


def test_set(data: Path, limit: int | None) -> tuple[list[list[str]], list[list[str]]]:
    """Sources and references, each sentence a document."""
    found = []
    for language in ("en", "de"):
        with gzip.open(data / "multi30k" / f"test.{language}.gz", "rt", encoding="utf-8") as file:
            found.append([[line] for line in file.read().splitlines()[:limit]])
    return found[0], found[1]


@torch.inference_mode()
def logit_difference(run: Translator, graphs: Translator, sources: list[list[str]], targets: list[list[str]]) -> float:
    """The largest difference between logits of PyTorch and of the graphs, at every position of `targets`."""
    assert isinstance(graphs.decoder, OnnxStepper)
    worst = 0.0
    everything = list(zip(sources, targets, strict=True))
    for pairs in (everything[start : start + 50] for start in range(0, len(everything), 50)):
        source, mask = padded([[*run.tokenizer.encode(src), END] for (src,), _ in pairs])
        target, _ = padded([[BEGIN, *run.tokenizer.encode(tgt)] for _, (tgt,) in pairs])
        expected = run.model(source, target, mask).logits
        beams, rows = graphs.decoder.encode(source, mask), torch.arange(len(pairs))[:, None]
        for position, tokens in enumerate(target.T):
            found = graphs.decoder.logits(tokens[:, None, None], rows, beams).squeeze(1)
            worst = max(worst, float((found - expected[:, position]).abs().max()))
    return worst


def make_exports(run: Path, home: Path) -> dict[str, Path]:
    """The export of each kind, made where there is none."""
    found = {kind: home / run.name / kind for kind in KINDS}
    for kind, path in found.items():
        if not manifest.is_export(path):
            exports.export_run(run, path, quantize=KINDS[kind], opset=None, force=False)
    return found


def measure(run: Path, home: Path, data: Path, limit: int | None, repeats: int) -> dict[str, Any]:
    """Everything about one run."""
    paths = make_exports(run, home)
    systems = {"pytorch": load_run(run, beam=BEAM)}
    systems |= {kind: exports.load(path, beam=BEAM) for kind, path in paths.items()}
    sources, references = test_set(data, limit)
    few = sources[:COMPARED]
    found = {name: system.translate_documents(sources) for name, system in systems.items()}
    texts = {kind: sum(a == b for a, b in zip(found["pytorch"], found[kind], strict=True)) for kind in KINDS}
    difference = logit_difference(systems["pytorch"], systems["float32"], few, found["pytorch"][:COMPARED])
    turns = {
        "batched": {name: lambda system=system: system.translate_documents(few) for name, system in systems.items()},
        "single": {
            name: lambda system=system: [system.translate_documents([source]) for source in sources[:SINGLE]]
            for name, system in systems.items()
        },
    }
    counts = {"batched": len(few), "single": len(sources[:SINGLE])}
    timings = {mode: interleaved(jobs, repeats, seconds=1e9) for mode, jobs in turns.items()}
    return {
        "decoder_of_pytorch": type(systems["pytorch"].decoder).__name__,
        "sentences": len(sources),
        "max_logit_difference": difference,
        "same_text": texts,
        "bleu": {name: round(score(text, references).bleu.value, 2) for name, text in found.items()},
        "sentences_per_second": {
            mode: {name: round(counts[mode] / timing.median, 1) for name, timing in each.items()}
            for mode, each in timings.items()
        },
        "spread": {mode: {n: round(t.spread, 3) for n, t in each.items()} for mode, each in timings.items()},
        "bytes": {
            "pytorch": (run / "model.safetensors").stat().st_size,
            **{
                kind: {name: (path / name).stat().st_size for name in (manifest.ENCODER, manifest.DECODER)}
                for kind, path in paths.items()
            },
        },
        "opset": manifest.read_manifest(paths["float32"]).opset,
    }


def show(name: str, figures: dict[str, Any]) -> None:
    """For people."""
    print(f"{name}: {figures['sentences']} sentences, logits within {figures['max_logit_difference']:.1e} of PyTorch")
    for system, bleu in figures["bleu"].items():
        speeds = "".join(f"  {speed[system]:7.1f} {m}" for m, speed in figures["sentences_per_second"].items())
        same = f"  same text {figures['same_text'][system]}" if system in KINDS else ""
        print(f"  {system:8} BLEU {bleu:5.2f}  sentences/s{speeds}{same}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, action="append", required=True, help="a run; may be given again")
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds multi30k")
    parser.add_argument("--exports", type=Path, help="keep the exports here, and take those that are there")
    parser.add_argument("--limit", type=int, help="translate so many sentences only")
    parser.add_argument("--repeats", type=int, default=5, help="turns that are measured")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = arguments.exports or Path(temporary)
        runs = {}
        for run in arguments.run:
            runs[run.name] = measure(run, home, arguments.data, arguments.limit, arguments.repeats)
            if not arguments.json:
                show(run.name, runs[run.name])
    setting = {"data": "multi30k test, en-de", "beam": BEAM, "repeats": arguments.repeats}
    versions = {"onnxruntime": onnxruntime.__version__}
    publish(
        {"benchmark": "onnx", "setting": setting, **circumstances(), **versions, "runs": runs},
        arguments.json,
        arguments.out,
    )
    for name, figures in runs.items():
        if figures["max_logit_difference"] > TOLERANCE or figures["same_text"]["float32"] != figures["sentences"]:
            sys.exit(f"{name}: float32 is not what PyTorch gives")


if __name__ == "__main__":
    main()
