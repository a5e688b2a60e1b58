"""The mask function says what transformers' own says, and in which parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs the extra [hf]")

from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
    sliding_window_causal_mask_function,
)

from reluformer.integrations.transformers.attention_interface import MaskParts, mask_function, parts_of
from reluformer.kernels import Visibility

PATTERNS = {
    "causal": causal_mask_function,
    "both_ways": bidirectional_mask_function,
    "window": sliding_window_causal_mask_function(3),
}
LENGTHS = {"square": (6, 6, 0), "decoding": (1, 6, 5), "chunk": (3, 6, 3), "room_left": (3, 8, 2)}


def hidden_tokens(length: int, where: str | None) -> Tensor | None:
    if where is None:
        return None
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, : 2 if where == "left" else 0] = False
    mask[1, length - (2 if where == "right" else 0) :] = False
    return mask


@pytest.mark.parametrize("padding", [None, "left", "right", "none_hidden"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_slots_are_visible(pattern: str, lengths: str, padding: str | None) -> None:
    queries, slots, offset = LENGTHS[lengths]
    options: dict[str, Any] = dict(
        batch_size=2, q_length=queries, kv_length=slots, q_offset=offset, mask_function=PATTERNS[pattern],
        attention_mask=hidden_tokens(offset + queries, padding),
    )  # fmt: skip
    expected = sdpa_mask(**options, allow_is_causal_skip=False).expand(2, 1, queries, slots)
    made = mask_function(**options)
    if made is None:  # the causal order alone
        assert pattern != "both_ways"
        parts = MaskParts(causal=True)
    else:
        assert torch.equal(made, expected)
        parts = parts_of(made, 2, queries, slots)
    visible = Visibility(queries, slots, torch.device("cpu"), *parts).dense()
    everything = torch.ones(2, 1, queries, slots, dtype=torch.bool)
    assert torch.equal(everything if visible is None else visible & everything, expected)
    if pattern == "causal" and lengths != "room_left":
        assert parts.mask is None
    if pattern == "both_ways":
        assert parts.mask is None and not parts.causal


def test_a_mask_is_made_where_none_may_be_left_out() -> None:
    made = mask_function(batch_size=2, q_length=4, kv_length=4, allow_is_causal_skip=False)
    assert made is not None
    assert torch.equal(made[1, 0], torch.ones(4, 4, dtype=torch.bool).tril())
    assert parts_of(made, 2, 4, 4) == MaskParts(causal=True)


def test_a_changed_mask_loses_its_note() -> None:
    keys = hidden_tokens(6, "left")
    made = mask_function(batch_size=2, q_length=6, kv_length=6, attention_mask=keys)
    assert made is not None
    parts = parts_of(made, 2, 6, 6)
    assert parts.causal and parts.key_mask is not None and torch.equal(parts.key_mask, keys)
    cut = made[:, :, :, :5]
    assert parts_of(cut, 2, 6, 5).mask is cut
    assert parts_of(made.clone(), 2, 6, 6).mask is not None
    made[0, 0, 5, 0] = False
    assert parts_of(made, 2, 6, 6).mask is made


def test_a_mask_that_differs_by_head_is_kept() -> None:
    mask = torch.ones(2, 3, 1, 5, dtype=torch.bool)
    assert parts_of(mask, 2, 1, 5).mask is mask


def test_one_mask_for_all_rows() -> None:
    mask = torch.tensor([True, False, True]).view(1, 1, 1, 3)
    keys = parts_of(mask, 2, 4, 3).key_mask
    assert keys is not None and torch.equal(keys, mask.view(1, 3).expand(2, 3))
    assert parts_of(mask, 2, 4, 5).mask is mask  # does not fit: `read` says so
