"""Training speed beside Hugging Face's MarianMTModel: target tokens a second of full steps.

    python benchmarks/training.py                               # a table
    python benchmarks/training.py --out docs/results/training-speed.json
    python benchmarks/training.py --run runs/captions-512 --lengths 512 2048 8192    # real weights, real text

With `--run` our model has the sizes and weights of a trained run and reads the text of its corpus, so that the zeros
are real; the peers have the same sizes and read the same tokens. Without it weights and tokens are random.

A step is forward, loss (label smoothing 0.1), backward, clipping and fused AdamW. Every
model takes one step in turn, round after round, so that a busy machine slows all of them
alike; the ratios are medians over rounds, of wall time and of processor time. On a machine
that others use too, the second is the steadier one. `pip install transformers` for the peer.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F

from measure import circumstances, publish
from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.regularizers import RegularizerConfig
from reluformer.training.config import TrainingConfig
from reluformer.training.optimizer import Optimizer, adamw
from reluformer.translation.corpus import PreparedCorpus
from reluformer.translation.task import TranslationObjective
from reluformer.translation.tokenizer import BEGIN, SEPARATOR
from reluformer.translation.translator import load_run

Step = Callable[[Tensor, Tensor, Tensor], float]
SIZES = dict(vocab_size=8000, width=256, heads=4, encoder_layers=3, decoder_layers=3, slots=1024, dropout=0.1)
PEER = "marian"


def ours(model: ReLUFormer, config: TrainingConfig) -> Step:
    """A step as the training loop takes it."""
    objective = TranslationObjective(model, config.label_smoothing, config.regularizer)
    optimizer = Optimizer(config, objective, Accelerator(cpu=True))

    def step(source: Tensor, target_in: Tensor, target_out: Tensor) -> float:
        sums = optimizer.wrapped(source, target_in, target_out)
        loss = sums.smoothed / target_out.numel()
        if sums.regularizer is not None:
            loss = loss + sums.regularizer.loss(config.regularizer)
        loss.backward()
        optimizer.step(config.lr)
        optimizer.clear()
        return float(loss.detach())

    return step


def with_sizes(architecture: str, sizes: dict[str, Any]) -> ReLUFormer:
    """A model with random weights."""
    torch.manual_seed(0)
    return ReLUFormer(ModelConfig.preset("tiny", architecture, **sizes))


def marian(config: TrainingConfig, sizes: dict[str, Any], longest: int) -> Step:
    """The same sizes, loss, clipping and optimiser with Hugging Face's model."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    model: nn.Module = MarianMTModel(
        MarianConfig(
            vocab_size=sizes["vocab_size"],
            d_model=sizes["width"],
            encoder_layers=sizes["encoder_layers"],
            decoder_layers=sizes["decoder_layers"],
            encoder_attention_heads=sizes["heads"],
            decoder_attention_heads=sizes["heads"],
            encoder_ffn_dim=sizes["slots"],
            decoder_ffn_dim=sizes["slots"],
            dropout=sizes["dropout"],
            activation_function="relu",
            max_position_embeddings=longest,
            scale_embedding=True,
            pad_token_id=0,
            decoder_start_token_id=1,
            attn_implementation="sdpa",
        )
    )
    model.train()
    optimizer = adamw(model, config)

    def step(source: Tensor, target_in: Tensor, target_out: Tensor) -> float:
        logits = model(input_ids=source, decoder_input_ids=target_in, use_cache=False).logits
        loss = F.cross_entropy(
            logits.view(-1, logits.size(-1)), target_out.view(-1), label_smoothing=config.label_smoothing
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def contestants(run: Path | None, longest: int) -> tuple[dict[str, Step], dict[str, Any], ReLUFormer | None]:
    """The models that take turns, their sizes, and the trained one if a run is given."""
    config = TrainingConfig(label_smoothing=0.1, clip=1.0, lr=1e-4, device="cpu")
    trained = None if run is None else load_run(run).model
    sizes = SIZES if trained is None else {name: getattr(trained.config, name) for name in SIZES}
    steps: dict[str, Step] = {}
    try:
        steps[PEER] = marian(config, sizes, longest)
    except ImportError:
        print("transformers is not installed, so there is no peer; pip install transformers", file=sys.stderr)
    if trained is None:
        steps["transformer"] = ours(with_sizes("transformer", sizes), config)
        steps["reluformer"] = ours(with_sizes("reluformer", sizes), config)
        regularized = config.replace(regularizer=RegularizerConfig())
        steps["reluformer+regularizer"] = ours(with_sizes("reluformer", sizes), regularized)
        return steps, sizes, None
    positions = {"positions": trained.config.positions}
    steps["transformer"] = ours(with_sizes("transformer", {**sizes, **positions}), config)
    copy = ReLUFormer(trained.config)  # it learns a little in the steps; the zeros are those of the run
    copy.load_state_dict(trained.state_dict())
    steps["trained"] = ours(copy, config)
    return steps, sizes, trained


Batches = Callable[[], list[Tensor]]


def random_tokens(shape: tuple[int, int]) -> Batches:
    """Batches of source, target before and target after, each (rows, length)."""
    return lambda: [torch.randint(5, SIZES["vocab_size"], shape) for _ in range(3)]


def text_of(corpus: Path, shape: tuple[int, int]) -> Batches:
    """Batches of a prepared corpus's training text, its segments joined and cut to the length on both sides."""
    store = PreparedCorpus(corpus).store("train")
    order = itertools.cycle(torch.randperm(len(store)).tolist())

    def side(rows: list[list[Any]], name: str) -> Tensor:
        joined = [[token for s in row for token in [*getattr(s, name)[:-1].tolist(), SEPARATOR]] for row in rows]
        return torch.tensor([tokens[: shape[1]] for tokens in joined])

    def batch() -> list[Tensor]:
        rows = []
        for _ in range(shape[0]):
            row: list[Any] = []
            while min(sum(len(getattr(s, name)) for s in row) for name in ("source", "target")) < shape[1]:
                row.append(store[next(order)])
            rows.append(row)
        target = side(rows, "target")
        return [side(rows, "source"), F.pad(target, (1, 0), value=BEGIN)[:, :-1], target]

    return batch


def zeros_in(model: ReLUFormer, batch: list[Tensor]) -> float:
    """The share of all visible pairs of a batch whose weight is exactly zero, over all attention."""
    with torch.no_grad():
        reads = model.eval()(batch[0], batch[1], stats=True).reads.values()
    visible = [stats.n_visible.expand_as(stats.zero_fraction).double() for stats in reads]
    zeros = sum(float((stats.zero_fraction * n).sum()) for stats, n in zip(reads, visible, strict=True))
    return zeros / sum(float(n.sum()) for n in visible)


def measure(steps: dict[str, Step], shape: tuple[int, int], batches: Batches, rounds: int) -> dict[str, Any]:
    """Every model by turns on the same batches; the first round warms up."""
    length = shape[1]
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    processor: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        batch = batches()
        for name, step in steps.items():
            gc.collect()
            began, used = time.perf_counter(), time.process_time()
            step(*batch)
            if turn:
                seconds[name].append(time.perf_counter() - began)
                processor[name].append(time.process_time() - used)
    cell: dict[str, Any] = {"length": length, "rows": shape[0], "target_tokens": shape[0] * length, "models": {}}
    for name, taken in seconds.items():
        figures = {
            "tokens_per_second": round(shape[0] * length / statistics.median(taken), 1),
            "seconds": [round(value, 4) for value in taken],
            "processor_seconds": [round(value, 4) for value in processor[name]],
        }
        if PEER in seconds:
            figures["ratio_to_marian"] = _ratio(seconds[PEER], taken)
            figures["ratio_to_marian_processor"] = _ratio(processor[PEER], processor[name])
        cell["models"][name] = figures
    return cell


def _ratio(peer: list[float], own: list[float]) -> float:
    """How many times as fast, median over rounds."""
    return round(statistics.median(p / o for p, o in zip(peer, own, strict=True)), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 512, 1024, 2048])
    parser.add_argument("--tokens", type=int, default=4096, help="target tokens of a batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--run", type=Path, help="a trained run, whose weights and text are used")
    parser.add_argument("--prepared", type=Path, help="the prepared corpus of the run (default: RUN/data)")
    arguments = parser.parse_args()
    steps, sizes, trained = contestants(arguments.run, max(arguments.lengths))
    cells = []
    for length in arguments.lengths:
        torch.manual_seed(length)
        shape = (max(1, arguments.tokens // length), length)
        batches = (
            random_tokens(shape)
            if arguments.run is None
            else text_of(arguments.prepared or arguments.run / "data", shape)
        )
        zeros = {} if trained is None else {"zeros": round(zeros_in(trained, batches()), 4)}
        cells.append({**measure(steps, shape, batches, arguments.rounds), **zeros})
        figures = cells[-1]["models"]
        row = "  ".join(
            f"{name} {f['tokens_per_second']:>8,.0f} ({f['ratio_to_marian']:.2f}, {f['ratio_to_marian_processor']:.2f})"
            if PEER in figures
            else f"{name} {f['tokens_per_second']:>8,.0f}"
            for name, f in figures.items()
        )
        share = f"  zeros {cells[-1]['zeros']:.1%}" if trained is not None else ""
        print(f"length {length:>5}  {row}{share}", file=sys.stderr)
    result = {
        "what": "target tokens a second in training, and the ratio to MarianMTModel (sdpa) by wall and processor time",
        "model": sizes if trained is None else trained.config.model_dump(mode="json"),
        "weights": "random"
        if arguments.run is None
        else f"of the run {arguments.run.name}, with the text of its corpus",
        "step": "forward, label-smoothed loss, backward, clip, fused AdamW; no padding; fp32",
        **circumstances(),
        "cells": cells,
    }
    publish(result, arguments.json, arguments.out)


if __name__ == "__main__":
    main()
