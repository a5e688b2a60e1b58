"""Beam search, and the outline that constrains a target.

The score of a hypothesis is the sum of the model's log-probabilities of its tokens and of
the end. What an outline forbids takes no probability away, so forced decoding gives the
same score. Hypotheses are ranked by

    score / length^length_penalty,  length counting the end but not the forced prefix.

A hypothesis ends where its end is among the `beam` best continuations of its source. With
`stop = "exact"` a source is finished when no live hypothesis could enter the n best any more,
even if it reached the greatest length that its outline allows at no cost. So the length
penalty never cuts off a better translation that the beam would find.

Finished sources leave the batch. No source is influenced by its neighbours.

Shapes: B sources, K beams of each, R = B * K rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reluformer.errors import ArgumentError
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.native_stepper import stepper_of
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.stepper import AnyStepper, Stepper
from reluformer.translation.tokenizer import BEGIN, END, PAD, SEPARATOR

NEVER = float("-inf")


@dataclass(frozen=True)
class Outline:
    """The constraints on one target: its sentences, their lengths, and its first tokens.

    An aligned target has exactly len(limits) sentences, none of them empty. A separator is
    forced where a sentence has reached its limit, and forbidden in the last sentence. The
    end is forbidden before the last sentence. In a target that is not aligned, the separator
    is a token like any other.

    Args:
        limits: The most tokens of each sentence; of a target that is not aligned, limits[0] is that of the whole.
        aligned: Whether the target has one sentence for each limit.
        prefix: The tokens that the target must begin with.

    Raises:
        ArgumentError: A limit is not positive, or the prefix holds too many separators.
    """

    limits: tuple[int, ...]
    aligned: bool = False
    prefix: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.limits or min(self.limits) < 1 or (len(self.limits) > 1 and not self.aligned):
            raise ArgumentError(f"an outline needs one positive limit for each sentence, got {self.limits}")
        if self.aligned and self.prefix.count(SEPARATOR) >= len(self.limits):
            raise ArgumentError(
                f"the prefix holds {self.prefix.count(SEPARATOR)} separators, but the outline has only "
                f"{len(self.limits)} sentences"
            )

    @classmethod
    def of(
        cls, source: Sequence[int], config: DecodingConfig, prefix: Sequence[int] = (), aligned: bool = True
    ) -> Outline:
        """Returns the outline of the translation of `source` (with its end): a sentence for each of its sentences."""
        lengths = [0]
        for token in source:
            if token == SEPARATOR and aligned:
                lengths.append(0)
            elif token != END:
                lengths[-1] += 1
        limits = (int(config.length_ratio * length) + config.length_offset for length in lengths)
        return cls(tuple(limits), aligned, tuple(prefix))

    @property
    def most_tokens(self) -> int:
        """The greatest length after the prefix, with separators and end."""
        first = self.prefix.count(SEPARATOR) if self.aligned else 0
        return sum(self.limits[first:]) + len(self.limits) - first


class OutlineState:
    """The place of each beam in the outline of its source, which decides what is forbidden next; (B, K) each.

    Args:
        outlines: The outline of each source.
        decoded: The number of prefix tokens that are decoded already.
        min_length: The least number of tokens after the prefix.
        device: The device of the tokens.
    """

    def __init__(self, outlines: Sequence[Outline], decoded: int, min_length: int, device: torch.device) -> None:
        sentences = max(len(outline.limits) for outline in outlines)
        limits = [[*outline.limits, *[0] * (sentences - len(outline.limits))] for outline in outlines]
        self._limits = torch.tensor(limits, device=device)
        self._last = torch.tensor([[len(outline.limits) - 1] for outline in outlines], device=device)
        self._aligned = torch.tensor([[outline.aligned] for outline in outlines], device=device)
        self._prefix = torch.tensor([[len(outline.prefix)] for outline in outlines], device=device)
        self._min_length = min_length
        begun = torch.tensor([outline.prefix[:decoded] for outline in outlines], dtype=torch.long, device=device)
        self._sentence = torch.zeros_like(self._last)
        self._within = torch.zeros_like(self._last)
        self._decoded = 0
        for tokens in begun.view(len(outlines), decoded).unbind(1):
            self.follow(torch.zeros_like(self._last), tokens[:, None])

    def follow(self, parents: Tensor, tokens: Tensor) -> None:
        """Notes that the beams `parents` (B, K) were continued with `tokens` (B, K)."""
        self._decoded += 1
        ends = (tokens == SEPARATOR) & self._aligned
        counts = ends | ~self._aligned & (self._decoded <= self._prefix)
        # beams without a finite score may do what is forbidden; they must only not leave the table
        self._sentence = torch.minimum(self._sentence.gather(1, parents) + ends, self._last)
        self._within = (self._within.gather(1, parents) + 1).masked_fill_(counts, 0)

    def select(self, sources: Tensor) -> None:
        """Keeps these of the B sources."""
        for name in ("_limits", "_last", "_aligned", "_prefix", "_sentence", "_within"):
            setattr(self, name, getattr(self, name).index_select(0, sources))

    def forbid(self, log_probabilities: Tensor) -> None:
        """Writes -inf into log_probabilities (R, V) where a token is forbidden."""
        log_probabilities[:, PAD] = NEVER
        log_probabilities[:, BEGIN] = NEVER
        last, empty = self._sentence == self._last, self._within == 0
        full = self._within >= self._limits.gather(1, self._sentence)
        early = self._decoded - self._prefix < self._min_length
        no_separator = self._aligned & (last | empty)
        no_end = ~last | self._aligned & empty | early & ~full
        for token, forbidden in ((SEPARATOR, no_separator), (END, no_end)):
            log_probabilities[:, token].masked_fill_(forbidden.flatten(), NEVER)
        if full.any():
            rows = full.flatten().nonzero().squeeze(1)
            closing = torch.where(last.flatten()[rows], END, SEPARATOR)
            kept = log_probabilities[rows, closing]
            log_probabilities[rows] = NEVER
            log_probabilities[rows, closing] = kept


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation."""

    tokens: tuple[int, ...]
    """The tokens without begin and end, with the forced prefix."""
    score: float
    """The log-probability of what follows the prefix, with the end."""
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
    """Translates sources with beam search.

    Args:
        model: The model. For many searches in turn, pass one `stepper_of(model)` instead.
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
    if outlines is None:
        lengths = [source.size(1)] * source.size(0) if source_mask is None else source_mask.sum(1).tolist()
        outlines = [Outline.of(row[:length], config) for row, length in zip(source.tolist(), lengths, strict=True)]
    search = Search(model, source, source_mask, outlines, config)
    while not search.done:
        search.advance()
    return search.finished


class Search:
    """A beam search over a batch that advances one position at a time; `beam_search` runs it to its end."""

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
                raise ArgumentError("the model gives no translation a finite probability; its weights may hold NaN")
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
