"""What a forget gate costs and saves: causal training reads beside fused softmax, and a language model beside Llama.

    python benchmarks/forgetting.py --out docs/results/forgetting.json      # about six minutes on two cores

The gates are constant: the half-lives of the heads lie evenly on a logarithmic scale. Queries, keys and values are
normal. Rules with zeros skip the slots that the gate is proven to hide (`memory.skipped_share`); softmax reads all of
them up to the digits of float32. All contestants of a case take turns in one process, and a ratio is that of their
median times: above 1 means faster than fused softmax without a gate.

The language models are at their first weights: ours with `relu_chance` or softmax and a forget gate, Llama of
transformers with the same width, layers, heads, hidden units and vocabulary, and fused attention.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import reluformer as rf
from measure import circumstances, publish
from reluformer import benchmarking, memory
from reluformer.language.task import LanguageObjective


def main() -> None:
    """Time every case, print a line for each and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 16384])
    parser.add_argument("--rules", nargs="+", default=["relu", "relu_exp", "relu_chance", "softmax"])
    parser.add_argument("--half-lives", type=float, nargs=2, default=[64, 512], help="shortest and longest, in tokens")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--models", type=int, metavar="TOKENS", help="also time language models on rows so long")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    reads = []
    for length in options.lengths:
        reads += read_cases(options.rules, length, options.heads, options.width, options.half_lives, options.repeats)
        if not options.json:
            for row in reads[-len(options.rules) :]:
                print(
                    f"{row['rule']:<12}{length:>6} tokens: {row['over_sdpa']:>6.2f} times fused softmax, "
                    f"{row['skipped']:.0%} of the pairs skipped",
                    flush=True,
                )
    models = [] if options.models is None else model_cases(options.models, options.repeats)
    if not options.json:
        for row in models:
            print(f"{row['model']:<12}{row['tokens']:>6} tokens: {row['over_llama']:>6.2f} times Llama", flush=True)
    settings = {"half_lives": options.half_lives, "heads": options.heads, "width": options.width}
    publish({"circumstances": circumstances(), **settings, "reads": reads, "models": models}, options.json, options.out)


def constant_gate(half_lives: list[float], heads: int, length: int) -> Tensor:
    """Return the sums of log gates of each head, (1, H, T), for half-lives between a shortest and a longest."""
    shortest, longest = map(math.log, half_lives)
    rates = math.log(2) / torch.exp(torch.linspace(shortest, longest, heads))
    return torch.cumsum(-rates[:, None].expand(heads, length), dim=-1)[None].contiguous()


def read_cases(
    rules: list[str], length: int, heads: int, width: int, half_lives: list[float], repeats: int
) -> list[dict[str, Any]]:
    """Return the speed of forward and backward passes with a gate relative to fused softmax without one."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, length, width, requires_grad=True) for _ in range(3))
    gate = constant_gate(half_lives, heads, length).requires_grad_()
    probe = torch.randn(1, heads, length, width)

    def gated(rule: str) -> Callable[[], object]:
        return lambda: torch.autograd.grad(rf.read(q, k, v, rule=rule, causal=True, gate=gate), (q, k, v, gate), probe)

    def plain() -> object:
        return torch.autograd.grad(scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), probe)

    contestants = {"sdpa": plain, **{rule: gated(rule) for rule in rules}}
    timings = benchmarking.interleaved(contestants, repeats, seconds=20.0)
    return [
        {
            "rule": rule,
            "length": length,
            "over_sdpa": round(timings["sdpa"].median / timings[rule].median, 3),
            "seconds": round(timings[rule].median, 5),
            "spread": round(timings[rule].spread, 3),
            "skipped": round(memory.skipped_share(q.detach(), k.detach(), rule, gate=gate.detach()), 4),
        }
        for rule in rules
    ]


def model_cases(tokens: int, repeats: int) -> list[dict[str, Any]]:
    """Return the speed of a training step of language models relative to a Llama of the same size."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"width": 256, "heads": 4, "layers": 4, "slots": 1024, "vocab_size": 8000}
    llama = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=256,
            num_attention_heads=4,
            num_hidden_layers=4,
            intermediate_size=1024,
            vocab_size=8000,
            max_position_embeddings=tokens,
            attn_implementation="sdpa",
        )
    )
    text = torch.randint(5, 8000, (1, tokens + 1))

    def step_of(objective: LanguageObjective) -> Callable[[], None]:
        def step() -> None:
            objective.zero_grad()
            objective(text[:, :-1], text[:, 1:]).smoothed.backward()

        return step

    def llama_step() -> None:
        llama.zero_grad()
        logits = llama(text[:, :-1]).logits
        cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten(), reduction="sum").backward()

    contestants: dict[str, Callable[[], None]] = {"llama": llama_step}
    for name in ("reluformer", "fox", "transformer"):
        model = rf.LanguageModel(rf.LanguageConfig.preset("small", name, **sizes))
        contestants[name] = step_of(LanguageObjective(model))
    timings = benchmarking.interleaved(contestants, repeats, seconds=30.0)
    return [
        {
            "model": name,
            "tokens": tokens,
            "over_llama": round(timings["llama"].median / timings[name].median, 3),
            "seconds": round(timings[name].median, 4),
            "spread": round(timings[name].spread, 3),
        }
        for name in contestants
        if name != "llama"
    ]


if __name__ == "__main__":
    main()
