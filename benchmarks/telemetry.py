"""What telemetry costs a training step: the price of a watched step, spread over the steps between.

python benchmarks/telemetry.py [--json] [--every 100]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

import reluformer as rf
from measure import circumstances, publish
from reluformer.benchmarking import interleaved
from reluformer.telemetry import Telemetry


def training_step(architecture: str, batch: int, length: int) -> Callable[[bool], None]:
    """A whole step of the tiny model, watched or not."""
    torch.manual_seed(0)
    model = rf.ReLUFormer(rf.ModelConfig.preset("tiny", architecture, vocab_size=8000))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    source, target = torch.randint(4, 8000, (2, batch, length)).unbind()
    telemetry = Telemetry(model, every=2)

    def step(watched: bool) -> None:
        with telemetry.watch(0 if watched else 1):
            logits = model(source, target).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=100, help="steps between two watched ones")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    arguments = parser.parse_args()
    rows = []
    for architecture in ("reluformer", "transformer"):
        step = training_step(architecture, arguments.batch, arguments.length)
        calls = {"plain": lambda step=step: step(False), "watched": lambda step=step: step(True)}
        timings = interleaved(calls, arguments.repeats, seconds=60)
        extra = 100 * (timings["watched"].median / timings["plain"].median - 1)
        rows.append(
            {
                "architecture": architecture,
                "step_milliseconds": round(1000 * timings["plain"].median, 1),
                "watched_step_extra_percent": round(extra, 1),
                "every": arguments.every,
                "overhead_percent": round(extra / arguments.every, 3),
            }
        )
        if not arguments.json:
            print(
                f"{architecture:12s} a watched step costs {extra:.1f} % more; "
                f"every {arguments.every} steps that is {extra / arguments.every:.3f} %"
            )
    publish({"benchmark": "telemetry", **circumstances(), "rows": rows}, arguments.json, arguments.out)


if __name__ == "__main__":
    main()
