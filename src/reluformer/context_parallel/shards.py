"""Which process holds which slots, and what every process has to know of the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from reluformer.context_parallel.sums import replicated, summed
from reluformer.errors import ArgumentError


@dataclass(frozen=True)
class Shards:
    """How the slots lie on the processes: consecutive pieces of one sequence, of any lengths."""

    lengths: tuple[int, ...]
    """Slots of each process."""
    rank: int
    key_mask: Tensor | None
    """(B, T) of all processes; None = all visible."""
    group: dist.ProcessGroup | None

    @property
    def first(self) -> int:
        """Position of the first own slot in the whole sequence."""
        return sum(self.lengths[: self.rank])

    @property
    def own(self) -> slice:
        return slice(self.first, self.first + self.lengths[self.rank])

    @property
    def total(self) -> int:
        return sum(self.lengths)


def agree(slots: int, key_mask: Tensor | None, device: torch.device, group: dist.ProcessGroup | None = None) -> Shards:
    """Tell the others how many slots there are here, and which of them are visible (B, slots).

    Every process must call it. Do it once a batch and hand the result to all reads of the batch.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError(
            "context parallelism needs a process group: start the processes with torchrun and call "
            "torch.distributed.init_process_group() first"
        )
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    told = torch.zeros(world, 2, dtype=torch.int64, device=device)
    told[rank] = torch.tensor([slots, key_mask is not None])
    dist.all_reduce(told, group=group)
    lengths = tuple(int(length) for length in told[:, 0])
    if not bool(told[:, 1].any()):
        return Shards(lengths, rank, None, group)
    if not bool(told[:, 1].all()):
        raise ArgumentError(
            "key_mask is given on some processes and not on others; where all slots are visible, pass one of True"
        )
    assert key_mask is not None
    if key_mask.dtype != torch.bool or key_mask.ndim != 2 or key_mask.size(1) != slots:
        raise ArgumentError(f"key_mask must be boolean (B, {slots}), got {key_mask.dtype} {tuple(key_mask.shape)}")
    shards = Shards(lengths, rank, None, group)
    everywhere = F.pad(key_mask.to(torch.uint8), (shards.first, shards.total - shards.own.stop))
    dist.all_reduce(everywhere, group=group)
    return Shards(lengths, rank, everywhere.bool(), group)


def gather_rows(own: Tensor, shards: Shards) -> Tensor:
    """All rows (B, H, T, d) from each process's own: for queries that are sharded like the slots."""
    before, after = shards.first, shards.total - shards.own.stop
    return summed(F.pad(own, (0, 0, before, after)), shards.group)


def own_rows(read: Tensor, shards: Shards) -> Tensor:
    """The own rows of what `sharded_read` gave; losses may then differ between the processes and add up."""
    return replicated(read, shards.group)[:, :, shards.own]
