"""ReLUFormer as a model of transformers: `generate`, `Trainer`, `save_pretrained`, `from_pretrained`.

The model holds one `reluformer.ReLUFormer`, and the configuration one `ModelConfig`. The cache
is transformers' own (`EncoderDecoderCache`), so all its ways of generation work.

Shapes: B rows, S source tokens, T target tokens, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.pretrained import (
    IGNORED_LABEL,
    NetworkConfig,
    NetworkModel,
    refuse_recording,
)
from reluformer.layers import SlotCache, TokenSlots
from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import DecoderState, Encoded, ReLUFormer
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.tokenizer import BEGIN


class ReLUFormerConfig(NetworkConfig):
    """The configuration of a ReLUFormer in transformers.

    `network` holds the values of a `ModelConfig`, which describes the whole network.

    Example:
        >>> from reluformer import ModelConfig
        >>> config = ReLUFormerConfig.from_model_config(ModelConfig(vocab_size=100, width=16, heads=2))
        >>> config.vocab_size, config.hidden_size
        (100, 16)
    """

    model_type: ClassVar[str] = "reluformer"
    schema = ModelConfig

    decoding: dict[str, Any] | None = None
    """The same as in a run's recipe, with the window that the model was trained on."""
    source_lang: str | None = None
    target_lang: str | None = None
    is_encoder_decoder: bool = True
    decoder_start_token_id: int | None = BEGIN

    @classmethod
    def from_model_config(cls, config: ModelConfig, **values: Any) -> ReLUFormerConfig:
        """Creates the configuration of a network; `values` are further fields of this class."""
        if config.separator is not None:  # the cache of transformers holds slots, and not the number of sentences
            values = {"use_cache": False, **values}
        made: ReLUFormerConfig = super().from_model_config(config, **values)
        return made

    def to_decoding_config(self) -> DecodingConfig:
        """Returns the decoding settings of the run, or the defaults."""
        return DecodingConfig.parse(self.decoding or {}, where="config.json: decoding")

    @property
    def num_hidden_layers(self) -> int:
        """The number of decoder layers, whose slots are cached."""
        return int(self.to_model_config().decoder_layers)


class ReLUFormerForConditionalGeneration(NetworkModel):
    """A ReLUFormer that translates a source into a target; `model` is the network itself.

    Args:
        config: The configuration; `from_pretrained` reads it from the directory of an export.

    Example:
        >>> import torch
        >>> from reluformer import ModelConfig, hub
        >>> config = hub.ReLUFormerConfig.from_model_config(ModelConfig(vocab_size=50, width=16, heads=2, slots=32))
        >>> model = hub.ReLUFormerForConditionalGeneration(config)
        >>> found = model(input_ids=torch.tensor([[7, 8, 2]]), labels=torch.tensor([[9, 2]]))
        >>> found.logits.shape, found.loss.shape
        (torch.Size([1, 2, 50]), torch.Size([]))
    """

    config_class = ReLUFormerConfig
    model: ReLUFormer
    _tied_weights_keys: ClassVar[dict[str, str]] = {
        "model.target_embedding.weight": "model.source_embedding.weight",
        "model.output_embedding.weight": "model.source_embedding.weight",
    }

    def __init__(self, config: ReLUFormerConfig) -> None:
        super().__init__(config)
        self.model = ReLUFormer(config.to_model_config())
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Seq2SeqLMOutput | tuple[Tensor, ...]:
        """Computes the logits (B, T, V) after each of `decoder_input_ids`, and the loss of `labels`.

        Both sides are padded on the right. Labels of -100 or of the padding token do not count.

        Args:
            input_ids: (B, S), the tokens of the source.
            attention_mask: (B, S), 0 at padding. Default: every padding token is hidden.
            decoder_input_ids: (B, T), the target so far. Default: the begin token, then `labels` but the last.
            decoder_attention_mask: (B, tokens so far), 0 at padding.
            encoder_outputs: The states (B, S, D) of the source, instead of `input_ids`.
            past_key_values: The cache of earlier calls.
            labels: (B, T), the tokens to be learned.
            use_cache: Whether to fill a cache. Default: as in the configuration, but not in training.
            num_items_in_batch: What the loss is divided by, if several batches make one update.
            output_attentions: Not supported.
            output_hidden_states: Not supported.
            return_dict: If False, the result is a tuple.

        Returns:
            The logits (B, T, V), the loss, the cache, and the states of the source (B, S, D).

        Raises:
            ArgumentError: An argument is missing, does not fit, or is not supported.
        """
        refuse_recording(output_attentions, output_hidden_states)
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if decoder_input_ids is None:
            raise ArgumentError("neither decoder_input_ids nor labels are given; pass one of them, or call generate()")
        _check_padding("decoder_attention_mask", decoder_attention_mask, past_key_values)
        encoded = self._encoded(input_ids, attention_mask, encoder_outputs)
        caches = self.config.use_cache and labels is None and not self.training if use_cache is None else use_cache
        if caches and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        if past_key_values is None:
            states, _ = self.model.decode(decoder_input_ids, encoded)
        else:
            states = self.model.step(decoder_input_ids, self._decoder_state(encoded, past_key_values))
        logits = self.model.logits(states)
        output = Seq2SeqLMOutput(
            loss=None if labels is None else self.cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            past_key_values=past_key_values if caches else None,
            encoder_last_hidden_state=encoded.states,
        )
        return output.to_tuple() if return_dict is False else output

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Returns the decoder input (B, T): the begin token, then all labels but the last."""
        begin = labels.new_full((labels.size(0), 1), self.config.decoder_start_token_id)
        before = labels[:, :-1]
        return torch.cat([begin, before.masked_fill(before == IGNORED_LABEL, self.config.pad_token_id)], 1)

    def get_encoder(self, *args: Any, **options: Any) -> SourceEncoder:
        return SourceEncoder(self)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.source_embedding

    def get_output_embeddings(self) -> nn.Embedding:
        return self.model.output_embedding

    def _encoded(self, tokens: Tensor | None, mask: Tensor | None, outputs: Any) -> Encoded:
        if outputs is not None:
            return Encoded(outputs[0], _source_mask(mask), {})
        if tokens is None:
            raise ArgumentError("neither input_ids nor encoder_outputs are given; pass the tokens of the source")
        if mask is None:
            mask = tokens != self.config.pad_token_id
        return self.model.encode(tokens, _source_mask(mask))

    def _decoder_state(self, encoded: Encoded, cache: EncoderDecoderCache) -> DecoderState:
        """Returns the state that `ReLUFormer.step` continues from, stored in transformers' cache."""
        if not isinstance(cache, EncoderDecoderCache):
            raise ArgumentError(f"past_key_values is a {type(cache).__name__}; pass an EncoderDecoderCache")
        if self.model.config.separator is not None:
            raise ArgumentError(
                "this model counts sentences, and the cache of transformers does not; call generate(use_cache=False), "
                "or translate with reluformer.load, which counts and caches"
            )
        sources = []
        for layer, block in enumerate(self.model._decoder_blocks()):
            if not cache.is_updated.get(layer):
                made = block.source_slots(encoded.states, encoded.mask)
                cache.cross_attention_cache.update(made.keys, made.values, layer)
                cache.is_updated[layer] = True
            kept = cache.cross_attention_cache.layers[layer]
            sources.append(TokenSlots(kept.keys, kept.values, encoded.mask))
        state = DecoderState(sources)
        state.length = int(cache.get_seq_length())
        state.caches = [LayerCache(cache, layer, state) for layer in range(len(sources))]
        return state


class SourceEncoder:
    """The encoder as `generate` calls it."""

    main_input_name = "input_ids"

    def __init__(self, model: ReLUFormerForConditionalGeneration) -> None:
        self._model = model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutput:
        """Encodes tokens (B, S) as states (B, S, D)."""
        refuse_recording(output_attentions, output_hidden_states)
        return BaseModelOutput(last_hidden_state=self._model._encoded(input_ids, attention_mask, None).states)

    __call__ = forward


class LayerCache(SlotCache):
    """The slots of one decoder layer, stored in transformers' cache."""

    def __init__(self, cache: EncoderDecoderCache, layer: int, state: DecoderState) -> None:
        super().__init__()
        self._cache, self._layer, self._state = cache.self_attention_cache, layer, state

    def append(self, new: TokenSlots) -> TokenSlots:
        keys, values = self._cache.update(new.keys, new.values, self._layer)
        if keys.size(2) != self._state.length + new.keys.size(2):
            raise ArgumentError(
                f"the cache ({type(self._cache).__name__}) gives {keys.size(2)} slots after "
                f"{self._state.length + new.keys.size(2)} tokens; use the dynamic cache, which is the default"
            )
        return TokenSlots(keys, values)


def _source_mask(mask: Tensor | None) -> Tensor | None:
    """Returns (B, S), True at tokens, or None if nothing is padded."""
    if mask is None:
        return None
    mask = mask.bool()
    _check_padding("attention_mask", mask, None)
    return None if bool(mask.all()) else mask


def _check_padding(name: str, mask: Tensor | None, cache: Any) -> None:
    if mask is None:
        return
    if mask.ndim != 2:
        raise ArgumentError(
            f"{name} has shape {tuple(mask.shape)}; a ReLUFormer takes (batch, length), and with generate() the "
            "dynamic cache, which is the default"
        )
    visible = mask.bool()
    grown = cache is not None and cache.get_seq_length() > 0
    if bool((visible[:, 1:] & ~visible[:, :-1]).any()) or (grown and not bool(visible.all())):
        raise ArgumentError(
            f"{name} of shape {tuple(mask.shape)} hides a token before a visible one; positions count from the left, "
            "so pad on the right (tokenizer.padding_side = 'right')"
        )
