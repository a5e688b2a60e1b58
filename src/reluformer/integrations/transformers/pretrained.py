"""What the models of this package have in common in transformers: a configuration around ours, and strict loading.

Each model holds one network of `reluformer.models` as `model`, and its configuration the values of the network's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel

from reluformer.errors import ArgumentError, ConfigError, StorageError
from reluformer.models.config import LanguageConfig, ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.models.language_model import LanguageModel
from reluformer.translation.tokenizer import BEGIN, END, PAD

IGNORED_LABEL = -100


class NetworkConfig(PreTrainedConfig):
    """The configuration of a network in transformers; `network` holds the values of its own configuration."""

    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    schema: ClassVar[type[ModelConfig] | type[LanguageConfig]]
    """The class of the network's configuration."""

    network: dict[str, Any] | None = None
    """The same as in a run's config.json."""
    tokenizer_sha256: str | None = None
    """The fingerprint of the tokenizer that the model was trained with."""
    use_cache: bool = True
    pad_token_id: int | None = PAD
    bos_token_id: int | None = BEGIN
    eos_token_id: int | list[int] | None = END
    tie_word_embeddings: bool = True

    def __post_init__(self, **options: Any) -> None:
        if self.network is not None:
            self.tie_word_embeddings = self.to_model_config().tied_embeddings
        super().__post_init__(**options)

    @classmethod
    def from_model_config(cls, config: Any, **values: Any) -> Any:
        """Creates the configuration of a network; `values` are further fields of this class."""
        return cls(network=config.model_dump(mode="json"), **values)

    def to_model_config(self) -> Any:
        """Returns the configuration of the network, of the class `schema`."""
        if self.network is None:
            name = type(self).__name__
            raise ConfigError(
                f"{name} has no network; make it with {name}.from_model_config({self.schema.__name__}(...))"
            )
        return self.schema.parse(self.network, where="config.json: network")

    @property
    def vocab_size(self) -> int:
        return int(self.to_model_config().vocab_size)

    @property
    def hidden_size(self) -> int:
        return int(self.to_model_config().width)

    @property
    def num_attention_heads(self) -> int:
        return int(self.to_model_config().heads)


class NetworkModel(PreTrainedModel, GenerationMixin):
    """A network of this package; its parts of transformers that do not depend on which."""

    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _no_split_modules: ClassVar[list[str]] = ["Block"]
    _can_set_attn_implementation_cached_value = False  # the rules are those of the configuration
    model: ReLUFormer | LanguageModel

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **options: Any) -> Any:
        """Loads a model as transformers does, but a missing or unexpected weight is an error.

        Raises:
            StorageError: Files are missing or damaged, or the weights do not fit config.json.
        """
        wants_report = options.pop("output_loading_info", False)
        options["output_loading_info"] = True
        _check_files(pretrained_model_name_or_path)
        try:
            model, report = super().from_pretrained(pretrained_model_name_or_path, *args, **options)
        except (SafetensorError, RuntimeError) as error:
            raise StorageError(
                f"{pretrained_model_name_or_path}: the weights are damaged or belong to another config.json "
                f"({str(error).splitlines()[0]}); export or save the model again"
            ) from None
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if names := sorted(map(str, report.get(kind) or ())):
                raise StorageError(
                    f"{pretrained_model_name_or_path}: the weights do not fit config.json: {kind.replace('_', ' ')} "
                    f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}; export or save the model again"
                )
        return (model, report) if wants_report else model

    def resize_token_embeddings(self, *args: Any, **options: Any) -> nn.Embedding:
        raise ArgumentError(
            "the vocabulary of a ReLUFormer is that of its tokenizer; train a model with the tokenizer that you want"
        )

    def gradient_checkpointing_enable(self, *args: Any, **options: Any) -> None:
        """Recomputes each block in the backward pass; the arguments of transformers have no effect."""
        self._checkpoint_activations(True)

    def gradient_checkpointing_disable(self) -> None:
        self._checkpoint_activations(False)

    @property
    def is_gradient_checkpointing(self) -> bool:
        return self.model.config.checkpoint_activations

    def _checkpoint_activations(self, on: bool) -> None:
        self.model.config = self.model.config.replace(checkpoint_activations=on)

    def _init_weights(self, module: nn.Module) -> None:
        """Does nothing: the layers of a network initialize their own weights."""

    def cross_entropy(self, logits: Tensor, labels: Tensor, count: Tensor | int | None) -> Tensor:
        """Returns the cross entropy of labels that count, divided by `count` if several batches make one update."""
        labels = labels.masked_fill(labels == self.config.pad_token_id, IGNORED_LABEL)
        total = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
        counted = (labels != IGNORED_LABEL).sum().clamp_min(1) if count is None else count
        return total / counted


def refuse_recording(attentions: bool | None, hidden_states: bool | None) -> None:
    if attentions or hidden_states:
        raise ArgumentError(
            "a ReLUFormer does not record attentions or hidden states here; "
            "reluformer.translation.inspection.read_map(model.model, ...) gives what each token read"
        )


def _check_files(name: Any) -> None:
    """Raises an error for a directory without its files, before transformers searches the Hub for it."""
    directory = Path(str(name))
    if not directory.is_dir():
        return
    if not (directory / "config.json").is_file():
        raise StorageError(f"{directory}: holds no config.json; give the directory of an export or a saved model")
    if not any(directory.glob("*.safetensors")):
        raise StorageError(f"{directory}: model.safetensors is missing; copy the whole directory or export again")
