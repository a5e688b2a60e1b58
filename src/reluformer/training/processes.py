"""Communication between the processes of one training; a single process communicates nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn


class Processes:
    """The processes of an `Accelerator`, with the few operations that training needs."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.rank: int = accelerator.process_index
        self.world: int = accelerator.num_processes
        self.device: torch.device = accelerator.device
        self.is_main: bool = accelerator.is_main_process

    def sum(self, values: Sequence[float]) -> list[float]:
        """Returns the element-wise sum over all processes, in float64."""
        if self.world == 1:
            return [float(value) for value in values]
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return list(tensor.tolist())

    def any(self, *flags: bool) -> list[bool]:
        """Returns for each flag whether any process raised it."""
        return [count > 0 for count in self.sum([float(flag) for flag in flags])]

    def wait(self) -> None:
        """Waits until all processes are here."""
        if self.world > 1:
            self.accelerator.wait_for_everyone()

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns tensors, which may be sharded over processes (FSDP), in one piece on the CPU."""
        return {name: in_one_piece(tensor.detach()).cpu() for name, tensor in tensors.items()}

    def regather(self, module: nn.Module) -> None:
        """Drops gathered weights (FSDP) after their shards were changed directly."""
        if self.sharded(module):
            module.reshard()  # type: ignore[operator]

    def sharded(self, module: nn.Module) -> bool:
        """Returns whether each process holds only a part of the weights."""
        return hasattr(module, "reshard")

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        """Copies `values` into tensors of the same names; each process copies its shard."""
        for name, tensor in tensors.items():
            tensor.copy_(self.like(tensor, values[name]))

    def like(self, tensor: Tensor, value: Tensor) -> Tensor:
        """Returns `value` on the device of `tensor` and, if that is sharded, sharded like it."""
        value = value.to(tensor.device)
        if not hasattr(tensor, "full_tensor"):
            return value
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(tensor, DTensor)
        return distribute_tensor(value, tensor.device_mesh, tensor.placements)


def in_one_piece(tensor: Tensor) -> Tensor:
    """Returns a tensor, which may be sharded, in one piece.

    A sharded tensor is told by its method, as the import of FSDP takes a second.
    """
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole
