"""The log as TensorBoard shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from reluformer.errors import ConfigError


def tensorboard_listener(directory: Path) -> Callable[[str, int, Mapping[str, Any]], None]:
    """Called with each event of the log; numbers become curves named after their place in it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "training.tensorboard=true, but TensorBoard is not installed; pip install 'reluformer[tensorboard]'"
        ) from None

    @cache
    def writer() -> Any:
        """Opened at the first event, when what an earlier run left here is gone."""
        return SummaryWriter(str(directory))

    def listen(event: str, step: int, values: Mapping[str, Any]) -> None:
        for name, number in _numbers(event, values):
            writer().add_scalar(name, number, step)
        writer().flush()

    return listen


def _numbers(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Nested numbers as ("train/loss", 3.2); of a list, one a head, the mean."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(f"{prefix}/{name}", value)
        elif isinstance(value, list) and value and all(isinstance(item, int | float) for item in value):
            yield f"{prefix}/{name}", sum(value) / len(value)
        elif isinstance(value, int | float):
            yield f"{prefix}/{name}", float(value)
