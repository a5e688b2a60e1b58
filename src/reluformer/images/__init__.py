"""Images: a model that tells classes of pictures apart.

recipe      the recipe with `task: images`
idx         the IDX format of MNIST and Fashion-MNIST
dataset     images and labels of each split, from files or generated
downloads   public sets of images
affine      affine forms: what a layer may output
certification   proofs that no small change of an image changes its class
attack      the search for such a change
task        the task that the trainer runs, and `train`
scoring     accuracy, and loading a run
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reluformer.images.idx import read_idx as read_idx
    from reluformer.images.recipe import ImageRecipe as ImageRecipe
    from reluformer.images.scoring import load as load
    from reluformer.images.task import train as train

_HOME = {"ImageRecipe": "recipe", "load": "scoring", "read_idx": "idx", "train": "task"}
__all__ = ["ImageRecipe", "load", "read_idx", "train"]


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used: a translator knows this package's recipe and nothing else of it."""
    if name not in _HOME:
        raise AttributeError(f"module 'reluformer.images' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(f"reluformer.images.{_HOME[name]}"), name)
    return value
