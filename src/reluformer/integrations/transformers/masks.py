"""Which slots a query of a transformers model sees, handed on so that fast reads can use it.

transformers asks a *mask function* once for each forward pass and hands what it returns to
every layer. Ours returns the usual boolean mask (B, 1, Tq, Tk), True = visible, and keeps
beside it in which parts it falls apart: causal order and a key mask. A model that cuts or
copies the mask loses only the note, so the read stays exact and is merely slower.

    None          the causal order alone (as for `sdpa`), or a lone query that sees everything
    (B,1,Tq,Tk)   all else; with a `Parts` where it is causal order and padding
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    prepare_padding_mask,
    sdpa_mask,
)

_NOTE = "_reluformer_parts"


class Parts(NamedTuple):
    """The arguments of `memory.read` that say the same as a dense mask."""

    causal: bool = False
    key_mask: Tensor | None = None  # (B, Tk)
    mask: Tensor | None = None  # broadcasts to (B, H, Tq, Tk)


def mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Tensor | None:
    """What `AttentionMaskInterface` calls; attention_mask (B, tokens so far) is True at tokens."""
    shape = (batch_size, 1, q_length, kv_length)
    if mask_function is bidirectional_mask_function:
        return _bidirectional(shape, _key_mask(attention_mask, kv_length, kv_offset), device)
    square = q_length in (1, kv_length)
    ends_together = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    if mask_function is not causal_mask_function or not ends_together:
        made: Tensor | None = sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=allow_is_causal_skip and square and options.get("local_size") is not None,
            device=device,
            **{**options, "allow_is_bidirectional_skip": False},
        )
        return made
    keys = _key_mask(attention_mask, kv_length, kv_offset)
    if keys is None and allow_is_causal_skip and square:
        return None
    past = torch.ones(q_length, kv_length, dtype=torch.bool, device=device).tril_(kv_length - q_length)
    dense = past.expand(shape) if keys is None else past & keys[:, None, None, :]
    return _noted(dense, Parts(causal=True, key_mask=keys))


def parts_of(mask: Tensor, batch: int, queries: int, slots: int) -> Parts:
    """A boolean mask that broadcasts to (B, H, Tq, Tk) as the arguments of a read."""
    noted = getattr(mask, _NOTE, None)
    if noted is not None and noted[1] == mask._version and mask.shape[2:] == (queries, slots):
        parts: Parts = noted[0]
        return parts
    same_for_every_query = mask.size(1) == 1 and (mask.size(2) == 1 or mask.stride(2) == 0)
    if same_for_every_query and mask.size(0) in (1, batch) and mask.size(3) == slots:
        return Parts(key_mask=mask[:, 0, 0].expand(batch, slots))
    return Parts(mask=mask)


def _bidirectional(shape: tuple[int, ...], keys: Tensor | None, device: torch.device | str) -> Tensor:
    """Never None, which a module that calls itself causal would take for the causal order."""
    visible = torch.ones((), dtype=torch.bool, device=device) if keys is None else keys[:, None, None, :]
    return _noted(visible.expand(shape), Parts(key_mask=keys))


def _key_mask(tokens: Tensor | None, length: int, offset: int) -> Tensor | None:
    """True at the tokens among the slots, (B, length); None where nothing is hidden."""
    padded = prepare_padding_mask(tokens, length, offset)
    if padded is None:
        return None
    keys: Tensor = padded[:, offset : offset + length].bool()
    return None if not torch.compiler.is_compiling() and bool(keys.all()) else keys


def _noted(mask: Tensor, parts: Parts) -> Tensor:
    if not torch.compiler.is_compiling():
        setattr(mask, _NOTE, (parts, mask._version))
    return mask
