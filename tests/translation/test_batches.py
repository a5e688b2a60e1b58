"""Batches: a pure function of seed and step, every segment once, little padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reluformer.errors import ArgumentError
from reluformer.translation.batches import Batch, BatchPlan, collate, padded_share, sorted_batches

PAD, BEGIN, END = 0, 1, 2


def lengths(count: int, most: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    source = draw.integers(2, most, count)
    return source, np.clip(source + draw.integers(-3, 6, count), 1, most)


def epoch(plan: BatchPlan, number: int) -> list[list[int]]:
    steps = plan.steps_per_epoch
    return [plan.batch(step) for step in range(number * steps, (number + 1) * steps)]


@settings(deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=80),
    tokens=st.integers(96, 400),
    seed=st.integers(0, 2**32),
)
def test_every_segment_once_an_epoch_and_no_batch_over_the_limit(
    pairs: list[tuple[int, int]], tokens: int, seed: int
) -> None:
    source, target = np.array(pairs).T
    plan = BatchPlan(source, target, tokens, seed)
    for number in (0, 3):
        batches = epoch(plan, number)
        assert sorted(index for batch in batches for index in batch) == list(range(len(pairs)))
        assert all(len(b) * max(source[b].max(), target[b].max()) <= tokens for b in batches)


@settings(deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=2, max_size=80),
    weights=st.tuples(st.floats(0.01, 4), st.floats(0.01, 4)),
    seed=st.integers(0, 2**32),
)
def test_a_source_is_shown_as_often_as_its_weight_says(
    pairs: list[tuple[int, int]], weights: tuple[float, float], seed: int
) -> None:
    source, target = np.array(pairs).T
    counts = (len(pairs) // 2, len(pairs) - len(pairs) // 2)
    plan = BatchPlan(source, target, 100, seed, list(zip(counts, weights, strict=True)))
    for number in (0, 3):
        batches = epoch(plan, number)
        shown = np.bincount([index for batch in batches for index in batch], minlength=len(pairs))
        assert all(len(b) * max(source[b].max(), target[b].max()) <= 100 for b in batches)
        for part, weight in zip((shown[: counts[0]], shown[counts[0] :]), weights, strict=True):
            assert part.sum() == max(1, round(len(part) * weight))
            assert part.max() - part.min() <= 2, "no segment is preferred within an epoch"


def test_weights_average_out_over_epochs_and_reach_every_segment() -> None:
    source, target = lengths(300)
    plan = BatchPlan(source, target, 300, seed=2, weights=[(100, 2.0), (200, 0.25)])
    shown = np.stack(
        [np.bincount([i for batch in epoch(plan, number) for i in batch], minlength=300) for number in range(80)]
    )
    assert (shown[:, :100] == 2).all()
    assert (shown[:, 100:].sum(axis=1) == 50).all()
    assert (shown[:, 100:].sum(axis=0) > 0).all()
    assert not (shown[0] == shown[1]).all(), "another quarter in each epoch"


def test_weights_of_one_change_nothing() -> None:
    source, target = lengths(300)
    plain, weighted = (BatchPlan(source, target, 300, 1, w) for w in ((), [(100, 1.0), (200, 1.0)]))
    assert epoch(plain, 1) == epoch(weighted, 1)


def test_any_step_of_a_weighted_plan_needs_no_other() -> None:
    source, target = lengths(300)
    weights = [(100, 0.3), (200, 1.7)]
    straight, jumping = (BatchPlan(source, target, 300, 5, weights) for _ in range(2))
    steps = [2 * straight.steps_per_epoch + 3, 7, straight.steps_per_epoch, 1]
    everything = [straight.batch(step) for step in range(3 * straight.steps_per_epoch)]
    assert [jumping.batch(step) for step in steps] == [everything[step] for step in steps]


@pytest.mark.parametrize("weights", [[(3, 2.0)], [(4, 0.0)]])
def test_weights_that_do_not_fit_are_refused(weights: list[tuple[int, float]]) -> None:
    with pytest.raises(ArgumentError, match="do not fit 4 segments"):
        BatchPlan([3, 5, 3, 5], [3, 5, 3, 5], 10, 0, weights)


def test_any_step_needs_no_other() -> None:
    source, target = lengths(500)
    straight, jumping = BatchPlan(source, target, 300, seed=5), BatchPlan(source, target, 300, seed=5)
    steps = [0, 1, 2 * straight.steps_per_epoch + 3, 7, straight.steps_per_epoch, 1]
    everything = [straight.batch(step) for step in range(3 * straight.steps_per_epoch)]
    assert [jumping.batch(step) for step in steps] == [everything[step] for step in steps]


def test_epochs_and_seeds_differ_in_order_and_in_company() -> None:
    source, target = lengths(2000)
    plan, other = BatchPlan(source, target, 600, seed=1), BatchPlan(source, target, 600, seed=2)
    batches = [{tuple(sorted(batch)) for batch in epoch(plan, number)} for number in (0, 1)]
    assert len(batches[0] & batches[1]) < len(batches[0]) / 4
    assert epoch(plan, 0) != epoch(other, 0)
    sizes = [len(batch) for batch in epoch(plan, 0)]
    assert sizes != sorted(sizes)
    assert sizes != sorted(sizes, reverse=True)


def test_the_order_is_the_same_on_every_machine_and_version() -> None:
    plan = BatchPlan([3, 9, 4, 8, 5, 7, 6, 3], [4, 8, 4, 9, 6, 7, 5, 3], tokens_per_batch=20, seed=11)
    first, second = [[5, 3], [1], [4, 6], [7, 0, 2]], [[4, 6], [1], [7, 0, 2], [5, 3]]
    assert [plan.batch(step) for step in range(8)] == first + second


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_the_shares_of_all_processes_are_the_batch(world: int) -> None:
    source, target = lengths(300)
    plan = BatchPlan(source, target, 500, seed=0)
    for step in range(plan.steps_per_epoch):
        whole = plan.batch(step)
        shares = [plan.batch(step, rank, world) for rank in range(world)]
        assert sorted(index for share in shares for index in share) == sorted(whole)
        assert sum(bool(share) for share in shares) == min(world, len(whole))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_little_of_a_batch_is_padding() -> None:
    source, target = lengths(20_000)
    plan = BatchPlan(source, target, 2048, seed=0)
    assert plan.padding < 0.03
    shuffled = np.array_split(np.random.default_rng(0).permutation(20_000), plan.steps_per_epoch)
    assert padded_share(shuffled, source, target) > 0.3
    kept = [np.array(batch) for batch in sorted_batches(source, target, 2048)]
    assert padded_share(kept, source, target) < 0.03


def test_the_padding_is_what_collating_gives() -> None:
    source, target = lengths(200)
    plan = BatchPlan(source, target, 400, seed=3)
    items = [pair([5] * int(s), [6] * int(t)) for s, t in zip(source, target, strict=True)]
    batches = [collate([items[i] for i in batch], PAD, BEGIN) for batch in epoch(plan, 0)]
    cells = sum(batch.source.numel() + batch.target_out.numel() for batch in batches)
    assert plan.padding == pytest.approx(1 - (source.sum() + target.sum()) / cells)


def test_sorted_batches_hold_every_segment_once() -> None:
    source, target = lengths(300)
    batches = list(sorted_batches(source, target, 400))
    assert sorted(index for batch in batches for index in batch) == list(range(300))
    assert all(len(b) * max(source[b].max(), target[b].max()) <= 400 for b in batches)
    assert batches == list(sorted_batches(source, target, 400))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], 10, 0), "expected a source and a target length"),
        (([1, 2], [1], 10, 0), "expected a source and a target length"),
        (([0], [1], 10, 0), "at least one token"),
        (([5], [100], 64, 0), "tokens_per_batch=64 has no room .* use at least 100"),
    ],
)
def test_plans_that_cannot_be(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        BatchPlan(*arguments)


@pytest.mark.parametrize(("step", "rank", "world"), [(-1, 0, 1), (0, 1, 1), (0, -1, 2), (0, 0, 0)])
def test_steps_that_cannot_be(step: int, rank: int, world: int) -> None:
    with pytest.raises(ArgumentError, match="no batch for"):
        BatchPlan([1], [1], 8, 0).batch(step, rank, world)


@dataclass(frozen=True)
class Tokens:
    source: np.ndarray
    target: np.ndarray


def pair(source: list[int], target: list[int]) -> Tokens:
    return Tokens(np.array(source, dtype=np.uint16), np.array(target, dtype=np.uint16))


def test_a_collated_batch_is_padded_on_the_right() -> None:
    batch = collate([pair([5, 6, END], [7, END]), pair([8, END], [9, 9, 9, END])], PAD, BEGIN)
    assert batch.source.tolist() == [[5, 6, END], [8, END, PAD]]
    assert batch.target_out.tolist() == [[7, END, PAD, PAD], [9, 9, 9, END]]
    assert batch.target_in.tolist() == [[BEGIN, 7, PAD, PAD], [BEGIN, 9, 9, 9]]
    assert batch.source_mask is not None
    assert batch.source_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.target_mask is not None
    assert batch.target_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.target_tokens == 6
    assert {batch.source.dtype, batch.target_in.dtype, batch.target_out.dtype} == {torch.int64}
    assert batch.source_mask.dtype == torch.bool


def test_nothing_padded_needs_no_mask() -> None:
    batch = collate([pair([5, END], [7, 7, END]), pair([6, END], [8, 8, END])], PAD, BEGIN)
    assert batch.source_mask is None
    assert batch.target_mask is None
    assert batch.target_in.tolist() == [[BEGIN, 7, 7], [BEGIN, 8, 8]]


def test_another_padding_token_leaves_tokens_of_that_id_visible() -> None:
    batch = collate([pair([0, 0, END], [3]), pair([4], [3])], pad_id=0, begin_id=BEGIN)
    assert batch.source_mask is not None
    assert batch.source_mask.tolist() == [[True, True, True], [True, False, False]]


def test_a_batch_moves_to_a_device() -> None:
    moved = collate([pair([5, END], [END]), pair([END], [END])], PAD, BEGIN).to("meta")
    assert isinstance(moved, Batch)
    assert moved.source_mask is not None
    assert {moved.source.device.type, moved.source_mask.device.type, moved.target_in.device.type} == {"meta"}
    assert moved.target_mask is None


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one segment"):
        collate([], PAD, BEGIN)
