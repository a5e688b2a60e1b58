"""The configuration of training: the section `training` of a recipe, and what every recipe has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from reluformer.config import Config
from reluformer.regularizers import RegularizerConfig


class TrainingConfig(Config):
    """How a model is trained. One update = `accumulate` batches on each process, one optimiser step."""

    updates: int = Field(default=20_000, gt=0, le=10**9)
    """Stop after so many updates. The cosine schedule ends here."""
    max_minutes: float | None = Field(default=None, gt=0, le=10**9, examples=[60])
    """Stop after so many minutes of training, resumed parts added up. Unset: no limit."""

    tokens_per_batch: int = Field(default=4096, gt=0, le=10**9)
    """Most cells (rows times longest row, on the longer side) of a batch. n processes share the rows of
    one n times as large, dealt out in turn, so one of them may have a row more than fits."""
    accumulate: int = Field(default=1, gt=0, le=10**6)
    """Batches whose gradients are added up before an update."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Share of the target distribution that is spread over the whole vocabulary."""
    regularizer: RegularizerConfig | None = None
    """Applied to every attention. Unset: none; the `reluformer` architecture wants it."""

    lr: float = Field(default=1e-3, gt=0, le=1e30)
    """Highest learning rate, reached at the end of the warm-up."""
    schedule: Literal["inverse_sqrt", "cosine", "constant"] = "inverse_sqrt"
    """How the learning rate falls after the warm-up."""
    warmup: int = Field(default=1000, ge=0, le=10**9)
    """Updates over which the learning rate rises linearly from 0."""
    rule_warmup: int = Field(default=0, ge=0, le=10**9, examples=[2000])
    """Updates over which rules with a level of the row (`relu_exp`) go from no zeros to their own. 0: none."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of AdamW's two moments."""
    weight_decay: float = Field(default=0.01, ge=0, le=1e6)
    """AdamW's decay of matrices; norms, biases and other vectors are not decayed."""
    clip: float | None = Field(default=1.0, gt=0, le=1e30)
    """Largest norm of the whole gradient. Unset: no clipping."""
    precision: Literal["fp32", "bf16", "fp16"] = Field(default="fp32", examples=["bf16"])
    """Arithmetic of matrix products; weights stay in float32."""
    compile: bool = False
    """Compile the model with torch.compile. Needs a C++ compiler; the first updates take minutes."""
    device: Literal["auto", "cpu"] = "auto"
    """The accelerator that is there, or the CPU in any case."""
    seed: int = Field(default=0, ge=0, lt=2**32, examples=[1])
    """Decides initial weights, order of the data and dropout."""

    ema_decay: float | None = Field(default=None, gt=0, lt=1, examples=[0.999])
    """Validate and keep an exponential moving average of the weights, e.g. 0.999. Unset: none."""
    average_last: int = Field(default=0, ge=0, le=10**6, examples=[3])
    """The final model is the mean of this many last checkpoints. 0: none."""

    validate_every: int = Field(default=1000, gt=0, le=10**9)
    """Updates between two looks at the validation split."""
    validate_bleu: int = Field(default=0, ge=0, le=10**9, examples=[100])
    """Validation documents that are also translated and scored each time. 0: none."""
    patience: int | None = Field(default=None, gt=0, le=10**9, examples=[10])
    """Stop after so many validations in a row without a lower loss. Unset: never."""

    checkpoint_every: int = Field(default=1000, gt=0, le=10**9)
    """Updates between two checkpoints."""
    checkpoint_minutes: float = Field(default=10, gt=0, le=10**9)
    """A checkpoint is also saved when the last one is this many minutes old."""
    keep_checkpoints: int = Field(default=3, gt=0, le=10**6)
    """Newest checkpoints that are kept; older ones are deleted."""
    log_every: int = Field(default=50, gt=0, le=10**9)
    """Updates between two lines of the log."""
    telemetry_every: int = Field(default=500, gt=0, le=10**9)
    """Updates between two looks at every memory: variances, zeros, entropy, dead rows."""
    tensorboard: bool = False
    """Also write the log for TensorBoard; needs `pip install 'reluformer[tensorboard]'`."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if any(not 0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie between 0 and 1, got {list(self.betas)}; [0.9, 0.98] is usual")
        if self.ema_decay is not None and self.average_last:
            raise ValueError("ema_decay and average_last both decide the final model; unset one of them")
        if self.average_last > self.keep_checkpoints:
            raise ValueError(
                f"average_last={self.average_last} needs as many checkpoints, keep_checkpoints is "
                f"{self.keep_checkpoints}; raise it"
            )
        if self.schedule == "cosine" and self.warmup >= self.updates:
            raise ValueError(f"warmup={self.warmup} leaves nothing of updates={self.updates} for the cosine; lower it")
        if self.rule_warmup > self.updates:
            raise ValueError(f"rule_warmup={self.rule_warmup} never ends within updates={self.updates}; lower it")
        if self.rule_warmup and self.compile:
            raise ValueError(
                "rule_warmup changes the rules at every update, and compile=true would compile each of them"
            )
        return self


FREE_TO_CHANGE = frozenset(
    {
        "updates",
        "max_minutes",
        "patience",
        "checkpoint_every",
        "checkpoint_minutes",
        "keep_checkpoints",
        "tensorboard",
    }
)
"""Keys of `training` that may differ when a run is resumed: they do not change its mathematics."""


class TrainingRecipe(Config):
    """The base of every recipe. Each task adds its own sections beside `training`."""

    if TYPE_CHECKING:  # each recipe declares the section itself and so decides the order in its files
        training: TrainingConfig

    def resolved(self) -> dict[str, Any]:
        """Returns the recipe as plain data in which equal trainings are equal, however they are written."""
        return self.model_dump(mode="json")

    def is_free(self, key: str, *, corpus_known: bool) -> bool:
        """Returns whether a resumed run may change `key`, e.g. "training.updates".

        Args:
            key: The path of a value in `resolved`.
            corpus_known: Whether the log identifies the corpus, so that its files may have moved.
        """
        section, _, name = key.partition(".")
        if (section, name) == ("training", "updates"):
            return self.training.schedule != "cosine"  # a cosine depends on the last update
        return section == "training" and name in FREE_TO_CHANGE
