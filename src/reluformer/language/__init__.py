"""Language modelling: text in, a model that continues it out.

recipe       the recipe with `task: language`
corpus       documents, their tokens on disk, and rows of a fixed length
task         the task that the trainer runs, and `train`
scoring      perplexity, loss by position, and a needle in a text
generation   continuing a text token by token

The tokenizer and the embedded corpus are those of `reluformer.translation`.
"""

from __future__ import annotations

from reluformer.language.generation import Generator, load
from reluformer.language.recipe import LanguageRecipe
from reluformer.language.task import train

__all__ = ["Generator", "LanguageRecipe", "load", "train"]
