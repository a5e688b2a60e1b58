"""LanguageModel as a model of transformers: `AutoModelForCausalLM`, `generate`, `Trainer`.

The model holds one `reluformer.LanguageModel`. Each layer of the cache holds one `SlotCache`: beside keys and values
the sums of forget gates, and the newest key and value as they were before they were shifted.

Shapes: B rows, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.pretrained import (
    IGNORED_LABEL,
    NetworkConfig,
    NetworkModel,
    refuse_recording,
)
from reluformer.language.generation import NEVER
from reluformer.layers import SlotCache
from reluformer.models.config import LanguageConfig
from reluformer.models.language_model import LanguageModel, LanguageState


class ReLUFormerLanguageConfig(NetworkConfig):
    """The configuration of a language model in transformers; `network` holds the values of a `LanguageConfig`.

    Example:
        >>> from reluformer import LanguageConfig
        >>> config = ReLUFormerLanguageConfig.from_model_config(LanguageConfig(vocab_size=100, heads=4, key_heads=2))
        >>> config.vocab_size, config.num_key_value_heads
        (100, 2)
    """

    model_type: ClassVar[str] = "reluformer_language"
    schema = LanguageConfig

    is_decoder: bool = True

    @property
    def num_key_value_heads(self) -> int:
        found = self.to_model_config()
        return int(found.heads if found.key_heads is None else found.key_heads)

    @property
    def num_hidden_layers(self) -> int:
        return int(self.to_model_config().layers)


class ReLUFormerForCausalLM(NetworkModel):
    """A language model that continues a text; `model` is the network itself.

    Args:
        config: The configuration; `from_pretrained` reads it from the directory of an export.

    Example:
        >>> import torch
        >>> from reluformer import LanguageConfig, hub
        >>> sizes = LanguageConfig(vocab_size=50, width=16, heads=2, layers=1, slots=32)
        >>> model = hub.ReLUFormerForCausalLM(hub.ReLUFormerLanguageConfig.from_model_config(sizes))
        >>> model(torch.tensor([[1, 7, 8]])).logits.shape
        torch.Size([1, 3, 50])
    """

    config_class = ReLUFormerLanguageConfig
    model: LanguageModel
    _tied_weights_keys: ClassVar[dict[str, str]] = {"model.output_embedding.weight": "model.embedding.weight"}

    def __init__(self, config: ReLUFormerLanguageConfig) -> None:
        super().__init__(config)
        self.model = LanguageModel(config.to_model_config())
        self.post_init()
        self.generation_config.suppress_tokens = list(NEVER)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> CausalLMOutputWithPast | tuple[Tensor, ...]:
        """Computes the logits (B, T, V) after each of `input_ids`, and the loss of `labels`.

        Args:
            input_ids: (B, T), the tokens after those of the cache.
            attention_mask: (B, tokens so far), 0 at padding, on the left or the right of each row.
            past_key_values: A dynamic cache, empty or of this model.
            labels: (B, T), equal to `input_ids` where a token is to be learned; -100 and padding do not count.
            use_cache: Whether to fill a cache. Default: as in the configuration, but not in training.
            logits_to_keep: The logits of so many of the last tokens; 0 for all.
            num_items_in_batch: What the loss is divided by, if several batches make one update.
            output_attentions: Not supported.
            output_hidden_states: Not supported.
            return_dict: If False, the result is a tuple.

        Returns:
            The logits (B, T, V), the loss and the cache.

        Raises:
            ArgumentError: An argument is missing, does not fit, or is not supported.
        """
        refuse_recording(output_attentions, output_hidden_states)
        if input_ids is None:
            raise ArgumentError("input_ids are not given; pass the tokens of the text")
        caches = self.config.use_cache and labels is None and not self.training if use_cache is None else use_cache
        if caches and past_key_values is None:
            past_key_values = DynamicCache()
        if past_key_values is None:
            states, _ = self.model.states(input_ids, mask=_visible(attention_mask, input_ids, 0))
        else:
            states = self._step(input_ids, attention_mask, past_key_values)
        loss = None
        if labels is not None:
            following = torch.cat([labels[:, 1:], labels.new_full((len(labels), 1), IGNORED_LABEL)], 1)
            loss = self.cross_entropy(self.model.logits(states), following, num_items_in_batch)
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=self.model.logits(states[:, -logits_to_keep:]),
            past_key_values=past_key_values if caches else None,
        )
        return output.to_tuple() if return_dict is False else output

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.embedding

    def get_output_embeddings(self) -> nn.Embedding:
        return self.model.output_embedding

    def _step(self, tokens: Tensor, mask: Tensor | None, cache: Cache) -> Tensor:
        """Appends tokens to the cache of transformers and returns their states."""
        state = LanguageState(self.model.config)
        state.caches = [layer.slots for layer in _layers_of(cache, self.model.config)]
        state.length = int(cache.get_seq_length())
        visible = _visible(mask, tokens, state.length)
        if visible is not None:
            state.mask, visible = visible[:, : state.length], visible[:, state.length :]
        return self.model.step(tokens, state, visible)


class SlotLayer(CacheLayerMixin):
    """The slots of one layer in a cache of transformers, and the configuration of the model that made them."""

    is_sliding = False

    def __init__(self, config: LanguageConfig, **options: Any) -> None:
        super().__init__(**options)
        self.config = config
        self.slots = SlotCache()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing: the buffers are made with the first slots."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Refuses slots of another model; those of a language model are appended by its attention."""
        raise ArgumentError("the cache belongs to a ReLUFormer language model; start a new one for another model")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.slots.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.slots.length

    def get_max_length(self) -> int:
        return -1

    @property
    def is_croppable(self) -> bool:
        """Whether the newest slots can be taken away; shifted keys need the one before them, which is not kept."""
        return self.slots.last is None

    def crop(self, tokens_to_remove: int) -> None:
        """Takes away the newest -`tokens_to_remove` slots."""
        if tokens_to_remove and not self.is_croppable:
            raise ArgumentError("a model with shifted keys cannot take back tokens; generate without an assistant")
        self.slots.length -= min(abs(tokens_to_remove), self.slots.length)

    def reset(self) -> None:
        self.slots = SlotCache()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.slots.reorder(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        rows = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        self.slots.reorder(rows)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.slots.length:
            self.slots.reorder(torch.arange(self.slots.slots.keys.size(0)).repeat_interleave(repeats))


def _layers_of(cache: Cache, config: LanguageConfig) -> list[SlotLayer]:
    """Returns the layers of a cache, which are replaced by ours while it is empty."""
    count = config.layers
    if not cache.get_seq_length() and isinstance(cache, DynamicCache) and not cache.offloading:
        cache.layers = [SlotLayer(config) for _ in range(count)]
        cache.layer_class_to_replicate = None
    layers = [layer for layer in cache.layers if isinstance(layer, SlotLayer)]
    if len(layers) != count or len(cache.layers) != count:
        raise ArgumentError(
            f"past_key_values is a {type(cache).__name__} with {len(cache.layers)} layers, "
            f"{len(layers)} of them of a ReLUFormer, and the model has {count}; leave it out, or pass an empty "
            "DynamicCache"
        )
    for layer in layers:
        if layer.config is not config and (differences := config.differences(layer.config)):
            raise ArgumentError(
                f"past_key_values was filled by another model: {differences}; leave it out, or pass an empty "
                "DynamicCache"
            )
        layer.config = config
    return layers


def _visible(mask: Tensor | None, tokens: Tensor, before: int) -> Tensor | None:
    """Returns the mask of all tokens so far, (B, before + T), True at tokens; None if nothing is hidden."""
    if mask is None:
        return None
    expected = (tokens.size(0), before + tokens.size(1))
    if mask.shape != expected:
        raise ArgumentError(
            f"attention_mask has shape {tuple(mask.shape)}; it must be (batch, tokens so far) = {expected}, 1 at "
            "tokens and 0 at padding"
        )
    mask = mask.bool()
    edges = (mask[:, 1:] & ~mask[:, :-1]).sum(-1) + mask[:, 0]
    if bool((edges > 1).any()):
        raise ArgumentError(
            "attention_mask hides a token between visible ones; give each text a row of its own, and pad on the left "
            "to generate (tokenizer.padding_side = 'left')"
        )
    return None if bool(mask.all()) else mask
