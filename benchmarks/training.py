"""Training speed beside Hugging Face's MarianMTModel: target tokens a second of full steps.

    python benchmarks/training.py                               # a table
    python benchmarks/training.py --json docs/results/training-speed.json

A step is forward, loss (label smoothing 0.1), backward, clipping and fused AdamW. Every
model takes one step in turn, round after round, so that a busy machine slows all of them
alike; the ratios are medians over rounds, of wall time and of processor time. On a machine
that others use too, the second is the steadier one. `pip install transformers` for the peer.
"""

from __future__ import annotations

import argparse
import gc
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
from reluformer.translation.task import TranslationObjective

Step = Callable[[Tensor, Tensor, Tensor], float]
SIZES = dict(vocab_size=8000, width=256, heads=4, encoder_layers=3, decoder_layers=3, slots=1024, dropout=0.1)
PEER = "marian"


def ours(architecture: str, config: TrainingConfig) -> Step:
    """A step as the training loop takes it."""
    torch.manual_seed(0)
    model = ReLUFormer(ModelConfig.preset("tiny", architecture, **SIZES))
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


def marian(config: TrainingConfig) -> Step:
    """The same sizes, loss, clipping and optimiser with Hugging Face's model."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    model: nn.Module = MarianMTModel(
        MarianConfig(
            vocab_size=SIZES["vocab_size"],
            d_model=SIZES["width"],
            encoder_layers=SIZES["encoder_layers"],
            decoder_layers=SIZES["decoder_layers"],
            encoder_attention_heads=SIZES["heads"],
            decoder_attention_heads=SIZES["heads"],
            encoder_ffn_dim=SIZES["slots"],
            decoder_ffn_dim=SIZES["slots"],
            dropout=SIZES["dropout"],
            activation_function="relu",
            max_position_embeddings=4096,
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


def contestants() -> dict[str, Step]:
    config = TrainingConfig(label_smoothing=0.1, clip=1.0, lr=1e-4, device="cpu")
    steps: dict[str, Step] = {}
    try:
        steps[PEER] = marian(config)
    except ImportError:
        print("transformers is not installed, so there is no peer; pip install transformers", file=sys.stderr)
    steps["transformer"] = ours("transformer", config)
    steps["reluformer"] = ours("reluformer", config)
    steps["reluformer+regularizer"] = ours("reluformer", config.replace(regularizer=RegularizerConfig()))
    return steps


def measure(steps: dict[str, Step], length: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Every model by turns on the same batches; the first round warms up."""
    torch.manual_seed(length)
    shape = (max(1, tokens // length), length)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    processor: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        batch = [torch.randint(5, SIZES["vocab_size"], shape) for _ in range(3)]
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
    arguments = parser.parse_args()
    steps = contestants()
    cells = []
    for length in arguments.lengths:
        cells.append(measure(steps, length, arguments.tokens, arguments.rounds))
        figures = cells[-1]["models"]
        row = "  ".join(
            f"{name} {f['tokens_per_second']:>8,.0f} ({f['ratio_to_marian']:.2f}, {f['ratio_to_marian_processor']:.2f})"
            if PEER in figures
            else f"{name} {f['tokens_per_second']:>8,.0f}"
            for name, f in figures.items()
        )
        print(f"length {length:>5}  {row}", file=sys.stderr)
    result = {
        "what": "target tokens a second in training, and the ratio to MarianMTModel (sdpa) by wall and processor time",
        "model": SIZES,
        "step": "forward, label-smoothed loss, backward, clip, fused AdamW; no padding; fp32",
        **circumstances(),
        "cells": cells,
    }
    publish(result, arguments.json, arguments.out)


if __name__ == "__main__":
    main()
