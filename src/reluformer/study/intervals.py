"""The mean over seeds and where it may lie: Student's interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class Interval:
    """A mean and where it may lie."""

    mean: float
    low: float
    high: float
    count: int


@lru_cache
def student(confidence: float, degrees: int) -> float:
    """The quantile t with P(|T| < t) = confidence.

    With T = sqrt(k) tan(a) the density of a is proportional to cos(a)^(k - 1), which is summed up.
    """
    angle = np.linspace(0, math.pi / 2, 200_001)
    density = np.cos(angle) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    found = float(np.interp(confidence, mass / mass[-1], angle))
    return math.sqrt(degrees) * math.tan(found)


def interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Of the mean of finite values; as wide as can be for a single one."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf, len(values))
    half = student(confidence, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))
