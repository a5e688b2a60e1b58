"""A run that evaluates a trained model: translations, losses by position and length, pronouns, attention maps.

It is a run of its own, so that another measurement never trains a model again.

Attention maps (claim C10) say where attention looks in a long document, in numbers and as a picture.
For every attention of the model, over the rows of teacher-forced documents, they hold the mean distance in
tokens between a query and what it reads, the share of the weight on punctuation and on function
words, and the share of weights that are exactly zero.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from reluformer import files, memory
from reluformer.layers import Attention, Sublayer, TokenRead, TokenSlots
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.study.plan import Run
from reluformer.study.trainings import Context, data_config, rounded
from reluformer.translation.corpus import read_documents
from reluformer.translation.document import Document
from reluformer.translation.embedded import document_from_id, score_discourse
from reluformer.translation.recipe import DataConfig, SegmentConfig
from reluformer.translation.scoring import score
from reluformer.translation.segments import EncodedDocument, cut, encode_documents
from reluformer.translation.stepper import evaluating
from reluformer.translation.tokenizer import BEGIN, END, SEPARATOR, Tokenizer
from reluformer.translation.translator import Translator, load_run, score_targets

POSITION_BORDERS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_ENGLISH = """the a an of to in on at by for with from and or but that this these those it its is are was were be been
has have had not as we i you he she they our"""
_GERMAN = """der die das den dem des ein eine einen einem einer eines und oder aber dass daß zu in im an am auf von vom
mit für bei nach aus es ist sind war waren sein hat haben hatte nicht als wir ich sie er"""
FUNCTION_WORDS = frozenset(_ENGLISH.split() + _GERMAN.split())
PICTURE_SIDE = 96


@dataclass(frozen=True)
class Subject:
    """The model that is evaluated, and the documents that it is evaluated on."""

    translator: Translator
    documents: Sequence[Document]
    data: DataConfig
    options: Mapping[str, Any]
    keep: Callable[[str, Sequence[Sequence[str]]], None]
    """Stores documents under a name, for paired tests between systems."""


def run(run: Run, context: Context) -> dict[str, Any]:
    """Measure everything that `measures` names, on the first `documents` of a split."""
    training, options = run.evaluated, run.content
    assert training is not None
    if context.needed(training)["status"] == "diverged":
        return {"status": "diverged", "message": "the training diverged: there is no model to evaluate"}
    data = data_config(training.content, context.data)
    translator = load_run(context.study.training(training), **options.get("decoding", {}))
    languages = (data.source_lang, data.target_lang)
    source = data.splits[options["split"]]
    stream = read_documents(source, limits=data.limits, languages=languages, split=options["split"])

    def keep(name: str, documents: Sequence[Sequence[str]]) -> None:
        lines = [json.dumps({"hyp": list(document)}, ensure_ascii=False) for document in documents]
        files.write_text(context.study.directory(run) / f"{name}.jsonl", "\n".join(lines) + "\n")

    subject = Subject(translator, list(islice(stream, options.get("documents"))), data, options, keep)
    found: dict[str, Any] = {"documents": len(subject.documents)}
    for i, measure in enumerate(options["measures"]):
        context.report(i / len(options["measures"]), measure)
        found[measure] = MEASURES[measure](subject)
    return found


def translations(subject: Subject) -> dict[str, Any]:
    """Returns BLEU, d-BLEU and chrF, d-BLEU by length, and for the embedded corpus the pronouns by distance."""
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
    """Returns the cross-entropy of documents cut at each of `lengths`, over all tokens and by position."""
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
        found[str(length)] = by_position([score.tokens for score in scores])
    return found


def by_position(rows: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Returns the mean loss of all tokens, and of those below each border of positions.

    Args:
        rows: The log-probabilities of the tokens of each target.
    """
    sums, counts = [0.0] * len(POSITION_BORDERS), [0] * len(POSITION_BORDERS)
    for row in rows:
        for position, value in enumerate(row):
            bucket = next((i for i, border in enumerate(POSITION_BORDERS) if position < border), -1)
            sums[bucket] -= value
            counts[bucket] += 1
    means = {
        str(border): rounded(total / count)
        for border, total, count in zip(POSITION_BORDERS, sums, counts, strict=True)
        if count
    }
    return {"loss": rounded(sum(sums) / max(sum(counts), 1)), "tokens": sum(counts), "by_position": means}


def attention_maps(subject: Subject) -> dict[str, Any]:
    """Returns means over the longest documents that fit into `map_tokens`, and a picture of one attention.

    The picture shows the last attention of the encoder on the longest of them.
    """
    translator, tokenizer = subject.translator, subject.translator.tokenizer
    most_tokens = int(subject.options["map_tokens"])
    encoded = [d for d in encode_documents(subject.documents, tokenizer) if _length(d) <= most_tokens]
    longest = sorted(encoded, key=_length)[-4:]
    if not longest:
        return {"tokens": 0, "reads": {}, "picture": None}
    totals: dict[str, list[dict[str, list[float]]]] = {}
    picture: list[list[float]] = []
    for document in longest:
        source, target = (_tokens([pair[side] for pair in document.pairs]) for side in (0, 1))
        kinds = {"source": _kinds(source, tokenizer), "target": _kinds([BEGIN, *target[:-1]], tokenizer)}
        with _weights_of(translator.model) as seen:
            _read(translator.model, source, target)
        for name, weights in seen.items():
            side = "source" if name.startswith("encoder") or name.endswith("cross") else "target"
            totals.setdefault(name, []).append(_describe(name, weights, *kinds[side]))
        last = [name for name in seen if name.startswith("encoder")][-1]
        picture = _picture(seen[last])
    reads = {
        name: {
            key: [rounded(sum(heads) / len(heads)) for heads in zip(*(p[key] for p in parts), strict=True)]
            for key in parts[0]
        }
        for name, parts in totals.items()
    }
    return {
        "tokens": _length(longest[-1]),
        "documents": len(longest),
        "reads": reads,
        "picture": picture,
    }


def _length(document: EncodedDocument) -> int:
    return max(sum(len(pair[side]) + 1 for pair in document.pairs) for side in (0, 1))


def _tokens(sentences: Sequence[Sequence[int]]) -> list[int]:
    tokens = [token for sentence in sentences for token in (*sentence, SEPARATOR)]
    return [*tokens[:-1], END]


def _kinds(tokens: Sequence[int], tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Returns which tokens are punctuation and which are function words, each of shape (T,)."""
    texts = [tokenizer.decode([token]).strip().casefold() for token in tokens]
    punctuation = [bool(text) and not any(c.isalnum() for c in text) for text in texts]
    function = [text in FUNCTION_WORDS for text in texts]
    return torch.tensor(punctuation), torch.tensor(function)


@contextmanager
def _weights_of(model: ReLUFormer) -> Iterator[dict[str, Tensor]]:
    """Collect the weights (H, Tq, Tk) of every attention in the forward passes inside the block."""
    seen: dict[str, Tensor] = {}

    def hook(name: str) -> Any:
        def keep(module: TokenRead, given: tuple[Tensor, TokenSlots, bool], output: object) -> None:
            q, slots, *_ = given
            found, _ = memory.weights(
                q, slots.keys, module.rule, causal=module.causal, key_mask=slots.mask, bias=module.bias
            )
            seen[name] = found[0]

        return keep

    handles = [
        module.layer.read.register_forward_hook(hook(name))
        for name, module in model.named_modules()
        if isinstance(module, Sublayer) and isinstance(module.layer, Attention)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def _read(model: ReLUFormer, source: Sequence[int], target: Sequence[int]) -> None:
    with evaluating(model):
        model(torch.tensor([source]), torch.tensor([[BEGIN, *target[:-1]]]))


def _describe(name: str, weights: Tensor, punctuation: Tensor, function: Tensor) -> dict[str, list[float]]:
    """Returns the numbers of each head.

    Only attention of a sequence to itself has distances. Zeros are counted among the visible slots.
    """
    total = weights.sum((1, 2)).clamp_min(1e-12)
    queries, slots = weights.shape[1:]
    visible = torch.ones(queries, slots, dtype=torch.bool)
    if name.startswith("decoder") and not name.endswith("cross"):
        visible = visible.tril()
    found = {
        "punctuation": (weights[:, :, punctuation].sum((1, 2)) / total).tolist(),
        "function_words": (weights[:, :, function].sum((1, 2)) / total).tolist(),
        "zero_fraction": [float((head[visible] == 0).float().mean()) for head in weights],
    }
    if not name.endswith("cross"):
        distance = (torch.arange(queries)[:, None] - torch.arange(slots)[None]).abs()
        found["distance"] = ((weights * distance).sum((1, 2)) / total).tolist()
    return found


def _picture(weights: Tensor) -> list[list[float]]:
    """Returns the mean over heads for the first tokens; each row is divided by its largest weight."""
    corner = weights.mean(0)[:PICTURE_SIDE, :PICTURE_SIDE]
    return [[rounded(float(x)) for x in row] for row in corner / corner.amax(1, keepdim=True).clamp_min(1e-12)]


MEASURES: dict[str, Callable[[Subject], dict[str, Any]]] = {
    "translations": translations,
    "losses": losses,
    "maps": attention_maps,
}
