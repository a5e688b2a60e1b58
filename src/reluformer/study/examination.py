"""A run that looks at a trained model: translations, losses by position and length, pronouns, attention maps.

It is a run of its own, so that another measurement never trains a model again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from reluformer import files
from reluformer.study import maps
from reluformer.study.corpora import data_config
from reluformer.study.plan import Run
from reluformer.study.trainings import Context, rounded
from reluformer.translation.corpus import read_documents
from reluformer.translation.document import Document
from reluformer.translation.embedded import document_from_id, score_discourse
from reluformer.translation.recipe import DataConfig, SegmentConfig
from reluformer.translation.scoring import score
from reluformer.translation.segments import cut, encode_documents
from reluformer.translation.translator import Translator, load, score_targets

POSITION_BORDERS = (32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Subject:
    """What is examined, on what."""

    translator: Translator
    documents: Sequence[Document]
    data: DataConfig
    options: Mapping[str, Any]
    keep: Callable[[str, Sequence[Sequence[str]]], None]
    """Store documents under a name, for paired tests between systems."""


def run(run: Run, context: Context) -> dict[str, Any]:
    """Everything that `measures` names, on the first `documents` of a split."""
    training, options = run.examined, run.content
    assert training is not None
    if context.needed(training)["status"] == "diverged":
        return {"status": "diverged", "message": "the training diverged: there is no model to examine"}
    data = data_config(training.content, context.data)
    translator = load(context.folder.training(training), **options.get("decoding", {}))
    languages = (data.source_lang, data.target_lang)
    source = data.splits[options["split"]]
    stream = read_documents(source, limits=data.limits, languages=languages, split=options["split"])

    def keep(name: str, documents: Sequence[Sequence[str]]) -> None:
        lines = [json.dumps({"hyp": list(document)}, ensure_ascii=False) for document in documents]
        files.write_text(context.folder.directory(run) / f"{name}.jsonl", "\n".join(lines) + "\n")

    subject = Subject(translator, list(islice(stream, options.get("documents"))), data, options, keep)
    found: dict[str, Any] = {"documents": len(subject.documents)}
    for i, measure in enumerate(options["measures"]):
        context.report(i / len(options["measures"]), measure)
        found[measure] = MEASURES[measure](subject)
    return found


def translations(subject: Subject) -> dict[str, Any]:
    """BLEU, d-BLEU and chrF, d-BLEU by length, and for the embedded corpus the pronouns by distance."""
    hypotheses = subject.translator.translate_documents([document.src for document in subject.documents])
    references = [document.tgt or () for document in subject.documents]
    subject.keep("translations", hypotheses)
    subject.keep("references", references)
    tokenizer = subject.translator.tokenizer
    lengths = [sum(len(ids) + 1 for ids in tokenizer.encode_batch(list(d.src))) for d in subject.documents]
    borders = subject.options.get("length_borders", ())
    scores = score(hypotheses, references, length_borders=borders, lengths=lengths, length_unit="source tokens")
    found: dict[str, Any] = {
        **{figure.metric: round(figure.value, 2) for figure in scores.figures},
        "signature": scores.bleu.signature,
        "d_bleu_by_length": {b.label: b.d_bleu and round(b.d_bleu, 2) for b in scores.buckets},
        "documents_by_length": {b.label: b.documents for b in scores.buckets},
    }
    if subject.data.splits[subject.options["split"]].embedded is not None:
        discourse = score_discourse([document_from_id(d.id) for d in subject.documents], hypotheses)
        by_distance = discourse.pronoun_by_distance.items()
        found["pronoun_accuracy"] = rounded(discourse.pronoun.accuracy)
        found["pronoun_accuracy_far"] = rounded(discourse.pronoun_far.accuracy)
        found["pronoun_by_distance"] = {name: rounded(tally.accuracy) for name, tally in by_distance if tally.count}
    return found


def losses(subject: Subject) -> dict[str, Any]:
    """Cross-entropy of documents cut at each of `lengths`, over all tokens and by position in the target."""
    found = {}
    for length in subject.options["lengths"]:
        encoded = encode_documents(subject.documents, subject.translator.tokenizer)
        segments = list(cut(encoded, SegmentConfig(segment_tokens=length)))
        scores = score_targets(
            subject.translator.model,
            [segment.source.tolist() for segment in segments],
            [segment.target.tolist() for segment in segments],
            subject.options.get("batch_tokens", 4096),
        )
        found[str(length)] = _by_position([score.tokens for score in scores])
    return found


def _by_position(rows: Sequence[Sequence[float]]) -> dict[str, Any]:
    sums, counts = [0.0] * len(POSITION_BORDERS), [0] * len(POSITION_BORDERS)
    for row in rows:
        for position, value in enumerate(row):
            bucket = next((i for i, border in enumerate(POSITION_BORDERS) if position < border), -1)
            sums[bucket] -= value
            counts[bucket] += 1
    by_position = {
        str(border): rounded(total / count)
        for border, total, count in zip(POSITION_BORDERS, sums, counts, strict=True)
        if count
    }
    return {"loss": rounded(sum(sums) / max(sum(counts), 1)), "tokens": sum(counts), "by_position": by_position}


def attention_maps(subject: Subject) -> dict[str, Any]:
    """What the attention of long documents looks like, and one head of the longest as a picture."""
    return maps.examine(subject.translator, subject.documents, int(subject.options["map_tokens"]))


MEASURES: dict[str, Callable[[Subject], dict[str, Any]]] = {
    "translations": translations,
    "losses": losses,
    "maps": attention_maps,
}
