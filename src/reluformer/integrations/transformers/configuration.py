"""The configuration of a ReLUFormer as transformers keeps it."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PreTrainedConfig

from reluformer.errors import ConfigError
from reluformer.models.config import ModelConfig
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.tokenizer import BEGIN, END, PAD


class ReLUFormerConfig(PreTrainedConfig):
    """`network` holds the values of a `ModelConfig`, which decides everything about the network."""

    model_type: ClassVar[str] = "reluformer"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    network: dict[str, Any] | None = None
    """As in a run's config.json."""
    decoding: dict[str, Any] | None = None
    """As in a run's recipe, with the window that it was trained on."""
    tokenizer_sha256: str | None = None
    """Fingerprint of the tokenizer that the model was trained with."""
    source_lang: str | None = None
    target_lang: str | None = None
    is_encoder_decoder: bool = True
    use_cache: bool = True
    pad_token_id: int | None = PAD
    bos_token_id: int | None = BEGIN
    eos_token_id: int | list[int] | None = END
    decoder_start_token_id: int | None = BEGIN
    tie_word_embeddings: bool = True

    def __post_init__(self, **options: Any) -> None:
        if self.network is not None:
            self.tie_word_embeddings = self.to_model_config().tied_embeddings
        super().__post_init__(**options)

    @classmethod
    def from_model_config(cls, config: ModelConfig, **values: Any) -> ReLUFormerConfig:
        """For a network of ours; `values` are fields of this class."""
        return cls(network=config.model_dump(mode="json"), **values)

    def to_model_config(self) -> ModelConfig:
        """What `reluformer.ReLUFormer` is built from."""
        if self.network is None:
            raise ConfigError(
                "ReLUFormerConfig has no network; make it with ReLUFormerConfig.from_model_config(ModelConfig(...))"
            )
        return ModelConfig.parse(self.network, where="config.json: network")

    def to_decoding_config(self) -> DecodingConfig:
        """How the run was told to search; the defaults for a model that does not say."""
        return DecodingConfig.parse(self.decoding or {}, where="config.json: decoding")

    @property
    def vocab_size(self) -> int:
        return self.to_model_config().vocab_size

    @property
    def hidden_size(self) -> int:
        return self.to_model_config().width

    @property
    def num_attention_heads(self) -> int:
        return self.to_model_config().heads

    @property
    def num_hidden_layers(self) -> int:
        """Of the decoder, whose slots are cached."""
        return self.to_model_config().decoder_layers
