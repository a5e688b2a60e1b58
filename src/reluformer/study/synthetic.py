"""Experiments on a single read, without a corpus: its variance on random memories, and recall.

Variance (claims C5 and C6). For scores ~ N(0, 1) and values of variance one whose correlation is rho,
a pointwise rule reads with variance n E[w^2] + n (n - 1) E[w]^2 rho. Plain ReLU therefore grows with n;
divided by sqrt(n/2) it stays at one, as long as the values are uncorrelated.

Recall (the mechanism behind C3 and C8). A memory has n slots. Each is a token that holds a key (a
random direction) and one of a few classes. A query holds a noisy copy of a key. The answer is the
class of the slots with that key: of one slot ("one"), or the class that most of a share of all slots
vote for ("many"). One attention read in a residual stream, a norm and a linear layer must find it:

    x = query token;  h = x + Attention(x, slots);  logits = W LayerNorm(h)

The model is trained at one n and tested at others. Training starts with 16 slots and doubles them up
to n, as every rule finds long memories late when it starts with them.

Shapes: M memories, Q queries of each, n slots, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluformer import memory, regularizers, rules
from reluformer.layers import Attention
from reluformer.memory import RowStats
from reluformer.regularizers import RegularizerConfig
from reluformer.rules import Pointwise
from reluformer.study.plan import Run
from reluformer.study.trainings import Context, chosen_rate, rounded
from reluformer.training.optimizer import RuleWarmup

# ------------------------------------------------------------------ variance


WIDTH = 64
DRAWS = 64
QUERIES = 8


@dataclass(frozen=True)
class VariancePoint:
    """The variance of one rule at one size, in theory and as measured."""

    rule: str
    slots: int
    correlation: float
    theory: float | None
    """None if the rule is row-wise, as it has no closed form then."""
    measured: float

    def to_dict(self) -> dict[str, Any]:
        """Returns the point as plain data."""
        return asdict(self)


def correlated_values(draws: int, slots: int, correlation: float, generator: torch.Generator) -> Tensor:
    """Returns values (draws, 1, slots, WIDTH) of variance one; two slots of a draw have the given correlation."""
    common = torch.randn(draws, 1, 1, WIDTH, generator=generator)
    own = torch.randn(draws, 1, slots, WIDTH, generator=generator)
    return math.sqrt(correlation) * common + math.sqrt(1 - correlation) * own


def measure_variance(rule: str, slots: int, correlation: float = 0.0, seed: int = 0) -> VariancePoint:
    """Measure the variance of reads from random memories.

    Args:
        rule: The name of the rule.
        slots: The number of slots of each memory.
        correlation: The correlation of the values of two slots.
        seed: The seed of the memories and queries.

    Returns:
        The measured variance beside that of theory.

    Example:
        >>> round(measure_variance("relu", slots=256).theory, 6)
        1.0
    """
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(DRAWS, 1, QUERIES, WIDTH, generator=generator)
    k = torch.randn(DRAWS, 1, slots, WIDTH, generator=generator)
    v = correlated_values(DRAWS, slots, correlation, generator)
    chosen = rules.get(rule)
    theory = chosen.read_variance(slots, correlation) if isinstance(chosen, Pointwise) else None
    measured = memory.read(q, k, v, rule=chosen).var(correction=0)
    return VariancePoint(rule, slots, correlation, theory, float(measured))


def run_reads(run: Run, context: Context) -> dict[str, Any]:
    """Measure a rule at every number of slots and every correlation of the values."""
    content = run.content
    places = [(correlation, slots) for correlation in content["correlations"] for slots in content["slots"]]
    points = []
    for i, (correlation, slots) in enumerate(places):
        context.report(i / len(places), f"{slots} slots")
        points.append(measure_variance(content["rule"], slots, correlation, int(content["seed"])).to_dict())
    return {"points": [{key: rounded(value) for key, value in point.items()} for point in points]}


# ------------------------------------------------------------------ recall


@dataclass(frozen=True)
class RecallTask:
    """The recall task."""

    kind: str
    """`one`: a single slot has the key of a query; `many`: a share of all slots has it, and they vote."""
    key_width: int = 32
    classes: int = 16
    noise: float = 0.8
    """The length of the noise on the key of a query, which has length one."""
    share: float = 1 / 32
    """The share of all slots that hold the key of a query, if many do."""
    truth: float = 0.3
    """The probability that a vote is for the right class; otherwise it is for any class."""

    def draw(self, memories: int, queries: int, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns keys (M, n, K), classes (M, n), queries (M, Q, K) and their answers (M, Q)."""
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
        """Returns the accuracy of the best reader, which counts the votes of the slots with the nearest key."""
        scores = queries @ keys.transpose(1, 2)
        nearest = scores >= scores.amax(-1, keepdim=True) - 1e-5
        votes = nearest.float() @ F.one_hot(classes, self.classes).float()
        return float((votes.argmax(-1) == answers).float().mean())


def _pick(x: Tensor, places: Tensor) -> Tensor:
    return x.gather(1, places[..., None].expand(-1, -1, x.size(-1)))


class RecallModel(nn.Module):
    """A model with one read between two linear layers."""

    def __init__(self, task: RecallTask, width: int, heads: int, rule: Any) -> None:
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


def run_recall(run: Run, context: Context) -> dict[str, Any]:
    """Train a rule at one number of slots and test it at others."""
    content = run.content
    training: Mapping[str, Any] = content["training"]
    task, lr = RecallTask(**content["task"]), chosen_rate(run, context)
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
        "zeros": {n: found["zero_fraction"] for n, found in tested.items()},
        "dead": {n: found["dead"] for n, found in tested.items()},
        "rows": tested,
        "curve": curve,
        "step": training["updates"],
    }


def _train(
    model: RecallModel,
    task: RecallTask,
    training: Mapping[str, Any],
    lr: float,
    regularizer: RegularizerConfig | None,
    context: Context,
) -> tuple[list[dict[str, float]], int | None]:
    """Train the model; returns points of the training curve, and the update at which it diverged or None."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
    updates, warmup, queries = int(training["updates"]), int(training["warmup"]), int(training["queries"])
    curve: list[dict[str, float]] = []
    sums = [0.0, 0.0]
    rule_warmup = RuleWarmup(model, int(training.get("rule_warmup", 0)))
    model.train()
    for update in range(1, updates + 1):
        rule_warmup.ease(update)
        for group in optimizer.param_groups:
            group["lr"] = lr * _rate(update, updates, warmup)
        seed = int(training["seed"]) * 1_000_003 + update
        n = grown(int(training["slots"]), update / updates)
        *drawn, answers = task.draw(int(training["memories"]), queries, n, seed)
        logits, stats = model(*drawn)
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
    rule_warmup.restore()
    return curve, None


def grown(slots: int, done: float) -> int:
    """Returns the number of slots at a share of the training, the same for every rule.

    It doubles from 16 and reaches `slots` when half of the training is done.

    Example:
        >>> [grown(64, share) for share in (0.0, 0.25, 0.5)]
        [16, 32, 64]
    """
    doublings = math.log2(slots / 16)
    return min(slots, 16 * 2 ** int(doublings * min(1.0, 2 * done))) if slots > 16 else slots


def _rate(update: int, updates: int, warmup: int) -> float:
    """Returns the factor of the learning rate: a linear rise, then a cosine down to zero."""
    if update <= warmup:
        return update / warmup
    return 0.5 * (1 + math.cos(math.pi * (update - warmup) / (updates + 1 - warmup)))


@torch.no_grad()
def _test(model: RecallModel, task: RecallTask, n: int, total: int, queries: int) -> dict[str, float]:
    """Returns means over `total` queries at n slots: accuracy, that of the best reader, loss and row statistics."""
    model.train()  # there is no dropout; this mode returns row statistics
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
