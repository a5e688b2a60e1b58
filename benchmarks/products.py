"""What the products of `reluformer.kernels.products` gain over PyTorch's own, by size, and in a whole training step.

    python benchmarks/products.py --out docs/results/products.json       # about a minute on two cores

A case is the product of a linear layer (forward), or its gradients (backward), for so many rows. A training step is
that of an encoder-decoder with 3 + 3 layers. Both ways take turns in one process; above 1 means that ours are faster.
Where MKL serves the processor well, as on Intel's, both ways are the same and the ratios are 1.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

import reluformer as rf
from measure import circumstances, publish
from reluformer import benchmarking
from reluformer.kernels import products
from reluformer.training.config import TrainingConfig
from reluformer.training.optimizer import Optimizer
from reluformer.translation.task import TranslationObjective

SIZES = ((128, 128), (128, 512), (512, 128), (512, 2048), (128, 6000))
RULES = ("softmax", "relu_exp")


def main() -> None:
    """Time every case, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256, 2048])
    parser.add_argument("--lengths", type=int, nargs="*", default=[16, 512], help="tokens a sequence of training steps")
    parser.add_argument("--widths", type=int, nargs="*", default=[128, 512], help="widths of the models")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", "TF32")  # the switch of oneDNN sets all of its options
    found: list[dict[str, Any]] = []
    for rows in options.rows:
        for inner, outer in SIZES:
            found.append(layer(rows, inner, outer, options.repeats))
    for width in options.widths:
        for length in options.lengths:
            for rule in RULES:
                found.append(step(rule, width, length, options.repeats))
    if not options.json:
        for row in found:
            print(line(row))
    publish({"circumstances": circumstances(), "wide": products.available(), "rows": found}, options.json, options.out)


def line(row: dict[str, Any]) -> str:
    """Return one case as text."""
    if "rule" in row:
        return f"step, width {row['width']:>4}, {row['length']:>5} tokens, {row['rule']}: {row['over_torch']:.2f}"
    sizes = f"{row['rows']:>5} rows, {row['inner']:>4} to {row['outer']:>4}"
    return f"{sizes}: forward {row['forward_over_torch']:.2f}, backward {row['backward_over_torch']:.2f}"


def both(call: Callable[[], object], repeats: int) -> float:
    """Return how many times as fast a call is with our products as with PyTorch's."""

    def with_torch() -> None:
        with torch.backends.mkldnn.flags(enabled=False):
            call()

    def with_ours() -> None:
        with torch.backends.mkldnn.flags(enabled=True):
            call()

    times = benchmarking.interleaved({"torch": with_torch, "ours": with_ours}, repeats, seconds=2.0)
    return round(times["torch"].median / times["ours"].median, 3)


def layer(rows: int, inner: int, outer: int, repeats: int) -> dict[str, Any]:
    """Return the ratios of a linear layer."""
    torch.manual_seed(0)
    x, weight = torch.randn(rows, inner).requires_grad_(), torch.randn(outer, inner).requires_grad_()
    probe = torch.randn(rows, outer)

    def forward() -> Tensor:
        with torch.no_grad():
            return products.linear(x, weight)

    ours, plain = products.linear(x, weight), torch.nn.functional.linear(x, weight)

    def backward(out: Tensor) -> Callable[[], object]:
        return lambda: torch.autograd.grad(out, (x, weight), probe, retain_graph=True)

    times = benchmarking.interleaved({"torch": backward(plain), "ours": backward(ours)}, repeats)
    ratio = times["torch"].median / times["ours"].median
    sizes = {"rows": rows, "inner": inner, "outer": outer}
    return {**sizes, "forward_over_torch": both(forward, repeats), "backward_over_torch": round(ratio, 3)}


def step(rule: str, width: int, length: int, repeats: int) -> dict[str, Any]:
    """Return the ratio of a whole training step of 2,048 target tokens."""
    torch.manual_seed(0)
    attention = dict.fromkeys(("encoder_attention", "decoder_attention", "cross_attention"), rule)
    model = rf.ReLUFormer(
        rf.ModelConfig.preset("tiny", "transformer", vocab_size=6000, width=width, slots=4 * width, **attention)
    )
    config = TrainingConfig(label_smoothing=0.1, clip=1.0, lr=1e-4, device="cpu")
    optimizer = Optimizer(config, TranslationObjective(model.train(), 0.1, None), Accelerator(cpu=True))
    tokens = [torch.randint(5, 6000, (2048 // length, length)) for _ in range(3)]

    def update() -> None:
        sums = optimizer.wrapped(*tokens)
        (sums.smoothed / tokens[0].numel()).backward()
        optimizer.step(config.lr)
        optimizer.clear()

    return {"rule": rule, "width": width, "length": length, "over_torch": both(update, repeats)}


if __name__ == "__main__":
    main()
