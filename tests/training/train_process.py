"""Trains a recipe in a process of its own: python train_process.py RECIPE RUN PREPARED."""

from __future__ import annotations

import sys

from reluformer.config import load_yaml
from reluformer.training.progress import SilentProgress
from reluformer.translation.recipe import Recipe
from reluformer.translation.task import train

if __name__ == "__main__":
    recipe, run, prepared = sys.argv[1:]
    train(load_yaml(Recipe, recipe), run, progress=SilentProgress(), prepared=prepared)
