"""Significance: paired bootstrap resampling of two systems, with sacreBLEU's own test.

compare(theirs, ours, references, metric="d_bleu").p_value
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, cast

from rich.table import Table
from rich.text import Text
from sacrebleu.significance import PairedTest, Result

from reluformer.errors import ArgumentError, DataError
from reluformer.translation.scoring import METRICS, Documents, Line, MetricName, check_documents, metric_kind

_seed_lock = threading.Lock()


@dataclass(frozen=True)
class Estimate:
    """A system's score, and where 95 % of its resampled scores lie: mean ± half_width."""

    system: str
    score: float
    mean: float
    half_width: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval."""
        return self.mean - self.half_width, self.mean + self.half_width


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same test set, `b` against the baseline `a`.

    `p_value` is sacreBLEU's: how often the size of a resampled difference exceeds its mean by more
    than the difference that was seen. That is about 0.4 where there is none, and half of a two-sided
    p elsewhere; it is 1 where no resample can tell the systems apart.
    """

    metric: MetricName
    a: Estimate
    b: Estimate
    p_value: float
    samples: int
    seed: int
    lines: int
    """The number of lines that were drawn from, with replacement. Few lines make a weak test."""
    line: Line
    signature: str

    @property
    def difference(self) -> float:
        """The score of `b` minus that of `a`."""
        return self.b.score - self.a.score

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        estimates = {
            key: {**asdict(estimate), "interval": list(estimate.interval)}
            for key, estimate in (("a", self.a), ("b", self.b))
        }
        return {**asdict(self), **estimates, "difference": self.difference}

    def __str__(self) -> str:
        label = METRICS[self.metric].label
        return (
            f"{label}: {self.b.system} - {self.a.system} = {self.difference:+.2f}, p = {self.p_value:.4f} "
            f"({self.lines} lines, a line is a {self.line}) {self.signature}"
        )

    def table(self) -> Table:
        """Returns a table for the terminal; its caption holds the signature."""
        table = Table(
            title="paired bootstrap resampling",
            caption=Text(str(self)),
            caption_justify="left",
            min_width=len(self.signature),
        )
        table.add_column("system")
        for heading in (METRICS[self.metric].label, "95 % interval", "p"):
            table.add_column(heading, justify="right")
        for estimate, p_value in ((self.a, ""), (self.b, f"{self.p_value:.4f}")):
            low, high = estimate.interval
            table.add_row(Text(estimate.system), f"{estimate.score:.2f}", f"{low:.2f} to {high:.2f}", p_value)
        return table


def compare(
    hypotheses_a: Documents,
    hypotheses_b: Documents,
    references: Documents,
    *,
    metric: MetricName = "bleu",
    samples: int = 1000,
    seed: int = 12345,
    names: tuple[str, str] = ("A", "B"),
) -> Comparison:
    """Compares two systems with paired bootstrap resampling.

    The same seed gives the same answer. Memory grows with samples times lines.

    Args:
        hypotheses_a: The documents of the baseline, each a list of sentences.
        hypotheses_b: The documents of the other system.
        references: The same documents in the same order, with as many sentences.
        metric: "bleu" and "chrf" resample sentences, "d_bleu" whole documents.
        samples: The number of resamples.
        seed: The seed of the resamples.
        names: The names of the two systems, for print.

    Raises:
        DataError: The documents do not match, or the test set is a single line.
        ArgumentError: The samples or the seed are below 1.
    """
    kind = metric_kind(metric)
    check_documents(hypotheses_a, references, f"hypotheses of {names[0]}")
    check_documents(hypotheses_b, references, f"hypotheses of {names[1]}")
    for option, value in (("samples", samples), ("seed", seed)):
        if value < 1:  # sacreBLEU takes 0 for 'no seed' and for its own number of samples
            raise ArgumentError(f"{option} must be at least 1, got {value}")
    lines = kind.lines(references)
    if len(lines) < 2:
        raise DataError(f"the test set is a single {kind.line}: resampling it tells nothing; compare on more")
    systems: list[tuple[str, Sequence[str]]] = [("a", kind.lines(hypotheses_a)), ("b", kind.lines(hypotheses_b))]
    with _sacrebleu_seed(seed):
        test = PairedTest(systems, {metric: kind.build(False)}, [lines], test_type="bs", n_samples=samples)
        signatures, columns = test()
    (key, signature), *_ = signatures.items()
    first, second = cast(list[Result], columns[key])
    a, b = _estimate(names[0], first), _estimate(names[1], second)
    return Comparison(
        metric=metric,
        a=a,
        b=b,
        p_value=1.0 if _indistinct(first, second) else float(second.p_value or 0.0),
        samples=samples,
        seed=seed,
        lines=len(lines),
        line=kind.line,
        signature=str(signature),
    )


def _estimate(system: str, result: Result) -> Estimate:
    return Estimate(system, float(result.score), float(result.mean or 0.0), float(result.ci or 0.0))


def _indistinct(first: Result, second: Result) -> bool:
    """Returns whether every resample scored the same; sacreBLEU would then say p = 1/(samples + 1)."""
    return (first.score, first.mean, first.ci) == (second.score, second.mean, second.ci)


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Sets sacreBLEU's seed, which it takes from the environment only, for the duration of the block."""
    with _seed_lock:
        before = os.environ.get("SACREBLEU_SEED")
        os.environ["SACREBLEU_SEED"] = str(seed)
        try:
            yield
        finally:
            if before is None:
                del os.environ["SACREBLEU_SEED"]
            else:
                os.environ["SACREBLEU_SEED"] = before


def compare_systems(systems: Sequence[tuple[str, Documents]], references: Documents) -> list[Comparison]:
    """Compares the first system with the second, if there is one.

    Sentences are always resampled, and documents if there are several.

    Args:
        systems: One or two systems, each with its name and its documents.
        references: The reference translations of the same documents.

    Returns:
        One comparison for each metric; empty for a single system.
    """
    if len(systems) < 2:
        return []
    (system, ours), (baseline, theirs) = systems
    metrics: list[MetricName] = ["bleu", "d_bleu"] if len(references) > 1 else ["bleu"]
    return [compare(theirs, ours, references, metric=metric, names=(baseline, system)) for metric in metrics]
