"""Making rules and the model known to transformers."""

from __future__ import annotations

from transformers import AttentionInterface, AttentionMaskInterface

from reluformer import rules
from reluformer.hub import guard
from reluformer.hub.attention import PREFIX, attention_function
from reluformer.hub.masks import mask_function


def register() -> None:
    """Every registered rule as attn_implementation="reluformer:NAME", for all models of transformers.

    Call it again after registering rules of your own; calling it twice does no harm.
    """
    for name in rules.names():
        _offer(name)
    guard.install(_offer)


def _offer(name: str) -> None:
    AttentionInterface.register(PREFIX + name, attention_function(name))
    AttentionMaskInterface.register(PREFIX + name, mask_function)
