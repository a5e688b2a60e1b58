"""Beam search.

The score of a hypothesis is the sum of the model's log-probabilities of its tokens and of
the end. What an outline forbids takes no probability away, so forced decoding gives the
same score. Hypotheses are ranked by

    score / length^length_penalty,  length counting the end but not the forced prefix.

A hypothesis ends where its end is among the `beam` best continuations of its source. With
`stop = "exact"` a source is finished when no live hypothesis could enter the n best any more,
even if it reached the greatest length that its outline allows at no cost. So the length
penalty never cuts off a better translation that the beam would find.

`NativeSearch` does all of this in the compiled library, where that decodes. `SteppedSearch` does it
for every stepper, in batches of sources of similar length; finished sources leave their batch.

Shapes: B sources, K beams of each, R = B * K rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reluformer.errors import ArgumentError
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.native_decoder import NativeDecoder, decoder_of
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.search import NEVER, NOT_FINITE, Hypothesis, Outline, OutlineState, Search, Settled
from reluformer.translation.stepper import AnyStepper, Decoder, Stepper, padded
from reluformer.translation.tokenizer import BEGIN, END


def start_search(decoder: Decoder, config: DecodingConfig) -> Search:
    """Returns a search with a decoder, to which no source was added yet."""
    if isinstance(decoder, NativeDecoder):
        return decoder.search(config)
    assert isinstance(decoder, Stepper)
    return SteppedSearch(decoder, config)


def beam_search(
    model: ReLUFormer | Decoder,
    source: Tensor,
    source_mask: Tensor | None = None,
    *,
    config: DecodingConfig | None = None,
    outlines: Sequence[Outline] | None = None,
) -> list[list[Hypothesis]]:
    """Translates sources with beam search.

    Args:
        model: The model. For many searches in turn, pass one `decoder_of(model)` instead.
        source: Token ids (B, S), each row with its end token.
        source_mask: True at tokens, (B, S); None without padding.
        config: How to search; by default `DecodingConfig()`.
        outlines: The constraints on each target; by default a target has as many sentences as its source.

    Returns:
        The `config.n_best` hypotheses of each source, best first.

    Raises:
        ArgumentError: The number of outlines is wrong, or the model gives no translation a finite probability.

    Example:
        >>> import torch
        >>> import reluformer as rf
        >>> model = rf.ReLUFormer(rf.ModelConfig(vocab_size=20, width=16, heads=2))
        >>> found = beam_search(model, torch.tensor([[7, 8, 2]]))
        >>> len(found), len(found[0])
        (1, 1)
    """
    config = config or DecodingConfig()
    lengths = [source.size(1)] * source.size(0) if source_mask is None else source_mask.sum(1).tolist()
    rows = [row[:length] for row, length in zip(source.tolist(), lengths, strict=True)]
    if outlines is None:
        outlines = [Outline.of(row, config) for row in rows]
    if len(outlines) != len(rows):
        raise ArgumentError(f"{len(rows)} sources but the outlines of {len(outlines)} targets")
    search = start_search(model if isinstance(model, Decoder) else decoder_of(model), config)
    numbers = [search.add(row, outline) for row, outline in zip(rows, outlines, strict=True)]
    while not search.done:
        search.run()
    return [search.hypotheses(number) for number in numbers]


class SteppedSearch(Search):
    """A search with a stepper: batches of sources of similar length, one after the other."""

    def __init__(self, stepper: AnyStepper, config: DecodingConfig) -> None:
        super().__init__()
        self._stepper = stepper
        self._config = config
        self._waiting: dict[int, tuple[tuple[int, ...], Outline]] = {}
        self._batch: _Batch | None = None
        self._batch_numbers: list[int] = []
        self._new: list[int] = []
        self._count = 0

    def add(self, source: Sequence[int], outline: Outline, reads: bool = False) -> int:
        self._waiting[self._count] = tuple(source), outline
        self._count += 1
        return self._count - 1

    @property
    def done(self) -> bool:
        return not self._waiting and self._batch is None

    def advance(self, positions: int = 1) -> None:
        for _ in range(positions):
            self._advance()

    def _advance(self) -> None:
        if self._batch is None:
            self._start_batch()
        if self._batch is not None:
            self._batch.advance()
        if self._batch is None:
            return
        for place, number in enumerate(self._batch_numbers):
            if number not in self.found and self._batch.ended(place):
                self.found[number] = self._batch.finished[place]
                self._new.append(number)
        if self._batch.done:
            self._batch = None

    def run(self) -> list[int]:
        while not self._new and not self.done:
            self.advance()
        new, self._new = self._new, []
        return new

    def settled(self, source: int) -> Settled:
        if source in self.found:
            return Settled(self.found[source][0].tokens)
        if self._batch is None or source not in self._batch_numbers:
            return Settled(())
        return Settled(self._batch.settled(self._batch_numbers.index(source)))

    def _start_batch(self) -> None:
        """Starts the longest sources that wait: as many as `batch_tokens` holds with their padding."""
        if not self._waiting:
            return
        waiting = {number: (len(row), len(outline.prefix)) for number, (row, outline) in self._waiting.items()}
        order = sorted(waiting, key=lambda number: waiting[number], reverse=True)
        self._batch_numbers = order[: max(1, self._config.batch_tokens // max(1, waiting[order[0]][0]))]
        tasks = [self._waiting.pop(number) for number in self._batch_numbers]
        source, mask = padded([row for row, _ in tasks], self._stepper.device)
        self._batch = _Batch(self._stepper, source, mask, [outline for _, outline in tasks], self._config)


class _Batch:
    """A beam search over a batch that advances one position at a time."""

    def __init__(
        self,
        stepper: AnyStepper,
        source: Tensor,
        source_mask: Tensor | None,
        outlines: Sequence[Outline],
        config: DecodingConfig,
    ) -> None:
        self.config = config
        self.stepper = stepper
        self.finished: list[list[Hypothesis]] = [[] for _ in outlines]
        self._outlines = list(outlines)
        self._ended = [0 for _ in outlines]
        self._live = list(range(len(outlines)))  # the source that each place of the batch decodes; -1 = finished
        self._begin(source, source_mask)

    @property
    def done(self) -> bool:
        """Whether every source is finished."""
        return not self._live

    def ended(self, source: int) -> bool:
        """Whether this source is finished, even if its neighbours are not."""
        return source not in self._live

    def settled(self, source: int) -> tuple[int, ...]:
        """Returns the tokens with which every hypothesis of a source begins that can still win."""
        if source not in self._live:
            return self.finished[source][0].tokens
        place = self._live.index(source)
        alive = self._tokens[place][self._scores[place] > NEVER]
        rows = [*alive.tolist(), *(hypothesis.tokens for hypothesis in self.finished[source])]
        length = next((i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1), None)
        return tuple(rows[0][: min(map(len, rows)) if length is None else length])

    @torch.inference_mode()
    def _begin(self, source: Tensor, source_mask: Tensor | None) -> None:
        prefixes = [outline.prefix for outline in self._outlines]
        shared, longest = min(map(len, prefixes)), max(map(len, prefixes))
        padded = [[*prefix, *[-1] * (longest - len(prefix))] for prefix in prefixes]
        self._prefixes = torch.tensor(padded, device=source.device, dtype=torch.long).view(len(padded), longest)
        begin = torch.full((len(prefixes), 1), BEGIN, device=source.device)
        begun = torch.cat([begin, self._prefixes[:, :shared]], 1)
        self._next, self._beams = self.stepper.begin(source, source_mask, begun)
        self._tokens = begun[:, None, 1:]  # (B, K, T)
        self._scores = self._next.new_zeros(len(prefixes), 1)
        self._outline_state = OutlineState(self._outlines, shared, self.config.min_length, source.device)

    @torch.inference_mode()
    def advance(self) -> None:
        """Decodes one more position of every source that is not finished."""
        log_probabilities = self._next
        self._outline_state.forbid(log_probabilities)
        batch, beams = self._scores.shape
        ends = log_probabilities[:, END].view(batch, beams) + self._scores
        log_probabilities[:, END] = NEVER
        values, tokens = self.stepper.best(log_probabilities, self.config.beam)
        totals = (values.view(batch, beams, -1) + self._scores[:, :, None]).flatten(1)
        scores, chosen = totals.topk(min(self.config.beam, totals.size(1)), dim=1)
        parents = chosen.div(values.size(1), rounding_mode="floor")
        tokens = tokens.view(batch, -1).gather(1, chosen)
        if self._tokens.size(2) < self._prefixes.size(1):
            self._force(scores, parents, tokens, ends)
        self._collect(ends, scores)
        self._retire(scores)
        if self._live:
            self._extend(scores, parents, tokens)

    def _force(self, scores: Tensor, parents: Tensor, tokens: Tensor, ends: Tensor) -> None:
        """Continues with the prefix at no cost, where it is longer than what is decoded."""
        wanted = self._prefixes[:, self._tokens.size(2), None]
        forced = wanted >= 0
        beam = torch.arange(scores.size(1), device=scores.device).expand_as(scores)
        same = beam.clamp(max=self._scores.size(1) - 1)
        unchanged = self._scores.gather(1, same).masked_fill(beam > same, NEVER)
        scores.copy_(torch.where(forced, unchanged, scores))
        parents.copy_(torch.where(forced, same, parents))
        tokens.copy_(torch.where(forced, wanted, tokens))
        ends.masked_fill_(forced, NEVER)

    def _collect(self, ends: Tensor, scores: Tensor) -> None:
        """Finishes the hypotheses whose end is among the best continuations of their source."""
        possible = ends > NEVER
        if not possible.any():
            return
        better = (scores[:, None] > ends[:, :, None]).sum(2) + (ends[:, None] > ends[:, :, None]).sum(2)
        taken = (possible & (better < self.config.beam)).nonzero()
        for (place, beam), score in zip(taken.tolist(), ends[taken[:, 0], taken[:, 1]].tolist(), strict=True):
            source = self._live[place]
            tokens = tuple(self._tokens[place, beam].tolist())
            length = len(tokens) - len(self._outlines[source].prefix) + 1
            self._ended[source] += 1
            best = [*self.finished[source], Hypothesis(tokens, score, score / length**self.config.length_penalty)]
            best.sort(key=lambda hypothesis: -hypothesis.normalised)
            self.finished[source] = best[: self.config.n_best]

    def _retire(self, scores: Tensor) -> None:
        """Marks the sources that are finished, and gives them no live hypotheses."""
        for place, best in enumerate(scores[:, 0].tolist()):
            if self._live[place] >= 0 and self._is_finished(self._live[place], best):
                self._live[place] = -1
                scores[place] = NEVER
        if all(source < 0 for source in self._live):
            self._live = []

    def _is_finished(self, source: int, best: float) -> bool:
        """Whether a source is finished, where `best` is the score of its best live hypothesis."""
        found = self.finished[source]
        if not best > NEVER:  # so that NaN ends, too
            if not found:
                raise ArgumentError(NOT_FINITE)
            return True
        if len(found) < self.config.n_best:
            return False
        if self.config.stop == "beam":
            return self._ended[source] >= self.config.beam
        bound: float = best / self._outlines[source].most_tokens ** self.config.length_penalty
        return bound <= found[-1].normalised

    def _extend(self, scores: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Continues the chosen beams. Finished sources leave the batch once they are many."""
        finished = self._live.count(-1)
        if finished * 8 > len(self._live):
            kept = torch.tensor([place for place, source in enumerate(self._live) if source >= 0], device=scores.device)
            self._live = [source for source in self._live if source >= 0]
            scores, parents, tokens = (part.index_select(0, kept) for part in (scores, parents, tokens))
            self._tokens, self._prefixes = (part.index_select(0, kept) for part in (self._tokens, self._prefixes))
            self._beams.select(kept)
            self._outline_state.select(kept)
        batch, beams, _ = self._tokens.shape
        rows = parents + torch.arange(0, batch * beams, beams, device=parents.device)[:, None]
        self._scores = scores
        self._tokens = torch.cat([self._tokens.flatten(0, 1)[rows], tokens[:, :, None]], 2)
        self._outline_state.follow(parents, tokens)
        self._next = self.stepper.step(tokens.flatten(), rows.flatten(), self._beams)
