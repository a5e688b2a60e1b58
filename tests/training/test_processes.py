from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.regularizers import RegularizerConfig
from reluformer.training.config import TrainingConfig
from reluformer.training.optimizer import MovingAverage, Optimizer
from reluformer.training.processes import Processes
from reluformer.translation.task import TranslationObjective


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of one, enough for FSDP to shard weights."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(
    sharded: bool, updates: int, restored: tuple[dict, dict] | None = None
) -> tuple[TranslationObjective, Optimizer]:  # type: ignore[type-arg]
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=20, width=16, heads=2, encoder_layers=1, decoder_layers=1, slots=16, dropout=0.0)
    objective = TranslationObjective(ReLUFormer(config), 0.1, RegularizerConfig())
    if sharded:
        fully_shard(objective, mesh=init_device_mesh("cpu", (1,)))
    optimizer = Optimizer(TrainingConfig(clip=0.5), objective, Accelerator(cpu=True))
    if restored is not None:
        processes = Processes(Accelerator(cpu=True))
        processes.fill(dict(objective.named_parameters()), restored[0])
        optimizer.restore(restored[1], None, processes)
    for step in range(updates):
        torch.manual_seed(step)
        sums = objective(*(torch.randint(5, 20, (2, 4)) for _ in range(3)))
        (sums.smoothed / 8 + sums.regularizer.normalization / 10).backward()
        optimizer.step(0.01)
        optimizer.clear()
    return objective, optimizer


def weights(objective: TranslationObjective) -> dict[str, torch.Tensor]:
    return Processes(Accelerator(cpu=True)).whole(dict(objective.named_parameters()))


def test_sharded_weights_train_as_whole_ones(group: None) -> None:
    whole, sharded = weights(trained(False, 3)[0]), weights(trained(True, 3)[0])
    for name in whole:
        torch.testing.assert_close(sharded[name], whole[name])


@pytest.mark.parametrize("sharded", [False, True])
def test_weights_and_moments_survive_being_taken_out_and_put_back(group: None, sharded: bool) -> None:
    objective, optimizer = trained(sharded, 2)
    taken = weights(objective), Processes(Accelerator(cpu=True)).whole(optimizer.tensors())
    taken = tuple({name: tensor.clone() for name, tensor in part.items()} for part in taken)
    again = [weights(trained(sharded, 1, restored=taken)[0]) for _ in range(2)]
    fresh = weights(trained(sharded, 1)[0])
    for name in fresh:
        assert torch.equal(again[0][name], again[1][name])
    assert any(not torch.equal(again[0][name], fresh[name]) for name in fresh)
    assert {name.rpartition("/")[2] for name in taken[1]} == {"step", "exp_avg", "exp_avg_sq"}


def test_swapped_weights_are_used_by_a_sharded_model(group: None) -> None:
    objective, _ = trained(True, 1)
    processes = Processes(Accelerator(cpu=True))
    average = MovingAverage(objective.model, 0.5)
    with torch.no_grad():
        for tensor in average.average:
            tensor.zero_()
        batch = [torch.randint(5, 20, (2, 4)) for _ in range(3)]
        before = float(objective(*batch).plain)
        with average.in_place():
            processes.regather(objective)
            inside = float(objective(*batch).plain)
        processes.regather(objective)
        after = float(objective(*batch).plain)
    assert inside == pytest.approx(8 * torch.tensor(20.0).log().item())
    assert after == before != inside


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "configs/accelerate").glob("*.yaml")), ids=lambda path: path.stem
)
def test_accelerate_reads_the_shipped_configurations(path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(path))  # refuses unknown keys
    assert config.distributed_type.value == ("FSDP" if path.stem == "fsdp" else "MULTI_GPU")
    assert path.name in (Path(__file__).parents[2] / "docs/distributed.md").read_text(encoding="utf-8")
