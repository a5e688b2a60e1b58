"""What a forget gate costs and saves: causal training reads beside fused softmax, and a language model beside Llama.

    python benchmarks/forgetting.py --out docs/results/forgetting.json      # about six minutes on two cores
    python benchmarks/forgetting.py --run runs/europarl --lengths 2048      # the reads of a trained model on its text

The gates are constant: the half-lives of the heads lie evenly on a logarithmic scale. Queries, keys and values are
normal. Rules with zeros skip the slots that the gate is proven to hide (`memory.skipped_share`); softmax reads all of
them up to the digits of float32. All contestants of a case take turns in one process, and a ratio is that of their
median times: above 1 means faster than fused softmax without a gate.

With `--run` queries, keys, values and gates are those of each attention layer of a trained language model on a row of
its own text, and the rule is the model's.

The language models are at their first weights: ours with `relu_chance` or softmax and a forget gate, and Llama of
transformers with the same width, layers, heads and vocabulary, tied embeddings, and fused attention. Its feed-forward
layers have three matrices and ours two, so they get two thirds of our slots. The numbers of parameters agree within
2 %. A step is a forward pass, a backward pass and an update by the AdamW of our trainer, for all of them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import reluformer as rf
from measure import circumstances, publish
from reluformer import benchmarking, language, memory
from reluformer.errors import ArgumentError
from reluformer.language.corpus import LanguageCorpus
from reluformer.language.scoring import own_reads, skipped_pairs
from reluformer.language.task import LanguageObjective
from reluformer.layers import TokenRead, TokenSlots
from reluformer.training.config import TrainingConfig
from reluformer.training.optimizer import adamw

VOCABULARY = 8000
TOLERANCE = 0.02
"""Models whose numbers of parameters differ by more are not compared."""


def main() -> None:
    """Time every case, print a line for each and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 16384])
    parser.add_argument("--run", type=Path, help="a trained language model, whose own reads are timed")
    parser.add_argument("--split", default="test", help="with --run: the split of its corpus that is read")
    parser.add_argument("--rules", nargs="+", default=["relu", "relu_exp", "relu_chance", "softmax"])
    parser.add_argument("--half-lives", type=float, nargs=2, default=[64, 512], help="shortest and longest, in tokens")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--models", type=int, metavar="TOKENS", help="also time language models on rows so long")
    parser.add_argument("--size", default="small", help="with --models: tiny, small or base")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    reads = []
    for length in options.lengths:
        if options.run is None:
            found = read_cases(options.rules, length, options.heads, options.width, options.half_lives, options.repeats)
        else:
            found = trained_cases(options.run, options.split, length, options.repeats)
        reads += found
        if not options.json:
            for row in found:
                print(
                    f"{row.get('layer', ''):<8}{row['rule']:<12}{length:>6} tokens: "
                    f"{row['over_sdpa']:>6.2f} times fused softmax, {row['skipped']:.0%} of the pairs skipped",
                    flush=True,
                )
    models = [] if options.models is None else model_cases(options.models, options.repeats, options.size)
    if not options.json:
        for row in models:
            print(
                f"{row['model']:<12}{row['tokens']:>6} tokens: {row['over_llama']:>6.2f} times Llama, "
                f"{row['parameters']:,} parameters against {row['llama_parameters']:,}",
                flush=True,
            )
    settings = {"half_lives": options.half_lives, "heads": options.heads, "width": options.width}
    if options.run is not None:
        settings = {"run": options.run.name, "split": options.split}
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


def trained_cases(run: Path, split: str, length: int, repeats: int) -> list[dict[str, Any]]:
    """Return the speed of forward and backward passes of a trained model's own reads, layer by layer and of all.

    Fused softmax reads the same queries, keys and values, whose heads are repeated where queries share them.
    """
    model = language.load(run).model
    corpus = LanguageCorpus(run / "data")
    row = np.array(corpus.rows(split, length)[0, :-1], dtype=np.int64)
    found, total = [], {"sdpa": 0.0, "own": 0.0}
    for layer, (read, queries, slots) in enumerate(own_reads(model, torch.from_numpy(row)[None])):
        cell, seconds = own_case(read, queries, slots, repeats)
        found.append({"layer": str(layer), "rule": read.rule.name, "length": length, **cell})
        total = {name: total[name] + seconds[name] for name in total}
    everything = {
        "layer": "all",
        "rule": model.config.attention.name,
        "length": length,
        "over_sdpa": round(total["sdpa"] / total["own"], 3),
        "seconds": round(total["own"], 5),
        "zeros": round(sum(row["zeros"] for row in found) / len(found), 4),
        "skipped": round(sum(row["skipped"] for row in found) / len(found), 4),
    }
    return [*found, everything]


def own_case(
    read: TokenRead, queries: Tensor, slots: TokenSlots, repeats: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the figures of one layer, and the median seconds of both contestants."""
    given = [queries, slots.keys, slots.values, *([] if slots.gate is None else [slots.gate])]
    leaves = [x.detach().clone().requires_grad_() for x in given]
    probe = torch.randn(*queries.shape[:3], slots.values.size(-1))
    group = queries.size(1) // slots.keys.size(1)

    def own() -> object:
        gate = leaves[3] if slots.gate is not None else None
        out, _ = read(leaves[0], TokenSlots(leaves[1], leaves[2], gate=gate))
        return torch.autograd.grad(out, leaves, probe)

    def plain() -> object:
        k, v = (x.repeat_interleave(group, 1) if group > 1 else x for x in leaves[1:3])
        out = scaled_dot_product_attention(leaves[0], k, v, is_causal=True)
        return torch.autograd.grad(out, leaves[:3], probe)

    timings = benchmarking.interleaved({"sdpa": plain, "own": own}, repeats, seconds=20.0)
    with torch.no_grad():
        _, stats = read(queries, slots, stats=True)
    assert stats is not None
    visible = stats.n_visible.double()
    figures = {
        "over_sdpa": round(timings["sdpa"].median / timings["own"].median, 3),
        "seconds": round(timings["own"].median, 5),
        "spread": round(timings["own"].spread, 3),
        "zeros": round(float((stats.zero_fraction.double() * visible).sum() / visible.sum()), 4),
        "skipped": round(skipped_pairs(read, queries, slots), 4),
    }
    return figures, {name: timing.median for name, timing in timings.items()}


def model_cases(tokens: int, repeats: int, size: str) -> list[dict[str, Any]]:
    """Return the speed of a training step of language models relative to a Llama of the same size."""
    torch.manual_seed(0)
    names = ("reluformer", "fox", "transformer")
    models = {name: rf.LanguageModel(rf.LanguageConfig.preset(size, name, vocab_size=VOCABULARY)) for name in names}
    llama = llama_like(models["transformer"].config, tokens)
    llama_parameters = sum(parameter.numel() for parameter in llama.parameters())
    for name, model in models.items():
        if abs(llama_parameters / model.parameter_count() - 1) > TOLERANCE:
            raise ArgumentError(
                f"{name} has {model.parameter_count():,} parameters and Llama {llama_parameters:,}; choose another "
                "--size"
            )
    text = torch.randint(5, VOCABULARY, (1, tokens + 1))

    def step_of(module: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
        optimizer = adamw(module, TrainingConfig())

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            loss().backward()
            optimizer.step()

        return step

    def llama_loss() -> Tensor:
        return cross_entropy(llama(text[:, :-1]).logits.flatten(0, 1), text[:, 1:].flatten())

    def own_loss(objective: LanguageObjective) -> Tensor:
        loss: Tensor = objective(text[:, :-1], text[:, 1:]).smoothed / tokens
        return loss

    contestants: dict[str, Callable[[], None]] = {"llama": step_of(llama, llama_loss)}
    for name, model in models.items():
        contestants[name] = step_of(model, partial(own_loss, LanguageObjective(model)))
    timings = benchmarking.interleaved(contestants, repeats, seconds=30.0)
    return [
        {
            "model": name,
            "size": size,
            "tokens": tokens,
            "parameters": model.parameter_count(),
            "llama_parameters": llama_parameters,
            "over_llama": round(timings["llama"].median / timings[name].median, 3),
            "seconds": round(timings[name].median, 4),
            "spread": round(timings[name].spread, 3),
        }
        for name, model in models.items()
    ]


def llama_like(config: rf.LanguageConfig, tokens: int) -> nn.Module:
    """Return a Llama of transformers with as many parameters as a language model: 3 m = 2 slots, m a multiple of 16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = LlamaConfig(
        hidden_size=config.width,
        num_attention_heads=config.heads,
        num_hidden_layers=config.layers,
        intermediate_size=16 * round(2 * config.slots / 48),
        vocab_size=config.vocab_size,
        max_position_embeddings=tokens,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    model: nn.Module = LlamaForCausalLM(sizes)
    return model


if __name__ == "__main__":
    main()
