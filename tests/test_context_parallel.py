"""A read over two and four processes equals that of one, forward and backward.

As a script it is one of the processes: python test_context_parallel.py STORE RANK WORLD OUT.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

import reluformer as rf
from reluformer import rules
from reluformer.conformance.cases import TOLERANCE, error
from reluformer.context_parallel import Shards, agree, gather_rows, own_rows, sharded_read
from reluformer.errors import ArgumentError

SLOTS = 13


@dataclass(frozen=True)
class SoftplusMean(rules.Pointwise):
    """A user's own rule, whose activation needs n."""

    name: ClassVar[str] = "softplus_mean"

    def activate(self, scores: Tensor, n: Tensor) -> Tensor:
        return torch.nn.functional.softplus(scores) / n


@dataclass(frozen=True)
class SoftplusNorm(rules.RowNormalized):
    inner: ClassVar[rules.Pointwise] = SoftplusMean()


@dataclass(frozen=True)
class CentredSoftplus(rules.RowCentered):
    """The same divided by its row sum, of centred scores."""

    name: ClassVar[str] = "centred_softplus"

    @property
    def core(self) -> rules.RowNormalized:
        return SoftplusNorm(delta=0.1)


@dataclass(frozen=True)
class Case:
    queries: int
    uneven: bool = False
    """A process has no slots, the first most of them."""
    options: dict[str, Any] = field(default_factory=dict)
    visible: tuple[int, int] | None = None
    """Visible slots of the two items of the batch."""
    offset: float = 0.0
    """Added to the keys: what all scores of a row have in common."""

    def inputs(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(3)
        shapes = {"q": (2, 2, self.queries, 6), "k": (2, 2, SLOTS, 6), "v": (2, 2, SLOTS, 5)}
        drawn = {name: torch.randn(s, generator=generator, dtype=torch.float64) for name, s in shapes.items()}
        drawn["k"] += self.offset
        return drawn | {"probe": torch.randn(2, 2, self.queries, 5, generator=generator, dtype=torch.float64)}

    def key_mask(self) -> Tensor | None:
        return None if self.visible is None else torch.arange(SLOTS) < torch.tensor(self.visible)[:, None]

    def bounds(self, world: int) -> list[int]:
        """Where the shards begin and end."""
        if self.uneven:
            return [0, SLOTS, SLOTS] if world == 2 else [0, 7, 7, 9, SLOTS]
        return [round(SLOTS * i / world) for i in range(world + 1)]


RELU, CAUSAL = {"rule": "relu"}, {"rule": "relu", "causal": True}
CENTRED = {"rule": rules.ReluExp(spread=0.5)}
CASES = {
    "full": Case(5, options=RELU),
    "causal": Case(SLOTS, options=CAUSAL),
    "causal-last": Case(4, options=CAUSAL),
    "causal-ragged": Case(9, options=CAUSAL, visible=(SLOTS, 3)),
    "causal-uneven": Case(9, uneven=True, options=CAUSAL),
    "ragged": Case(5, options=RELU, visible=(11, 0)),
    "uneven-ragged": Case(5, uneven=True, options=RELU, visible=(SLOTS, 6)),
    "padded-shard": Case(5, options=RELU, visible=(6, 3)),
    "one-query": Case(1, options=CAUSAL),
    "relu2": Case(SLOTS, options={"rule": "relu2", "causal": True, "scale": 0.3}),
    "sigmoid": Case(SLOTS, options={"rule": "sigmoid", "causal": True}, visible=(SLOTS, 8)),
    "own-rule": Case(7, uneven=True, options={"rule": SoftplusMean(), "causal": True}),
    "divided": Case(9, uneven=True, options={"rule": rules.ReluNorm(delta=0.5), "causal": True}, visible=(SLOTS, 8)),
    "centred": Case(5, options=CENTRED),
    "centred-ragged": Case(5, options=CENTRED, visible=(11, 0)),
    "centred-uneven": Case(9, uneven=True, options=CENTRED, visible=(SLOTS, 6)),
    "centred-causal": Case(SLOTS, options=CENTRED | {"causal": True, "scale": 0.3}),
    "centred-causal-ragged": Case(9, options=CENTRED | {"causal": True}, visible=(SLOTS, 3)),
    "centred-causal-uneven": Case(9, uneven=True, options=CENTRED | {"causal": True}, visible=(SLOTS, 8)),
    "centred-one-query": Case(1, options=CENTRED | {"causal": True}),
    "centred-by-mean": Case(9, uneven=True, options={"rule": rules.ReluExp(spread=0.0), "causal": True}),
    "centred-own-rule": Case(7, options={"rule": CentredSoftplus(threshold=0.2, spread=0.5), "causal": True}),
    "centred-far": Case(9, options=CENTRED | {"causal": True}, offset=1e6),
}
OWN_ROWS = ("causal", "centred-causal")
"""Cases that are also read with sharded queries."""


def read_own(case: Case, rank: int, world: int) -> dict[str, Tensor]:
    bounds, inputs, key_mask = case.bounds(world), case.inputs(), case.key_mask()
    own = slice(bounds[rank], bounds[rank + 1])
    q = inputs["q"].requires_grad_()
    k, v = (inputs[name][:, :, own].clone().requires_grad_() for name in ("k", "v"))
    out = sharded_read(q, k, v, key_mask=None if key_mask is None else key_mask[:, own], **case.options)
    gradients = torch.autograd.grad((out * inputs["probe"]).sum(), (q, k, v))
    return dict(zip(("out", "q", "k", "v"), (out.detach(), *gradients), strict=True))


def read_own_rows(case: Case, rank: int, world: int) -> dict[str, Tensor]:
    """Queries sharded like the slots, and a loss of the own rows only."""
    bounds, inputs = case.bounds(world), case.inputs()
    own = slice(bounds[rank], bounds[rank + 1])
    q, k, v = (inputs[name][:, :, own].clone().requires_grad_() for name in ("q", "k", "v"))
    shards = agree(k.size(2), None, q.device)
    out = own_rows(sharded_read(gather_rows(q, shards), k, v, shards=shards, **case.options), shards)
    gradients = torch.autograd.grad((out * inputs["probe"][:, :, own]).sum(), (q, k, v))
    return dict(zip(("out", "q", "k", "v"), (out.detach(), *gradients), strict=True))


@contextmanager
def process_group(store: str, rank: int, world: int) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module", params=[2, 4], ids=["two", "four"])
def shards(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Tensor]]:
    """What each process got in all cases."""
    directory, world = tmp_path_factory.mktemp("processes"), request.param
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    outs = [directory / f"{rank}.safetensors" for rank in range(world)]
    commands = [
        [sys.executable, __file__, directory / "store", str(rank), str(world), outs[rank]] for rank in range(world)
    ]
    processes = [subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        errors = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * world, "\n".join(errors)
    return [load_file(out) for out in outs]


def in_one_process(case: Case) -> dict[str, Tensor]:
    inputs = case.inputs()
    leaves = [inputs[name].requires_grad_() for name in ("q", "k", "v")]
    out = rf.read(*leaves, key_mask=case.key_mask(), **case.options)
    gradients = torch.autograd.grad((out * inputs["probe"]).sum(), leaves)
    return dict(zip(("out", "q", "k", "v"), (out.detach(), *gradients), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_many_processes_read_as_one(name: str, shards: list[dict[str, Tensor]]) -> None:
    expected = in_one_process(CASES[name])
    for process in shards:
        torch.testing.assert_close(process[f"{name}/out"], expected["out"])
        torch.testing.assert_close(process[f"{name}/q"], expected["q"])
    for part in ("k", "v"):
        whole = torch.cat([process[f"{name}/{part}"] for process in shards], dim=2)
        torch.testing.assert_close(whole, expected[part])


@pytest.mark.parametrize("name", OWN_ROWS)
def test_sharded_queries_read_as_one_process(name: str, shards: list[dict[str, Tensor]]) -> None:
    expected = in_one_process(CASES[name])
    for part in ("out", "q", "k", "v"):
        whole = torch.cat([process[f"rows-{name}/{part}"] for process in shards], dim=2)
        torch.testing.assert_close(whole, expected[part])


# ------------------------------------------------------------------ one process is enough


@pytest.fixture
def memory() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, 2, n, 8, generator=generator) for n in (4, 6, 6))  # type: ignore[return-value]


def test_row_wise_rules_are_refused(memory: tuple[Tensor, Tensor, Tensor]) -> None:
    with pytest.raises(ArgumentError, match=r"rule 'softmax' weighs .* additive rules: .*relu_plain, relu.*relu_exp"):
        sharded_read(*memory, rule="softmax")
    with pytest.raises(ArgumentError, match=r"rule 'relu_exp' weighs the slots"):
        sharded_read(*memory, rule={"name": "relu_exp", "cap": 1.0})


def test_without_a_process_group_it_says_how_to_start_one(memory: tuple[Tensor, Tensor, Tensor]) -> None:
    with pytest.raises(ArgumentError, match="torchrun"):
        sharded_read(*memory)


def test_bfloat16_is_summed_in_float32(memory: tuple[Tensor, Tensor, Tensor], tmp_path: Path) -> None:
    halves = [tensor.bfloat16() for tensor in memory]
    with process_group(str(tmp_path / "store"), 0, 1):
        out = sharded_read(*halves, rule="relu_plain")
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, rf.read(*halves, rule="relu_plain"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_centred_rule_in_less_than_float64(
    dtype: torch.dtype, memory: tuple[Tensor, Tensor, Tensor], tmp_path: Path
) -> None:
    rounded = [tensor.to(dtype) for tensor in memory]
    with process_group(str(tmp_path / "store"), 0, 1):
        out = sharded_read(*rounded, rule="relu_exp", causal=True)
    assert out.dtype == dtype
    expected = rf.read(*(tensor.double() for tensor in rounded), rule="relu_exp", causal=True)
    assert error(out, expected, dtype) <= TOLERANCE[dtype]


def test_a_second_derivative_is_refused(memory: tuple[Tensor, Tensor, Tensor], tmp_path: Path) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in memory)
    with process_group(str(tmp_path / "store"), 0, 1):
        out = sharded_read(q, k, v, rule="relu2", causal=True)
        [first] = torch.autograd.grad(out.sum(), q, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


def test_arguments_that_contradict_each_other(memory: tuple[Tensor, Tensor, Tensor], tmp_path: Path) -> None:
    q, k, v = memory
    with process_group(str(tmp_path / "store"), 0, 1):
        shards = agree(6, None, q.device)
        assert shards == Shards((6,), 0, None, None)
        with pytest.raises(ArgumentError, match="pass either it or them"):
            sharded_read(q, k, v, key_mask=torch.ones(1, 6, dtype=torch.bool), shards=shards)
        with pytest.raises(ArgumentError, match="k has 5 slots, but shards was agreed on for 6"):
            sharded_read(q, k[:, :, :5], v[:, :, :5], shards=shards)
        with pytest.raises(ArgumentError, match="4 queries and 3 slots on all processes"):
            sharded_read(q, k[:, :, :3], v[:, :, :3], causal=True)
        with pytest.raises(ArgumentError, match=r"key_mask must be boolean \(B, 6\)"):
            sharded_read(q, k, v, key_mask=torch.ones(1, 5, dtype=torch.bool))
    assert not dist.is_initialized()


if __name__ == "__main__":
    store, rank, world, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    with process_group(store, rank, world):
        found = {f"{name}/{part}": x for name, case in CASES.items() for part, x in read_own(case, rank, world).items()}
        for name in OWN_ROWS:
            found |= {f"rows-{name}/{part}": x for part, x in read_own_rows(CASES[name], rank, world).items()}
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, out)
