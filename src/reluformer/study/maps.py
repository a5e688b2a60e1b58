"""Claim C10: where attention looks in a long document, in numbers and as a picture.

For every attention of the model, over the rows of teacher-forced documents: the mean distance in
tokens between a query and what it reads, the share of the weight on punctuation and on function
words, and the share of weights that are exactly zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from reluformer import memory
from reluformer.layers import Attention, Sublayer, TokenRead, TokenSlots
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.study.trainings import rounded
from reluformer.translation.document import Document
from reluformer.translation.segments import EncodedDocument, encode_documents
from reluformer.translation.stepper import evaluating
from reluformer.translation.tokenizer import BEGIN, END, SEPARATOR, Tokenizer
from reluformer.translation.translator import Translator

_ENGLISH = """the a an of to in on at by for with from and or but that this these those it its is are was were be been
has have had not as we i you he she they our"""
_GERMAN = """der die das den dem des ein eine einen einem einer eines und oder aber dass daß zu in im an am auf von vom
mit für bei nach aus es ist sind war waren sein hat haben hatte nicht als wir ich sie er"""
FUNCTION_WORDS = frozenset(_ENGLISH.split() + _GERMAN.split())
PICTURE_SIDE = 96


def examine(translator: Translator, documents: Sequence[Document], most_tokens: int) -> dict[str, Any]:
    """Means over the longest documents that fit into `most_tokens`, and a picture of the last encoder attention."""
    tokenizer = translator.tokenizer
    encoded = [d for d in encode_documents(documents, tokenizer) if _length(d) <= most_tokens]
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
    """Which tokens are punctuation, and which are function words."""
    texts = [tokenizer.decode([token]).strip().casefold() for token in tokens]
    punctuation = [bool(text) and not any(c.isalnum() for c in text) for text in texts]
    function = [text in FUNCTION_WORDS for text in texts]
    return torch.tensor(punctuation), torch.tensor(function)


@contextmanager
def _weights_of(model: ReLUFormer) -> Iterator[dict[str, Tensor]]:
    """The weights (H, Tq, Tk) of every attention in the forward pass inside."""
    seen: dict[str, Tensor] = {}

    def hook(name: str) -> Any:
        def keep(module: TokenRead, given: tuple[Tensor, TokenSlots, bool], output: object) -> None:
            q, slots, *_ = given
            found, _ = memory.weights(q, slots.keys, module.rule, module.causal, slots.mask, bias=module.bias)
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
    """Head by head; distances are of a sequence to itself only, zeros are counted where a query may look."""
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
    """The first tokens' rows, mean over heads, each row divided by its largest weight."""
    corner = weights.mean(0)[:PICTURE_SIDE, :PICTURE_SIDE]
    return [[rounded(float(x)) for x in row] for row in corner / corner.amax(1, keepdim=True).clamp_min(1e-12)]
