"""Recall: the mechanism behind C3 and C8 alone, without a language around it.

A memory has n slots. Each is a token that holds a key (a random direction) and one of a few
classes. A query holds a noisy copy of a key, and the answer is the class of the slots with
that key: of one slot ("one"), or the class that most of a share of all slots vote for ("many").
One attention read in a residual stream, a norm and a linear layer must find it:

    x = query token;  h = x + Attention(x, slots);  logits = W LayerNorm(h)

The model is trained at one n, reached by doubling from 16, as long memories alone are found late
by every rule, and tested at others.

Shapes: M memories, Q queries of each, n slots, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluformer import regularizers, rules
from reluformer.layers import Attention
from reluformer.memory import RowStats
from reluformer.regularizers import RegularizerConfig
from reluformer.study.plan import Run
from reluformer.study.trainings import Context, chosen_rate, rounded


@dataclass(frozen=True)
class Task:
    """What is recalled."""

    kind: str
    """`one` slot has the key of a query, or `many` have it and vote."""
    key_width: int = 32
    classes: int = 16
    noise: float = 0.8
    """Length of the noise on a query's key of length one."""
    share: float = 1 / 32
    """Of all slots that hold a query's key, where many do."""
    truth: float = 0.3
    """Probability that a vote is for the right class; otherwise it is for any."""

    def draw(self, memories: int, queries: int, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keys (M, n, K), classes (M, n), queries (M, Q, K) and their answers (M, Q)."""
        generator = torch.Generator().manual_seed(seed)
        copies = max(1, round(n * self.share)) if self.kind == "many" else 1
        different = n // copies
        keys = F.normalize(torch.randn(memories, different, self.key_width, generator=generator), dim=-1)
        answers = torch.randint(self.classes, (memories, different), generator=generator)
        asked = torch.randint(different, (memories, queries), generator=generator)
        noise = F.normalize(torch.randn(memories, queries, self.key_width, generator=generator), dim=-1)
        query = F.normalize(_pick(keys, asked) + self.noise * noise, dim=-1)
        slot_keys, slot_classes = keys.repeat(1, copies, 1), answers.repeat(1, copies)
        if copies > 1:
            votes = torch.randint(self.classes, slot_classes.shape, generator=generator)
            right = torch.rand(slot_classes.shape, generator=generator) < self.truth
            slot_classes = torch.where(right, slot_classes, votes)
        return slot_keys, slot_classes, query, answers.gather(1, asked)

    def ceiling(self, keys: Tensor, classes: Tensor, queries: Tensor, answers: Tensor) -> float:
        """Accuracy of the best reader: the votes of the nearest key's slots."""
        scores = queries @ keys.transpose(1, 2)
        nearest = scores >= scores.amax(-1, keepdim=True) - 1e-5
        votes = nearest.float() @ F.one_hot(classes, self.classes).float()
        return float((votes.argmax(-1) == answers).float().mean())


def _pick(x: Tensor, places: Tensor) -> Tensor:
    return x.gather(1, places[..., None].expand(-1, -1, x.size(-1)))


class RecallModel(nn.Module):
    """One read between two linear layers."""

    def __init__(self, task: Task, width: int, heads: int, rule: Any) -> None:
        super().__init__()
        self.key = nn.Linear(task.key_width, width)
        self.value = nn.Embedding(task.classes, width)
        self.asked = nn.Parameter(torch.zeros(width))
        self.slot_norm, self.query_norm, self.norm = (nn.LayerNorm(width) for _ in range(3))
        self.attention = Attention(width, heads, rules.get(rule))
        self.output = nn.Linear(width, task.classes)

    def forward(self, keys: Tensor, classes: Tensor, queries: Tensor) -> tuple[Tensor, RowStats | None]:
        tokens = self.slot_norm(self.key(keys) + self.value(classes))
        x = self.key(queries) + self.asked
        read, stats = self.attention(self.query_norm(x), slots=self.attention.slots(tokens), stats=self.training)
        return self.output(self.norm(x + read)), stats


def run(run: Run, context: Context) -> dict[str, Any]:
    """Train at one number of slots, test at others."""
    content = run.content
    training: Mapping[str, Any] = content["training"]
    task, lr = Task(**content["task"]), chosen_rate(run, context)
    torch.manual_seed(int(training["seed"]))
    model = RecallModel(task, rule=content["rule"], **content["model"])
    regularizer = RegularizerConfig(**training["regularizer"]) if training.get("regularizer") else None
    curve, diverged = _train(model, task, training, lr, regularizer, context)
    if diverged is not None:
        return {"status": "diverged", "step": diverged, "lr": lr, "loss": None, "curve": curve}
    test = content["test"]
    tested = {
        str(n): _test(model, task, n, test["queries"], training["queries"])
        for n in sorted({*test["slots"], training["slots"]})
    }
    return {
        "status": "finished",
        "lr": lr,
        "loss": tested[str(training["slots"])]["loss"],
        "accuracy": {n: found.pop("accuracy") for n, found in tested.items()},
        "ceiling": {n: found.pop("ceiling") for n, found in tested.items()},
        "rows": tested,
        "curve": curve,
        "step": training["updates"],
    }


def _train(
    model: RecallModel,
    task: Task,
    training: Mapping[str, Any],
    lr: float,
    regularizer: RegularizerConfig | None,
    context: Context,
) -> tuple[list[dict[str, float]], int | None]:
    """Points of the training curve, and the update at which it diverged."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
    updates, warmup, queries = int(training["updates"]), int(training["warmup"]), int(training["queries"])
    curve: list[dict[str, float]] = []
    sums = [0.0, 0.0]
    model.train()
    for update in range(1, updates + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr * _rate(update, updates, warmup)
        seed = int(training["seed"]) * 1_000_003 + update
        n = grown(int(training["slots"]), update / updates)
        *memory, answers = task.draw(int(training["memories"]), queries, n, seed)
        logits, stats = model(*memory)
        loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten())
        total = loss
        if regularizer is not None and stats is not None:
            total = loss + regularizers.sums(stats, margin=regularizer.margin).loss(regularizer)
        if not math.isfinite(total.item()):
            return curve, update
        optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        sums = [sums[0] + loss.item(), sums[1] + float((logits.argmax(-1) == answers).float().mean())]
        if update % (updates // 20 or 1) == 0:
            every = updates // 20 or 1
            curve.append({"step": update, "loss": rounded(sums[0] / every), "accuracy": rounded(sums[1] / every)})
            sums = [0.0, 0.0]
        context.report(update / updates, f"accuracy {curve[-1]['accuracy']:.3f}" if curve else "")
    return curve, None


def grown(slots: int, done: float) -> int:
    """From 16 slots on, doubling, to all of them when half of the training is done; the same for every rule."""
    doublings = math.log2(slots / 16)
    return min(slots, 16 * 2 ** int(doublings * min(1.0, 2 * done))) if slots > 16 else slots


def _rate(update: int, updates: int, warmup: int) -> float:
    """Linear up, then a cosine down to zero."""
    if update <= warmup:
        return update / warmup
    return 0.5 * (1 + math.cos(math.pi * (update - warmup) / (updates + 1 - warmup)))


@torch.no_grad()
def _test(model: RecallModel, task: Task, n: int, total: int, queries: int) -> dict[str, float]:
    """Over `total` queries at n slots: accuracy, what the best reader would reach, loss, and the rows."""
    model.train()  # there is no dropout; it asks for the row statistics
    sums: dict[str, float] = {}
    memories = max(1, total // queries)
    for i in range(memories):
        keys, classes, asked, answers = task.draw(1, queries, n, seed=2**40 + i)
        logits, stats = model(keys, classes, asked)
        assert stats is not None
        found = {
            "accuracy": (logits.argmax(-1) == answers).float().mean(),
            "loss": F.cross_entropy(logits.flatten(0, 1), answers.flatten()),
            "zero_fraction": stats.zero_fraction.mean(),
            "entropy": stats.entropy.mean(),
            "row_sum": stats.row_sum.mean(),
            "dead": stats.dead.float().mean(),
            "ceiling": task.ceiling(keys, classes, asked, answers),
        }
        sums = {name: sums.get(name, 0.0) + float(value) for name, value in found.items()}
    return {name: rounded(value / memories) for name, value in sums.items()}
