"""Paired bootstrap of translations, seed by seed: something about the test set, on which no verdict rests.

What was found is kept beside a run's result, so that it outlives the translations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from reluformer import files
from reluformer.study.experiment import Experiment
from reluformer.study.folder import StudyFolder
from reluformer.study.gathered import Gathered
from reluformer.translation.scoring import read_hypotheses
from reluformer.translation.significance import compare

NOTE = (
    "p is sacreBLEU's: how often the size of a resampled difference exceeds its own mean by more than "
    "the difference seen; about 0.4, not 1, where two systems score the same"
)


def lines(one: Experiment, part: str, gathered: Gathered) -> list[str]:
    """Every place of the grid against the first one."""
    places = gathered.places(one.name, part)
    told = []
    for place in places[1:]:
        base = _translated(gathered, one.name, part, places[0])
        found = [
            f"seed {seed}: {_told(_p_value(gathered.folder, address, base[seed]))}"
            for seed, address in _translated(gathered, one.name, part, place).items()
            if seed in base
        ]
        if found:
            told.append(f"{' '.join(place.values())} against {' '.join(places[0].values())}: {', '.join(found)}")
    return told


def _translated(gathered: Gathered, name: str, part: str, place: Mapping[str, str]) -> dict[int, str]:
    """The runs at a place that translated, by seed."""
    return {
        cell.seed: cell.runs[-1].address
        for cell, results in gathered.cells(name, part)
        if cell.labels == place and "translations" in results.get("examination", {})
    }


def _told(p_value: float | None) -> str:
    return "translations not kept" if p_value is None else f"p = {p_value:.3f}"


def _p_value(folder: StudyFolder, address: str, other: str) -> float | None:
    """Of two runs on the same test set: as it was found before, or from their translations."""
    kept = folder.bootstrap(address)
    known: dict[str, float] = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    if other not in known:
        paths = [folder.directory(run) / "translations.jsonl" for run in (address, other)]
        references = folder.directory(address) / "references.jsonl"
        if not all(path.is_file() for path in (*paths, references)):
            return None
        ours, theirs, target = (read_hypotheses(path) for path in (*paths, references))
        known[other] = round(compare(ours, theirs, target, metric="bleu").p_value, 4)
        files.write_json(kept, known)
    return known[other]
