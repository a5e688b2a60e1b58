"""Training of translation models: the task that the trainer runs, and `train`.

    result = rf.train("configs/multi30k.yaml")

Shapes: B batch, S source tokens, T target tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.training.config import TrainingConfig
from reluformer.training.corpus_task import CorpusTask, TrainingOptions, fit_recipe
from reluformer.training.fit import TrainingResult
from reluformer.training.objective import LossSums, Objective
from reluformer.training.task import Evaluate
from reluformer.translation.batches import Batch, BatchPlan, SourceWeights, collate, sorted_batches
from reluformer.translation.corpus import PreparedCorpus, prepare
from reluformer.translation.joins import RandomJoins, Segments
from reluformer.translation.recipe import Recipe
from reluformer.translation.scoring import score
from reluformer.translation.tokenizer import BEGIN, PAD
from reluformer.translation.translator import Translator


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    directory: str | Path | None = None,
    **options: Unpack[TrainingOptions],
) -> TrainingResult:
    """Trains the translation model of a recipe, or resumes the training found in `directory`.

    Arguments, result and errors are those of `reluformer.train`.
    """
    return fit_recipe(recipe, Recipe, TranslationTask, directory, **options)


class TranslationTask(CorpusTask):
    """An encoder-decoder, a parallel corpus, and BLEU at validation; implements `training.task.Task`."""

    recipe: Recipe

    @cached_property
    def corpus(self) -> PreparedCorpus:
        """The prepared corpus."""
        return PreparedCorpus(self.data)

    def prepare(self, report: Callable[[str], None]) -> None:
        """Prepares the corpus, unless it is prepared already."""
        report(f"preparing the corpus in {self.data}, unless it is there already")
        summary = prepare(self.recipe.data, self.data)
        if summary.missing is not None:
            report(f"{summary.missing} is not there any more; using the corpus as it was prepared in {self.data}")
        if found := summary.report():
            report(found)

    def fingerprint(self) -> dict[str, Any]:
        """Returns the tokenizer, and the numbers of tokens and the checksums of what training reads."""
        known: dict[str, Any] = {"tokenizer": self.corpus.tokenizer.fingerprint[:12]}
        for split, figures in self.corpus.summary.splits.items():
            if split != "test":
                known[f"{split}_tokens"] = [figures.source_tokens, figures.target_tokens]
                known[f"{split}_checksum"] = self.corpus.checksum(split)[:12]
        return known

    def training_data(self, rank: int, world: int) -> TrainingBatches:
        """Returns the batches of all updates."""
        store, how, training = self.corpus.store("train"), self.recipe.data.segments, self.recipe.training
        sources = self.recipe.data.splits["train"].sources
        counts = self.corpus.summary.splits["train"].segments_by_source
        weights = [(count, source.weight) for count, source in zip(counts, sources, strict=True)]
        if how.join_documents != "random":
            return TrainingBatches(store, training, rank, world, weights)
        joins = RandomJoins(store, int(how.segment_tokens), training.seed, how.lone_sentences, how.join_shortest)
        return TrainingBatches(joins, training, rank, world)

    def validation_data(self, rank: int, world: int) -> ValidationBatches | None:
        """Returns the batches of the validation split, if there is one."""
        if self.recipe.data.valid is None:
            return None
        return ValidationBatches(self.corpus.store("valid"), self.recipe.training.tokens_per_batch, rank, world)

    def build_model(self) -> ReLUFormer:
        """Returns a new model for the vocabulary of the corpus."""
        return ReLUFormer(self.recipe.model_config_for(self.corpus.tokenizer.vocab_size))

    def build_objective(self, model: nn.Module) -> TranslationObjective:
        """Returns the loss of the recipe."""
        config = self.recipe.training
        return TranslationObjective(model, config.label_smoothing, config.regularizer)

    @property
    def evaluate(self) -> Evaluate | None:
        """BLEU if the recipe asks for it, and the scores that the caller wants."""
        functions: list[Evaluate] = [self._bleu] if self.recipe.training.validate_bleu else []
        if self._evaluate is not None:
            functions.append(self._evaluate)
        if not functions:
            return None
        return lambda model: {name: value for function in functions for name, value in function(model).items()}

    def _bleu(self, model: ReLUFormer) -> dict[str, float]:
        """Returns the BLEU of the first validation documents, with greedy search."""
        documents = list(islice(self.corpus.documents("valid"), self.recipe.training.validate_bleu))
        decoding = self.recipe.decoding_as_trained.replace(beam=1, n_best=1)
        translator = Translator(model, self.corpus.tokenizer, decoding)
        hypotheses = translator.translate_documents([document.src for document in documents])
        scores = score(hypotheses, [document.tgt or () for document in documents], length_borders=())
        return {"bleu": scores.bleu.value}


class TranslationObjective(Objective):
    """The loss of an encoder-decoder."""

    model: ReLUFormer

    def forward(
        self,
        source: Tensor,
        target_in: Tensor,
        target_out: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> LossSums:
        """Returns the loss of a batch as sums.

        Args:
            source: (B, S) token ids.
            target_in: (B, T) token ids that the decoder reads.
            target_out: (B, T) token ids that it predicts.
            source_mask: (B, S), True at tokens; None = no padding.
            target_mask: (B, T), True at tokens; None = no padding.
        """
        encoded = self.model.encode(source, source_mask, stats=self.regularized)
        states, reads = self.model.decode(target_in, encoded, stats=self.regularized)
        masks = {"encoder": source_mask, "decoder": target_mask}
        weight = self.model.output_embedding.weight
        return self.sums(states, weight, target_out, target_mask, {**encoded.reads, **reads}, masks)


class TrainingBatches:
    """The training batches of process `rank` of `world`, a pure function of (seed, step, rank).

    The plan is made for what all processes hold together, and its rows are dealt out:
    `world` processes with batches of n tokens see what one process sees with n * world.

    Random joins have other lengths, and so another number of batches, in each epoch. A step is
    then found by planning the epochs before it, which takes a fraction of a second each.
    """

    def __init__(
        self,
        segments: Segments | RandomJoins,
        config: TrainingConfig,
        rank: int = 0,
        world: int = 1,
        weights: SourceWeights = (),
    ) -> None:
        self._segments = segments
        self._config = config
        self._rank, self._world = rank, world
        self._weights = weights
        self._ends: list[int] = []
        self._epoch: tuple[int, Segments, BatchPlan] | None = None
        first = self._planned(0)
        self._steps_per_epoch, self._padding = first.steps_per_epoch, first.padding

    @property
    def updates_per_epoch(self) -> float:
        """Updates in which every segment occurs once, or as often as its weight says; of random joins, at first."""
        return self._steps_per_epoch / self._config.accumulate

    @property
    def padding(self) -> float:
        """Share of padding in the batches of the first epoch."""
        return self._padding

    def batches(self, step: int) -> list[Batch]:
        """Returns the batches of update number `step`, counted from 1."""
        accumulate = self._config.accumulate
        return [self._batch((step - 1) * accumulate + i) for i in range(accumulate)]

    def _batch(self, step: int) -> Batch:
        epoch, position = self._place(step)
        plan = self._planned(epoch)
        numbers = plan.batch(epoch * plan.steps_per_epoch + position, self._rank, self._world)
        assert self._epoch is not None
        segments = self._epoch[1]
        return collate([segments[number] for number in numbers], PAD, BEGIN) if numbers else empty_batch()

    def _place(self, step: int) -> tuple[int, int]:
        """Returns the epoch of a batch, and its place in it."""
        if not isinstance(self._segments, RandomJoins):
            return divmod(step, self._steps_per_epoch)
        while not self._ends or self._ends[-1] <= step:
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + self._planned(len(self._ends)).steps_per_epoch)
        epoch = bisect_right(self._ends, step)
        return epoch, step - (self._ends[epoch - 1] if epoch else 0)

    def _planned(self, epoch: int) -> BatchPlan:
        """Returns the plan of an epoch; the last one is kept, and segments that do not change have only one."""
        joins = isinstance(self._segments, RandomJoins)
        if self._epoch is None or (joins and self._epoch[0] != epoch):
            segments = self._segments.epoch(epoch) if isinstance(self._segments, RandomJoins) else self._segments
            tokens = self._config.tokens_per_batch * self._world
            lengths = (segments.source_lengths, segments.target_lengths)
            plan = BatchPlan(*lengths, tokens, self._config.seed, self._weights)
            self._epoch = (epoch, segments, plan)
        return self._epoch[2]


class ValidationBatches:
    """Every segment once, in batches of like length, dealt out to the processes."""

    def __init__(self, segments: Segments, tokens_per_batch: int, rank: int = 0, world: int = 1) -> None:
        self._segments = segments
        longest = max(int(max(segments.source_lengths)), int(max(segments.target_lengths)))
        batches = sorted_batches(segments.source_lengths, segments.target_lengths, max(tokens_per_batch, 2 * longest))
        every = list(batches)
        self._mine = every[rank::world]
        self._empty = -(-len(every) // world) - len(self._mine)

    def __iter__(self) -> Iterator[Batch]:
        """Yields equally many batches on each process, some perhaps empty: all gather sharded weights at once."""
        for numbers in self._mine:
            yield collate([self._segments[number] for number in numbers], PAD, BEGIN)
        for _ in range(self._empty):
            yield empty_batch()


def empty_batch() -> Batch:
    """Returns a batch without rows: the share of a process when there are fewer rows than processes."""
    nothing = torch.zeros(0, 1, dtype=torch.long)
    return Batch(nothing, None, nothing, nothing, None, 0)
