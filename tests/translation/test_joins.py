"""Random joins: every document once, as full as possible, anew each epoch and the same again after a resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reluformer.errors import ConfigError
from reluformer.training.config import TrainingConfig
from reluformer.translation.corpus import PreparedCorpus, prepare
from reluformer.translation.joins import JoinedPair, RandomJoins, fill, join_texts, random_order
from reluformer.translation.recipe import CorpusSource, DataConfig, Recipe, SegmentConfig, TokenizerConfig
from reluformer.translation.task import TrainingBatches, TranslationTask
from reluformer.translation.tokenizer import END, SEPARATOR


@dataclass
class Units:
    """Units of one or more sentences; every token of unit i is 10 + i, on both sides."""

    sentences: Sequence[Sequence[int]]

    @property
    def source_lengths(self) -> np.ndarray:
        return np.array([sum(lengths) + len(lengths) for lengths in self.sentences])

    @property
    def target_lengths(self) -> np.ndarray:
        return self.source_lengths

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: int) -> JoinedPair:
        tokens = [t for length in self.sentences[index] for t in [10 + index] * length + [SEPARATOR]]
        tokens[-1] = END
        return JoinedPair(np.array(tokens), np.array(tokens))


def captions(count: int = 200) -> Units:
    return Units([[int(length)] for length in np.random.default_rng(0).integers(3, 12, count)])


def pairs(joins: RandomJoins, epoch: int) -> list[list[int]]:
    found = joins.epoch(epoch)
    return [found[number].source.tolist() for number in range(len(found))]


def members(pair: Sequence[int]) -> list[int]:
    """The units of a pair whose units are single sentences, in order."""
    ends = [place for place, token in enumerate(pair) if token in (SEPARATOR, END)]
    return [pair[end - 1] - 10 for end in ends]


@settings(deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60),
    most=st.integers(8, 64),
    seed=st.integers(0, 2**32),
)
def test_joins_hold_every_text_once_and_have_no_room_for_the_next(
    lengths: list[tuple[int, int]], most: int, seed: int
) -> None:
    source, target = np.array(lengths).T
    order = random_order(len(source), seed)
    joins = fill(source, target, order, most)
    assert np.concatenate(joins).tolist() == order.tolist()
    for join, following in zip(joins, [*joins[1:], None], strict=True):
        size = max(source[join].sum(), target[join].sum())
        assert size <= most or len(join) == 1
        if following is not None:
            more = [*join, following[0]]
            assert max(source[more].sum(), target[more].sum()) > most


def test_nothing_to_join() -> None:
    assert fill([], [], [], 8) == []


def test_a_join_has_separators_between_its_units_and_ends_once() -> None:
    (pair,) = pairs(RandomJoins(Units([[2], [1], [3]]), most=20, seed=0), 0)
    assert sorted(members(pair)) == [0, 1, 2]
    assert pair.count(SEPARATOR) == 2 and pair[-1] == END and pair.count(END) == 1


def test_every_epoch_and_every_seed_joins_anew() -> None:
    units = captions()
    epochs = [pairs(RandomJoins(units, 64, seed), epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    for joined in epochs:
        assert sorted(member for pair in joined for member in members(pair)) == list(range(200))
    neighbours = [{(a, b) for pair in joined for a, b in pairwise(members(pair))} for joined in epochs]
    assert all(len(neighbours[0] & other) < 10 for other in neighbours[1:])
    assert pairs(RandomJoins(units, 64, 0), 1) == epochs[1]


def test_lengths_from_the_shortest_to_the_longest_have_equal_shares_of_each_doubling() -> None:
    units = captions(20_000)
    epoch = RandomJoins(units, 256, seed=0, shortest=32).epoch(0)
    lengths = epoch.source_lengths
    assert lengths.max() <= 256
    shares = [np.mean((low < lengths) & (lengths <= 2 * low)) for low in (32, 64, 128)]
    assert all(0.25 < share < 0.42 for share in shares)
    assert np.mean(lengths <= 32) < 0.15
    assert epoch.source_lengths.sum() == units.source_lengths.sum()
    assert RandomJoins(units, 256, seed=0, shortest=32).epoch(1).source_lengths.tolist() != lengths.tolist()


def test_lengths_are_those_of_the_pairs() -> None:
    epoch = RandomJoins(captions(), 64, seed=0, lone=0.2).epoch(3)
    assert epoch.source_lengths.tolist() == [len(epoch[number].source) for number in range(len(epoch))]
    assert epoch.target_lengths.tolist() == [len(epoch[number].target) for number in range(len(epoch))]


def test_a_share_of_the_units_stands_alone_sentence_by_sentence() -> None:
    units = Units([[2, 3]] * 10)
    joined = pairs(RandomJoins(units, 40, seed=0, lone=0.3), 0)
    alone = [pair for pair in joined if SEPARATOR not in pair]
    assert len(alone) == 6 and all(pair[-1] == END for pair in alone)
    lone_units = {pair[0] for pair in alone}
    assert len(lone_units) == 3
    assert {
        pair[0] for pair in pairs(RandomJoins(units, 40, seed=0, lone=0.3), 1) if SEPARATOR not in pair
    } != lone_units


def test_a_step_is_the_same_whatever_was_asked_before() -> None:
    config = TrainingConfig(tokens_per_batch=128, accumulate=2, seed=3)
    joins = RandomJoins(captions(), 64, seed=3)
    straight, resumed = TrainingBatches(joins, config), TrainingBatches(joins, config)
    steps = int(4 * straight.updates_per_epoch)
    everything = [[batch.source for batch in straight.batches(step)] for step in range(1, steps + 1)]
    for step in (steps, 1, steps // 2):
        for batch, known in zip(resumed.batches(step), everything[step - 1], strict=True):
            assert torch.equal(batch.source, known)


def test_batches_of_an_epoch_hold_every_caption_once() -> None:
    joins = RandomJoins(captions(), 64, seed=0)
    data = TrainingBatches(joins, TrainingConfig(tokens_per_batch=128))
    seen: list[int] = []
    step = 0
    for _ in range(3):
        epoch: list[int] = []
        while len(epoch) < 200:
            step += 1
            (batch,) = data.batches(step)
            epoch += [m for row in batch.source.tolist() for m in members(row)]
        assert sorted(epoch) == list(range(200))
        assert epoch != seen
        seen = epoch


def test_processes_share_the_joins_of_one() -> None:
    joins = RandomJoins(captions(), 64, seed=0)
    alone = TrainingBatches(joins, TrainingConfig(tokens_per_batch=256))
    shares = [TrainingBatches(joins, TrainingConfig(tokens_per_batch=128), rank, world=2) for rank in (0, 1)]
    for step in (1, 9, 40):
        rows = [
            sorted(m for b in share.batches(step) for row in b.source.tolist() for m in members(row))
            for share in shares
        ]
        (whole,) = alone.batches(step)
        assert sorted(rows[0] + rows[1]) == sorted(m for row in whole.source.tolist() for m in members(row))


# ------------------------------------------------------------------ corpora


def data(**segments: Any) -> DataConfig:
    return DataConfig(
        train=CorpusSource(embedded={"documents": 60, "sentences": (2, 3)}),
        valid=CorpusSource(embedded={"documents": 20, "sentences": (2, 3)}),
        tokenizer=TokenizerConfig(vocab_size=400),
        segments=SegmentConfig(segment_tokens=128, join_documents="random", **segments),
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> PreparedCorpus:
    directory = tmp_path_factory.mktemp("joined")
    prepare(data(), directory)
    return PreparedCorpus(directory)


def test_the_train_split_is_stored_unjoined_and_the_valid_split_joined(corpus: PreparedCorpus) -> None:
    train, valid = (corpus.summary.splits[split] for split in ("train", "valid"))
    assert train.segments == train.documents == 60
    assert valid.segments < valid.documents / 2


def test_texts_of_the_valid_split_are_its_joins(corpus: PreparedCorpus) -> None:
    store, documents = corpus.store("valid"), list(corpus.documents("valid"))
    assert [segment.sentences for segment in map(store.__getitem__, range(len(store)))] == [
        len(d.src) for d in documents
    ]
    for number, document in enumerate(documents):
        sentences = corpus.tokenizer.encode_batch(list(document.src))
        tokens = [token for sentence in sentences for token in [*sentence, SEPARATOR]]
        assert store[number].source.tolist() == [*tokens[:-1], END]
        assert document.tgt is not None and len(document.tgt) == len(document.src)


def test_another_join_seed_joins_the_valid_split_otherwise(corpus: PreparedCorpus, tmp_path: Path) -> None:
    prepare(data(join_seed=1), tmp_path)
    other = PreparedCorpus(tmp_path)
    texts = [[document.src for document in found.documents("valid")] for found in (corpus, other)]
    assert texts[0] != texts[1]
    assert sorted(s for src in texts[0] for s in src) == sorted(s for src in texts[1] for s in src)
    assert other.checksum("train") == corpus.checksum("train")


def test_joins_of_text_keep_whole_documents(corpus: PreparedCorpus) -> None:
    documents = list(PreparedCorpus(corpus.directory).documents("train"))[:20]
    joined = list(join_texts(documents, corpus.tokenizer, most=128, seed=5))
    sources = [document.src for document in documents]
    for document in joined:
        rest = document.src
        while rest:
            first = next(src for src in sources if rest[: len(src)] == src)
            rest = rest[len(first) :]


def test_training_joins_by_the_recipe(corpus: PreparedCorpus) -> None:
    recipe = Recipe(
        data=data(lone_sentences=0.5, join_shortest=32), training=TrainingConfig(tokens_per_batch=256, seed=7)
    )
    found = TranslationTask(recipe, corpus.directory).training_data(0, 1)
    expected = TrainingBatches(RandomJoins(corpus.store("train"), 128, 7, 0.5, 32), recipe.training)
    assert torch.equal(found.batches(5)[0].source, expected.batches(5)[0].source)


def test_a_recipe_without_random_joins_keeps_its_identity() -> None:
    plain = DataConfig(train=CorpusSource(embedded={}))
    assert not {"join_seed", "join_shortest"} & plain.identity()["segments"].keys()
    assert data(join_seed=1).identity()["segments"]["join_seed"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"join_documents": True, "join_seed": 1}, "join_documents: random"),
        ({"join_documents": True, "join_shortest": 32}, "join_documents: random"),
        ({"join_documents": "random", "segment_tokens": 64, "join_shortest": 65}, "segment_tokens"),
        ({"join_documents": "random", "join_across_groups": True}, "join_documents: true"),
        ({"join_documents": "random", "segment_tokens": "sentence"}, "longer than a sentence"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SegmentConfig(**options)
