"""Does preparing a corpus need memory that grows with it?

    python benchmarks/preparation.py --json
    python benchmarks/preparation.py --pairs 10000 100000

Writes corpora of made-up sentence pairs (a bounded vocabulary, documents of 1 to 40
sentences), prepares each in a process of its own, and reports that process's peak memory
and its speed. Memory is flat if the peak stays where the smaller corpora had it.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import circumstances, publish
from reluformer.translation.corpus import prepare
from reluformer.translation.recipe import CorpusSource, DataConfig, SegmentConfig, TokenizerConfig

WORDS = 20_000
SEGMENT_TOKENS = 512
VOCABULARY = 8000


def write_corpus(path: Path, pairs: int, seed: int = 0) -> None:
    """TSV with document breaks, one line at a time."""
    draw = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "ei", "au")]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(WORDS)]
    left = 0
    with path.open("w", encoding="utf-8") as file:
        for _ in range(pairs):
            if left == 0:
                file.write("\n")
                left = draw.randint(1, 40)
            left -= 1
            # squaring makes low numbers, and so some words, far more frequent than others
            source = [words[int(WORDS * draw.random() ** 2)] for _ in range(draw.randint(4, 24))]
            file.write(" ".join(source) + "\t" + " ".join(word[::-1] for word in source) + "\n")


def peak_megabytes() -> float:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def prepare_here(corpus: Path, directory: Path) -> dict[str, float]:
    """Prepare in this process, and say what it took."""
    before = peak_megabytes()
    start = time.perf_counter()
    config = DataConfig(
        train=CorpusSource(path=corpus),
        tokenizer=TokenizerConfig(vocab_size=VOCABULARY),
        segments=SegmentConfig(segment_tokens=SEGMENT_TOKENS),
    )
    summary = prepare(config, directory).splits["train"]
    seconds = time.perf_counter() - start
    return {
        "pairs": summary.sentences,
        "segments": summary.segments,
        "seconds": round(seconds, 2),
        "pairs_per_second": round(summary.sentences / seconds),
        "megabytes_before": round(before, 1),
        "megabytes_peak": round(peak_megabytes(), 1),
    }


def measure(pairs: int) -> dict[str, Any]:
    """Write a corpus of `pairs` and prepare it in a process of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        corpus = Path(temporary) / "train.tsv"
        write_corpus(corpus, pairs)
        command = [sys.executable, __file__, "--prepare", str(corpus), str(Path(temporary) / "prepared")]
        figures: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return {**figures, "corpus_megabytes": round(corpus.stat().st_size / 2**20, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[10**4, 10**5, 10**6], help="sizes of the corpora")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    parser.add_argument("--prepare", type=Path, nargs=2, metavar=("CORPUS", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        print(json.dumps(prepare_here(*options.prepare)))
        return
    runs = []
    for pairs in options.pairs:
        runs.append(measure(pairs))
        if not options.json:
            run = runs[-1]
            print(
                f"{run['pairs']:>10,} pairs ({run['corpus_megabytes']:>7,.1f} MB): {run['seconds']:>7.1f} s, "
                f"{run['pairs_per_second']:>7,} pairs/s, peak {run['megabytes_peak']:,.0f} MB "
                f"(after imports {run['megabytes_before']:,.0f} MB)",
                flush=True,
            )
    publish({"benchmark": "preparation", **circumstances(), "runs": runs}, options.json, options.out)


if __name__ == "__main__":
    main()
