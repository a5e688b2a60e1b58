"""A run that evaluates a trained model: translations, losses, joined captions, zeros, attention maps.

It is a run of its own, so that another measurement never trains a model again.

Joined captions (claim C8a) give the cost of length; see `length_cost`. Zeros are counted over all
visible pairs of the validation set, attention by attention, with the rows that read nothing.

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
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from reluformer import files, memory
from reluformer.layers import Attention, Sublayer, TokenRead, TokenSlots
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.study.length_cost import bleu_counts, bleu_of, cost_of_length, neighbour_slips
from reluformer.study.plan import Run
from reluformer.study.trainings import Context, data_config, prepared_name, rounded
from reluformer.translation.corpus import PreparedCorpus, prepare, read_documents
from reluformer.translation.document import Document
from reluformer.translation.embedded import document_from_id, score_discourse
from reluformer.translation.embedded.discourse import Tally
from reluformer.translation.joins import join_texts, text_joins
from reluformer.translation.recipe import DataConfig, SegmentConfig
from reluformer.translation.scoring import score
from reluformer.translation.segments import EncodedDocument, cut, encode_documents
from reluformer.translation.stepper import evaluating
from reluformer.translation.task import ValidationBatches
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
    corpus: Callable[[], PreparedCorpus]
    """Opens the corpus that the model was trained on."""
    start: Callable[[], Translator | None]
    """Loads the model that the training started from; None if it had none."""


def run(run: Run, context: Context) -> dict[str, Any]:
    """Measure everything that `measures` names, on the first `documents` of a split."""
    training, options = run.evaluated, run.content
    assert training is not None
    if context.needed(training)["status"] == "diverged":
        return {"status": "diverged", "message": "the training diverged: there is no model to evaluate"}
    data = data_config(training.content, context.data)
    # the model is measured, not what `check_alignment` repairs
    decoding = {"check_alignment": False, **options.get("decoding", {})}
    translator = load_run(context.study.training(training), **decoding)
    languages = (data.source_lang, data.target_lang)
    source = data.splits[options["split"]]
    stream = read_documents(source, limits=data.limits, languages=languages, split=options["split"])

    def keep(name: str, documents: Sequence[Sequence[str]]) -> None:
        lines = [json.dumps({"hyp": list(document)}, ensure_ascii=False) for document in documents]
        files.write_text(context.study.directory(run) / f"{name}.jsonl", "\n".join(lines) + "\n")

    def corpus() -> PreparedCorpus:
        directory = context.study.data / prepared_name(data)
        prepare(data, directory)
        return PreparedCorpus(directory)

    def start() -> Translator | None:
        if training.start is None:
            return None
        return load_run(context.study.training(training.start), **options.get("decoding", {}))

    documents = list(islice(stream, options.get("documents")))
    if data.segments.join_documents == "random" and "joined" not in options["measures"]:
        length, seed = int(data.segments.segment_tokens), data.segments.join_seed
        documents = list(join_texts(documents, translator.tokenizer, length, seed))
    subject = Subject(translator, documents, data, options, keep, corpus, start)
    found: dict[str, Any] = {"documents": len(subject.documents)}
    for i, measure in enumerate(options["measures"]):
        context.report(i / len(options["measures"]), measure)
        found[measure] = MEASURES[measure](subject)
    return found


def translations(subject: Subject) -> dict[str, Any]:
    """Returns BLEU, d-BLEU and chrF, d-BLEU by length, and pronouns and terms of the embedded corpus."""
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
    joins = subject.data.segments.join_documents == "random"
    if subject.data.splits[subject.options["split"]].embedded is not None and not joins:
        discourse = score_discourse([document_from_id(d.id) for d in subject.documents], hypotheses)
        found["pronoun_accuracy"] = rounded(discourse.pronoun.accuracy)
        found["pronoun_accuracy_far"] = rounded(discourse.pronoun_far.accuracy)
        found["pronoun_by_distance"] = _accuracies(discourse.pronoun_by_distance)
        found["term_accuracy"] = rounded(discourse.term.accuracy)
        found["term_by_distance"] = _accuracies(discourse.term_by_distance)
    return found


def _accuracies(tallies: Mapping[str, Tally]) -> dict[str, float]:
    return {name: rounded(tally.accuracy) for name, tally in tallies.items() if tally.count}


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


def joined(subject: Subject) -> dict[str, Any]:
    """Returns the cost of length over random joins: BLEU, slips to neighbours, and the loss.

    Captions one by one are translated by the model that the training started from, as that one was trained
    on them. `bleu_own` is the model's own BLEU on them.
    """
    options, documents = subject.options["joins"], subject.documents
    most, translator = int(options["tokens"]), subject.translator
    before = subject.start() or translator
    references = [sentence for document in documents for sentence in document.tgt or ()]
    alone, own = (_one_by_one(model, documents) for model in (before, translator))
    first = np.cumsum([0, *(len(document.src) for document in documents)])
    long = Translator(translator.model, translator.tokenizer, translator.config.replace(window_tokens=most))
    texts, slips, chance, losses_of = [], [], [], []
    for seed in options["seeds"]:
        members = [
            [int(n) for number in join for n in range(first[number], first[number + 1])]
            for join in text_joins(documents, translator.tokenizer, most, seed)
        ]
        sources = [sentence for document in documents for sentence in document.src]
        found = [""] * len(references)
        translated = long.translate_documents([[sources[n] for n in join] for join in members])
        for join, hypotheses in zip(members, translated, strict=True):
            for number, hypothesis in zip(join, hypotheses, strict=True):
                found[number] = hypothesis
        texts.append(found)
        slips.append(neighbour_slips(found, references, members))
        chance.append(neighbour_slips(alone, references, members))
        losses_of.append(_loss(translator, list(join_texts(documents, translator.tokenizer, most, seed)), most))
    subject.keep("alone", [[text] for text in alone])
    subject.keep("joined", [[text] for text in texts[0]])
    return {
        "tokens": most,
        "captions": len(references),
        **cost_of_length(alone, texts, references),
        "bleu_own": round(bleu_of(bleu_counts(own, references).sum(0)), 2),
        "slips": rounded(sum(slips) / len(slips)),
        "slips_by_chance": rounded(sum(chance) / len(chance)),
        "loss": rounded(sum(losses_of) / len(losses_of)),
        "loss_alone": rounded(_loss(before, documents, "sentence")),
    }


def _one_by_one(translator: Translator, documents: Sequence[Document]) -> list[str]:
    """Returns the translation of every sentence by itself."""
    alone = Translator(translator.model, translator.tokenizer, translator.config.replace(window_tokens="sentence"))
    return [text for found in alone.translate_documents([document.src for document in documents]) for text in found]


def _loss(translator: Translator, documents: Sequence[Document], length: int | Literal["sentence"]) -> float:
    """Returns the mean loss of a target token, in documents cut at `length`."""
    encoded = encode_documents(documents, translator.tokenizer)
    segments = list(cut(encoded, SegmentConfig(segment_tokens=length)))
    pairs = [(segment.source.tolist(), segment.target.tolist()) for segment in segments]
    scores = score_targets(translator.model, [pair[0] for pair in pairs], [pair[1] for pair in pairs], 4096)
    values = [value for found in scores for value in found.tokens]
    return -sum(values) / max(len(values), 1)


@torch.inference_mode()
def zeros(subject: Subject) -> dict[str, Any]:
    """Returns the share of zeros among all visible pairs of the validation set, and of rows that read nothing.

    Both are given over all attention and for each attention. Padded rows do not count.
    """
    model = subject.translator.model
    counts: dict[str, list[int]] = {}
    batches = ValidationBatches(subject.corpus().store("valid"), int(subject.options.get("batch_tokens", 4096)))
    with evaluating(model):
        for batch in batches:
            encoded = model.encode(batch.source, batch.source_mask, stats=True)
            _, decoded = model.decode(batch.target_in, encoded, stats=True)
            for name, stats in {**encoded.reads, **decoded}.items():
                mask = batch.row_masks[name.partition(".")[0]]
                visible = stats.n_visible.expand_as(stats.row_sum)
                real = (visible > 0) & (torch.ones(()).bool() if mask is None else mask[:, None])
                pairs = visible[real]
                found = (
                    int((stats.zero_fraction[real].double() * pairs).round().sum()),
                    int(pairs.sum()),
                    int((stats.dead & real).sum()),
                    int(real.sum()),
                )
                counts[name] = [a + b for a, b in zip(counts.get(name, [0] * 4), found, strict=True)]
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    return {
        **_shares(totals),
        "pairs": totals[1],
        "rows": totals[3],
        "reads": {name: _shares(found) for name, found in counts.items()},
    }


def _shares(counts: Sequence[int]) -> dict[str, float]:
    zero, pairs, dead, rows = counts
    return {"zeros": rounded(zero / max(pairs, 1)), "dead": rounded(dead / max(rows, 1))}


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
    "joined": joined,
    "zeros": zeros,
    "maps": attention_maps,
}
