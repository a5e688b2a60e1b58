"""Beam search.

The score of a hypothesis is the sum of the model's log-probabilities of its tokens and of
the end; what an outline forbids takes no probability away, so forced decoding gives the
same score. Hypotheses are ranked by

    score / length^length_penalty,  length counting the end but not the forced prefix.

An end is taken where it is among the `beam` best continuations of its source. With
`stop = "exact"` a source is finished when its best live hypothesis, even if it went on to
the greatest length that its outline allows at no cost, could not enter the n best any
more: the length penalty never cuts off a better translation that the beam would find.

Sources that are finished leave the batch. No source is influenced by its neighbours.

Shapes: B sources, K beams of each, R = B * K rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reluformer.errors import ArgumentError
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.outline import NEVER, Outline, Progress
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.stepper import AnyStepper, Stepper, stepper_of
from reluformer.translation.tokenizer import BEGIN, END


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation."""

    tokens: tuple[int, ...]
    """Without begin and end, a forced prefix included."""
    score: float
    """Log-probability of what follows the prefix, the end included."""
    normalised: float
    """The score after the length penalty, by which hypotheses are ranked."""


def beam_search(
    model: ReLUFormer | AnyStepper,
    source: Tensor,
    source_mask: Tensor | None = None,
    *,
    config: DecodingConfig | None = None,
    outlines: Sequence[Outline] | None = None,
) -> list[list[Hypothesis]]:
    """The n best translations of each source (B, S), best first.

    source_mask (B, S) is True at tokens. Without `outlines` each target gets as many
    sentences as its source. Where many searches follow each other, pass one `stepper_of(model)`.
    """
    config = config or DecodingConfig()
    if outlines is None:
        lengths = [source.size(1)] * source.size(0) if source_mask is None else source_mask.sum(1).tolist()
        outlines = [Outline.of(row[:length], config) for row, length in zip(source.tolist(), lengths, strict=True)]
    search = Search(model, source, source_mask, outlines, config)
    while not search.done:
        search.advance()
    return search.finished


class Search:
    """A beam search over a batch, one position at a time; `beam_search` runs it to its end."""

    def __init__(
        self,
        model: ReLUFormer | AnyStepper,
        source: Tensor,
        source_mask: Tensor | None,
        outlines: Sequence[Outline],
        config: DecodingConfig,
    ) -> None:
        if len(outlines) != source.size(0):
            raise ArgumentError(f"{source.size(0)} sources but the outlines of {len(outlines)} targets")
        self.config = config
        self.stepper: AnyStepper = model if isinstance(model, Stepper) else stepper_of(model)
        self.finished: list[list[Hypothesis]] = [[] for _ in outlines]
        self._outlines = list(outlines)
        self._ended = [0 for _ in outlines]
        self._live = list(range(len(outlines)))  # the source that each place of the batch decodes; -1 = finished
        if outlines:
            self._begin(source, source_mask)

    @property
    def done(self) -> bool:
        """Every source is finished."""
        return not self._live

    def ended(self, source: int) -> bool:
        """`source` is finished, whatever its neighbours still do."""
        return source not in self._live

    def settled(self, source: int) -> tuple[int, ...]:
        """The tokens with which every hypothesis of `source` begins that can still win."""
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
        self._progress = Progress(self._outlines, shared, self.config.min_length, source.device)

    @torch.inference_mode()
    def advance(self) -> None:
        """Decode one more position of every source that is not finished."""
        log_probabilities = self._next
        self._progress.forbid(log_probabilities)
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
        """Where the prefix is longer than what is decoded, go on with it at no cost."""
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
        """Finish the hypotheses whose end is among the best continuations of their source."""
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
        """Mark the sources that are finished: without live hypotheses they can do no harm."""
        for place, best in enumerate(scores[:, 0].tolist()):
            if self._live[place] >= 0 and self._is_finished(self._live[place], best):
                self._live[place] = -1
                scores[place] = NEVER
        if all(source < 0 for source in self._live):
            self._live = []

    def _is_finished(self, source: int, best: float) -> bool:
        """`best` is the score of the source's best live hypothesis."""
        found = self.finished[source]
        if not best > NEVER:  # so that NaN ends, too
            if not found:
                raise ArgumentError("the model gives no translation a finite probability; its weights may hold NaN")
            return True
        if len(found) < self.config.n_best:
            return False
        if self.config.stop == "beam":
            return self._ended[source] >= self.config.beam
        bound: float = best / self._outlines[source].most_tokens ** self.config.length_penalty
        return bound <= found[-1].normalised

    def _extend(self, scores: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Let the chosen beams go on, those of finished sources only until enough of them can leave."""
        finished = self._live.count(-1)
        if finished * 8 > len(self._live):
            kept = torch.tensor([place for place, source in enumerate(self._live) if source >= 0], device=scores.device)
            self._live = [source for source in self._live if source >= 0]
            scores, parents, tokens = (part.index_select(0, kept) for part in (scores, parents, tokens))
            self._tokens, self._prefixes = (part.index_select(0, kept) for part in (self._tokens, self._prefixes))
            self._beams.select(kept)
            self._progress.select(kept)
        batch, beams, _ = self._tokens.shape
        rows = parents + torch.arange(0, batch * beams, beams, device=parents.device)[:, None]
        self._scores = scores
        self._tokens = torch.cat([self._tokens.flatten(0, 1)[rows], tokens[:, :, None]], 2)
        self._progress.follow(parents, tokens)
        self._next = self.stepper.step(tokens.flatten(), rows.flatten(), self._beams)
