"""Generation as our own search means it: outlines, settings, and the way back to a `Translator`.

`generate(**search_settings(config))` ranks hypotheses as `decoding.beam_search` does: both
divide the log-probability by length^length_penalty, the end counted, the begin not; and
`early_stopping` "never" and True are our `stop` exact and beam. What an outline forbids is forbidden by
`OutlineProcessor`, after the softmax, so it takes no probability away in either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.modeling import ReLUFormerForConditionalGeneration
from reluformer.integrations.transformers.tokenization import ReLUFormerTokenizer, check_fingerprint
from reluformer.translation.beam_search import Outline, Progress
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.translator import Translator


class OutlineProcessor(LogitsProcessor):
    """One sentence out for one in, none longer than its limit: give it to `generate` as a logits_processor.

    `sources` are the rows of input_ids (B, S), padding included.
    """

    def __init__(self, sources: Tensor, config: DecodingConfig | None = None, pad_id: int = 0) -> None:
        config = config or DecodingConfig()
        rows = [[token for token in row if token != pad_id] for row in sources.tolist()]
        self.outlines = [Outline.of(row, config) for row in rows]
        self._min_length = config.min_length

    @property
    def max_new_tokens(self) -> int:
        """The greatest length of a target."""
        return max(outline.most_tokens for outline in self.outlines)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids (B * beams, T) with the begin, scores (B * beams, V)."""
        beams, rest = divmod(input_ids.size(0), len(self.outlines))
        if rest:
            raise ArgumentError(f"{input_ids.size(0)} rows but {len(self.outlines)} sources; make one for each batch")
        outlines = [outline for outline in self.outlines for _ in range(beams)]
        progress = Progress(outlines, 0, self._min_length, input_ids.device)
        first = torch.zeros(len(outlines), 1, dtype=torch.long, device=input_ids.device)
        for tokens in input_ids[:, 1:].unbind(1):
            progress.follow(first, tokens[:, None])
        allowed = scores.clone()
        progress.forbid(allowed)
        return allowed


def search_settings(config: DecodingConfig) -> dict[str, Any]:
    """The arguments of `generate` that mean what `config` means."""
    return {
        "do_sample": False,
        "num_beams": config.beam,
        "num_return_sequences": config.n_best,
        "length_penalty": config.length_penalty,
        "early_stopping": config.beam > 1 and ("never" if config.stop == "exact" else True),
    }


def translator(
    model: ReLUFormerForConditionalGeneration, tokenizer: ReLUFormerTokenizer, **decoding: Any
) -> Translator:
    """Documents of any length with our own search, as `reluformer.load` gives; `decoding` as there."""
    check_tokenizer(model, tokenizer)
    config = model.config.to_decoding_config().replace(**decoding)
    return Translator(model.model.eval(), tokenizer.own, config)


def check_tokenizer(model: Any, tokenizer: Any) -> None:
    """Refuse a tokenizer of another model."""
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    check_fingerprint(model.config.tokenizer_sha256, tokenizer, name)


def texts_of(rows: Sequence[Sequence[int]], tokenizer: ReLUFormerTokenizer) -> list[str]:
    """Generated rows as texts, a space between sentences."""
    return [" ".join(tokenizer.decode_sentences(row)) for row in rows]
