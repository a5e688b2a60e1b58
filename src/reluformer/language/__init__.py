"""Language modelling: text in, a model that continues it out.

recipe       the recipe with `task: language`
corpus       documents, their tokens on disk, and rows of a fixed length
task         the task that the trainer runs, and `train`
scoring      perplexity, loss by position, and a needle in a text
generation   continuing a text token by token

The tokenizer and the embedded corpus are those of `reluformer.translation`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reluformer.language.generation import Generator as Generator
    from reluformer.language.generation import load as load
    from reluformer.language.recipe import LanguageRecipe as LanguageRecipe
    from reluformer.language.task import train as train

_HOME = {"Generator": "generation", "LanguageRecipe": "recipe", "load": "generation", "train": "task"}
__all__ = ["Generator", "LanguageRecipe", "load", "train"]


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used: a translator knows this package's recipe and nothing else of it."""
    if name not in _HOME:
        raise AttributeError(f"module 'reluformer.language' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(f"reluformer.language.{_HOME[name]}"), name)
    return value
