"""The cost of length (claim C8a): what a model loses when short texts are joined to a long one.

Captions that are joined at random need no context. A model that finds sentence k of the source while
it writes sentence k of the target translates them as well as one by one. Three numbers say how
well it does, each over several random joins of the same captions:

cost     BLEU of the captions one by one, minus BLEU of the captions joined
slips    share of captions whose translation is nearer to the reference of a neighbour than to their own
loss     cross-entropy with the reference as prefix (`evaluation` computes it)

Nearness is sentence chrF. Captions resemble each other, so some translations are nearer to a
neighbour by chance. The same share of translations made one by one tells how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from reluformer.errors import ArgumentError

Counts = npt.NDArray[np.int64]
SAMPLES = 1000
_SEED = 12345
_ORDERS = 4


def bleu_counts(hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
    """Returns what BLEU counts in each sentence, (N, 10): 4 matches, 4 n-grams, both lengths."""
    metric = BLEU(tokenize="13a", effective_order=True)
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        found = metric.sentence_score(hypothesis, [reference])
        rows.append([*found.counts, *found.totals, found.sys_len, found.ref_len])
    return np.array(rows, dtype=np.int64).reshape(len(rows), 2 * _ORDERS + 2)


def bleu_of(counts: Counts) -> float:
    """Returns BLEU of summed counts, (10,); the same as sacreBLEU gives the sentences."""
    *grams, sys_len, ref_len = (int(count) for count in counts)
    found = BLEU.compute_bleu(grams[:_ORDERS], grams[_ORDERS:], sys_len, ref_len, smooth_method="exp")
    return float(found.score)


def cost_of_length(alone: Sequence[str], joined: Sequence[Sequence[str]], references: Sequence[str]) -> dict[str, Any]:
    """Returns BLEU of captions one by one and joined, and their difference with its interval.

    The interval is that of a bootstrap by caption: a resample takes the same captions from all joins.

    Args:
        alone: The translation of each caption by itself, N of them.
        joined: For each random join, the translations of the same captions in the same order, N each.
        references: The N reference translations.

    Raises:
        ArgumentError: There is no join or no caption, or their numbers differ.

    Example:
        >>> text = ["a man rides a red bike", "two dogs run over the wet grass"]
        >>> cost_of_length(text, [text, text], text)["cost"]
        0.0
    """
    if not joined or not references or any(len(texts) != len(references) for texts in (alone, *joined)):
        raise ArgumentError("expected at least one join, and one translation of every caption in each")
    single, *joins = (bleu_counts(texts, references) for texts in (alone, *joined))
    by_join = [bleu_of(counts.sum(0)) for counts in joins]
    bleu_alone, bleu_joined = bleu_of(single.sum(0)), float(np.mean(by_join))
    draw = np.random.default_rng(_SEED)
    costs = []
    for _ in range(SAMPLES):
        times = np.bincount(draw.integers(len(references), size=len(references)), minlength=len(references))
        costs.append(bleu_of(times @ single) - float(np.mean([bleu_of(times @ counts) for counts in joins])))
    low, high = np.quantile(costs, [0.025, 0.975])
    return {
        "bleu_alone": round(bleu_alone, 2),
        "bleu": round(bleu_joined, 2),
        "bleu_by_join": [round(value, 2) for value in by_join],
        "cost": round(bleu_alone - bleu_joined, 2),
        "cost_interval": [round(float(low), 2), round(float(high), 2)],
    }


def neighbour_slips(
    hypotheses: Sequence[str], references: Sequence[str], joins: Sequence[Sequence[int]], reach: int = 1
) -> float:
    """Returns the share of captions whose translation is nearer to the reference of a neighbour.

    Args:
        hypotheses: The translation of each caption, N of them.
        references: The N reference translations.
        joins: The numbers of the captions of each join, in order.
        reach: How many captions away a neighbour may be.

    Returns:
        The share of those captions that have a neighbour; 0 if there is none.

    Example:
        >>> references = ["a man rides a bike", "two dogs run", "the sky is blue"]
        >>> neighbour_slips([references[0], references[2], references[2]], references, [[0, 1, 2]])
        0.3333333333333333
    """
    metric = CHRF()
    slips = captions = 0
    for join in joins:
        for place, number in enumerate(join):
            near = [*join[max(0, place - reach) : place], *join[place + 1 : place + 1 + reach]]
            if not near:
                continue
            own, *others = (metric.sentence_score(hypotheses[number], [references[n]]).score for n in (number, *near))
            captions += 1
            slips += max(others) > own
    return slips / captions if captions else 0.0
