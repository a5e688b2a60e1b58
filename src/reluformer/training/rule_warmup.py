"""Rules that begin without zeros and take on their own level in the course of training."""

from __future__ import annotations

from reluformer.layers import TokenRead
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.rules import RowCentered


class RuleWarmup:
    """A function of the step, so that nothing of it needs saving. Between updates the model has its own rules."""

    def __init__(self, model: ReLUFormer, updates: int) -> None:
        self._updates = updates
        self._reads: list[tuple[TokenRead, RowCentered]] = []
        for module in model.modules():
            if updates and isinstance(module, TokenRead) and isinstance(module.rule, RowCentered):
                self._reads.append((module, module.rule))

    def ease(self, step: int) -> None:
        """For update number `step`."""
        progress = min(1.0, step / self._updates) if self._updates else 1.0
        for read, rule in self._reads:
            read.rule = rule.eased(progress)

    def restore(self) -> None:
        for read, rule in self._reads:
            read.rule = rule
