"""What `reluformer translate --score` prints: how likely a model finds a translation that is given."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from reluformer.cli.texts import Layouts
from reluformer.errors import DataError

if TYPE_CHECKING:
    from reluformer.translation.document import Document
    from reluformer.translation.formats import Skeleton
    from reluformer.translation.translator import TargetScore, Translator

Pair = tuple["Document", tuple[str, ...]]


def pairs(source: Skeleton, target: Path, layouts: Layouts, source_name: str) -> list[Pair]:
    """Each document of the source with its translation; what is empty in both is left out."""
    if not source.sentences:
        raise DataError(f"{source_name}: holds no sentence, so there is nothing to score")
    targets = _targets(target, layouts)
    if len(targets) != len(source.documents):
        raise DataError(
            f"{target}: {len(targets)} documents, but {source_name} has {len(source.documents)}; "
            "both must hold the same documents in the same order"
        )
    found = list(zip(source.documents, targets, strict=True))
    for document, sentences in found:
        if bool(document.src) != bool(sentences):
            empty, other = (source_name, target) if sentences else (target, source_name)
            raise DataError(
                f"{empty}: document {document.id} is empty, but {other} has sentences for it; add or drop it"
            )
    return [pair for pair in found if pair[1]]


def _targets(path: Path, layouts: Layouts) -> list[tuple[str, ...]]:
    """The documents of a text, or those under "hyp" or "tgt" in JSONL; without blank sentences, as the sources are."""
    from reluformer.translation.formats import Jsonl, Tsv, is_jsonl
    from reluformer.translation.formats.catalogues import Catalogue
    from reluformer.translation.scoring import read_hypotheses

    if is_jsonl(path):
        return [tuple(sentence for sentence in document if sentence.strip()) for document in read_hypotheses(path)]
    if layouts.format is not None and isinstance(layouts.of(path), Tsv | Catalogue):
        layouts = replace(layouts, format=None)  # that was said of the source
    layout = layouts.of(path)
    if isinstance(layout, Tsv | Jsonl | Catalogue):
        raise DataError(
            f"{path}: read as {layout.name}, whose sentences are sources; give the translations alone, as text or as "
            '.jsonl with "tgt"'
        )
    return [document.src for document in layouts.read(path).documents]


def report(translator: Translator, pairs: Sequence[Pair], as_json: bool) -> str:
    """Log-probabilities by sentence, as JSON or in columns; the total goes to standard error."""
    scores = translator.score([source.src for source, _ in pairs], [target for _, target in pairs])
    tokens = sum(len(score.tokens) for score in scores)
    total = sum(score.total for score in scores)
    if as_json:
        entries = [_entry(pair, score) for pair, score in zip(pairs, scores, strict=True)]
        summary = {"documents": entries, "total": total, "tokens": tokens, "perplexity": _perplexity(total, tokens)}
        return json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    typer.echo(f"log-probability {total:.2f} of {tokens} tokens, perplexity {_perplexity(total, tokens):.2f}", err=True)
    return "".join(
        f"{source.id}\t{number}\t{value:.4f}\t{' '.join(sentence.split())}\n"
        for (source, target), score in zip(pairs, scores, strict=True)
        for number, (value, sentence) in enumerate(zip(score.sentences, target, strict=True), 1)
    )


def _entry(pair: Pair, score: TargetScore) -> dict[str, Any]:
    source, target = pair
    return {
        "id": source.id,
        "src": list(source.src),
        "tgt": list(target),
        "log_probability": score.total,
        "sentences": list(score.sentences),
        "tokens": list(score.tokens),
    }


def _perplexity(total: float, tokens: int) -> float:
    return math.exp(min(-total / tokens, 700))
