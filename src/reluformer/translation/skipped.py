"""What was left out of a corpus or changed in it, and why: nothing is dropped silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PLACES_KEPT = 5

EMPTY = "empty sentence: pair dropped"
CONTROL = "control characters: replaced by a space"
TOO_LONG = "sentence over the character limit: pair dropped"
NO_SENTENCES = "document without sentences: dropped"
FUZZY = "draft translation (fuzzy or to be reviewed): pair dropped"
OVER_SEGMENT = "sentence longer than a segment: pair dropped"


@dataclass
class Skipped:
    """Counts by reason, with the first few places of each."""

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, place: str) -> None:
        """Count one case; `place` says where it is."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        kept = self.places.setdefault(reason, [])
        if len(kept) < PLACES_KEPT:
            kept.append(place)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {reason: {"count": count, "places": self.places[reason]} for reason, count in self.counts.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Skipped:
        """Back from `to_json`."""
        return cls(
            {reason: int(entry["count"]) for reason, entry in data.items()},
            {reason: [str(place) for place in entry["places"]] for reason, entry in data.items()},
        )
