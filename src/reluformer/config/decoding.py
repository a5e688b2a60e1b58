"""The configuration of translation."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from reluformer.config.base import Config


class DecodingConfig(Config):
    """How translations are searched for, and how long documents are cut."""

    beam: int = Field(default=4, ge=1)
    """Hypotheses kept at each step; 1 is greedy search."""
    n_best: int = Field(default=1, ge=1)
    """Translations returned for each source, best first; at most `beam`."""
    length_penalty: float = Field(default=1.0, ge=0)
    """Hypotheses are ranked by log-probability / length^length_penalty; 0 prefers short ones."""
    stop: Literal["exact", "beam"] = "exact"
    """`exact`: when no live hypothesis can still enter the n best, whatever its length becomes.
    `beam`: as soon as `beam` hypotheses are finished, which is quicker and may miss a better one."""
    length_ratio: float = Field(default=2.0, gt=0)
    """A sentence may grow to length_ratio * source tokens + length_offset tokens."""
    length_offset: int = Field(default=16, ge=1)
    """See `length_ratio`."""
    min_length: int = Field(default=0, ge=0)
    """Tokens before the end is allowed; where it exceeds the length limit, the limit wins."""
    window_tokens: Annotated[int, Field(ge=8)] | Literal["sentence"] | None = None
    """Longer documents are cut at sentence borders into windows of so many source tokens, or into
    single sentences. Unset: as the model was trained."""
    context_sentences: int = Field(default=3, ge=0)
    """Sentences before a window that are given again, with their translations, as its beginning."""
    batch_tokens: int = Field(default=8192, gt=0)
    """Source tokens, padding included, that are translated at once."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.n_best > self.beam:
            raise ValueError(f"n_best={self.n_best} translations need at least as many beams; set beam={self.n_best}")
        return self
