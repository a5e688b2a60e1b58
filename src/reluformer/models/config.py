"""The configuration of a model: its sizes and the rule of each of its memories."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from reluformer import rules
from reluformer.config import Config
from reluformer.errors import ReluformerError, UnknownNameError, nearest
from reluformer.rules import Rule


def _rule_from(value: Any) -> Rule:
    try:
        return rules.get(value)
    except ReluformerError as error:
        raise ValueError(str(error)) from None


class _RuleSchema:
    """Tells a JSON schema how a rule is written: a known name, the name of a plugin's rule, or a mapping."""

    def __get_pydantic_json_schema__(self, core_schema: object, handler: object) -> dict[str, Any]:
        mapping = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        return {"anyOf": [{"enum": list(rules.names())}, {"type": "string"}, mapping]}


RuleField = Annotated[Rule, BeforeValidator(_rule_from), PlainSerializer(rules.spec), _RuleSchema()]
"""A rule in a configuration: `relu`, or `{name: relu, gamma: 2.0}` with options."""

Preset = Literal["tiny", "iwslt", "base"]
Architecture = Literal["reluformer", "transformer"]
LanguagePreset = Literal["tiny", "small", "base"]
LanguageArchitecture = Literal["transformer", "fox", "reluformer", "transformer_pro", "fox_pro", "reluformer_pro"]


class ModelConfig(Config):
    """Everything that decides the shape and the mathematics of a `ReLUFormer`.

    Example:
        >>> ModelConfig(vocab_size=100, width=64, heads=2).ffn.name
        'relu_plain'
    """

    vocab_size: int = Field(gt=0, le=2**31 - 1)
    """Entries of the joint source and target vocabulary."""
    width: int = Field(default=192, gt=0, le=2**16)
    """Width of the residual stream."""
    heads: int = Field(default=4, gt=0, le=2**16)
    """Attention heads; they divide the width."""
    encoder_layers: int = Field(default=3, ge=0, le=1000)
    """Encoder blocks."""
    decoder_layers: int = Field(default=3, ge=0, le=1000)
    """Decoder blocks."""
    slots: int = Field(default=768, gt=0, le=2**22)
    """Learned slots of each feed-forward memory (the FFN's hidden width)."""

    ffn: RuleField = rules.ReluPlain()
    """Rule of the feed-forward layers."""
    encoder_attention: RuleField = rules.Relu()
    """Rule of the encoder's self-attention."""
    decoder_attention: RuleField = rules.Relu()
    """Rule of the decoder's causal self-attention."""
    cross_attention: RuleField = rules.Relu()
    """Rule of the decoder's attention to the source."""

    learn_offset: bool = False
    """Each head of attention learns a number that is added to its scores, started at 0: where
    ReLU's threshold lies. Row-wise rules, to which it makes no difference, have none."""
    norm: Literal["pre", "post"] = "pre"
    """LayerNorm before each sublayer, or after its residual sum."""
    positions: Literal["sinusoidal", "rotary", "both"] = "sinusoidal"
    """Added to the embeddings, or a rotation of queries and keys in self-attention, or both."""
    separator: int | None = Field(default=None, ge=0, le=2**31 - 1, examples=[3])
    """Id of the token between sentences, 3 in the tokenizers of this package. Given, each embedding also
    gets the sinusoids of the number of its sentence, on both sides, so that a decoder keeps its place
    in a long document. Unset: sentences are not counted."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """On embeddings and sublayer outputs, never on weights."""
    tied_embeddings: bool = True
    """One matrix for source, target and output embeddings; otherwise three."""
    ffn_bias: bool | None = None
    """Key and output bias of the feed-forward memory. Unset: as in the paper, with for
    pointwise rules (an FFN) and without for row-wise ones (a key-value memory)."""
    ffn_value_std: float | None = Field(default=None, gt=0, le=1e6, examples=[0.05])
    """Standard deviation of the learned values at the start. Unset: a read of variance one
    for pointwise rules; the plain FFN's sqrt(2 / slots) for row-wise ones, so that they
    are compared with the FFN on equal values."""
    checkpoint_activations: bool = False
    """Recompute each block in the backward pass instead of keeping its activations."""

    @model_validator(mode="before")
    @classmethod
    def _without_pad_id(cls, values: Any) -> Any:
        """Drops `pad_id`, which files of version 0.1 hold and which never had an effect."""
        return {key: value for key, value in values.items() if key != "pad_id"} if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.width % self.heads:
            small = [h for h in range(1, math.isqrt(self.width) + 1) if self.width % h == 0]
            near = min((*small, *(self.width // h for h in small)), key=lambda h: abs(h - self.heads))
            raise ValueError(
                f"heads={self.heads} does not divide width={self.width}; use heads={near} or a multiple of "
                f"{self.heads} as width"
            )
        if self.learn_offset and all(rule.shift_invariant for rule in self.rules()[1:]):
            raise ValueError(
                "learn_offset=true makes no difference to row-wise rules such as softmax; drop it, or choose a "
                "pointwise rule such as relu for one of the attentions"
            )
        if getattr(self.ffn, "learn_gamma", False):
            raise ValueError(
                "ffn: learn_gamma is a factor for each head of attention; drop it, a feed-forward memory has none"
            )
        if self.separator is not None and self.separator >= self.vocab_size:
            raise ValueError(
                f"separator={self.separator} is no token of a vocabulary of {self.vocab_size}; the tokenizers of this "
                "package use 3"
            )
        if self.positions != "sinusoidal" and (self.width // self.heads) % 2:
            raise ValueError(
                f"rotary positions need an even head width, got {self.width // self.heads}; change width or heads"
            )
        return self

    def rules(self) -> tuple[Rule, ...]:
        """Returns the rule of the feed-forward memory, then the rules of the three kinds of attention."""
        return self.ffn, self.encoder_attention, self.decoder_attention, self.cross_attention

    @classmethod
    def preset(cls, size: Preset | str, architecture: Architecture | str = "reluformer", **changes: Any) -> Self:
        """Returns one of the named sizes with one of the two architectures of the paper.

        Args:
            size: "tiny", "iwslt" or "base".
            architecture: "reluformer" has the rule `relu` in all attention, "transformer" has softmax.
            **changes: Values that replace those of the preset; `vocab_size` is required.

        Raises:
            UnknownNameError: The size or the architecture has no such name.
            ConfigError: A changed value does not fit.

        Example:
            >>> ModelConfig.preset("tiny", "transformer", vocab_size=100).cross_attention.name
            'softmax'
        """
        values = {
            **_entry(_SIZES, size, "size"),
            **_entry(_ARCHITECTURES, architecture, "architecture"),
            **changes,
        }
        return cls(**values)


class LanguageConfig(Config):
    """Everything that decides the shape and the mathematics of a `LanguageModel`.

    Example:
        >>> LanguageConfig(vocab_size=100, width=64, heads=4, key_heads=2).attention.name
        'relu_chance'
    """

    vocab_size: int = Field(gt=0, le=2**31 - 1)
    """Entries of the vocabulary."""
    width: int = Field(default=256, gt=0, le=2**16)
    """Width of the residual stream."""
    heads: int = Field(default=4, gt=0, le=2**16)
    """Heads of queries; they divide the width."""
    key_heads: int | None = Field(default=None, gt=0, le=2**16, examples=[2])
    """Heads of keys and values, which divide `heads`: consecutive heads of queries share one. Unset: `heads`."""
    layers: int = Field(default=4, ge=0, le=1000)
    """Blocks of the model."""
    slots: int = Field(default=1024, gt=0, le=2**22)
    """Learned slots of each feed-forward memory (the FFN's hidden width)."""

    attention: RuleField = rules.ReluChance()
    """Rule of the causal self-attention."""
    ffn: RuleField = rules.ReluPlain()
    """Rule of the feed-forward layers."""

    positions: Literal["rotary", "none", "forget"] = "rotary"
    """A rotation of queries and keys, nothing, or a forget gate in place of positions."""
    forget: Literal["zero", "spread", "fixed"] = "spread"
    """How the forget gate starts, where positions are "forget": at one half for all heads (as in the paper), with
    memories from 2 to 2,000 tokens spread over the heads, or so without looking at the token."""
    forget_on: Literal["scores", "weights"] = "scores"
    """Whether the log of the forget gate is added to the scores, or the gate multiplies the weights."""
    window: int | None = Field(default=None, ge=1, le=2**31 - 1, examples=[512])
    """Newest tokens that a token sees, itself included. Unset: its whole prefix."""
    qk_norm: bool = False
    """RMS norms of queries and keys in each head; `tra` wants them."""
    output_gate: bool = False
    """What a head reads is normed, and all heads are multiplied by a gate of the token."""
    shift: bool = False
    """Keys and values are mixed with those of the token before."""
    learn_offset: bool = False
    """Each head learns a number that is added to its scores. Row-wise rules have none."""

    norm: Literal["pre", "post"] = "pre"
    """LayerNorm before each sublayer, or after its residual sum."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """On embeddings and sublayer outputs, never on weights."""
    tied_embeddings: bool = True
    """One matrix for input and output embeddings."""
    ffn_bias: bool | None = None
    """Key and output bias of the feed-forward memory. Unset: with for pointwise rules, without for row-wise ones."""
    ffn_value_std: float | None = Field(default=None, gt=0, le=1e6, examples=[0.05])
    """Standard deviation of the learned values at the start. Unset: a read of variance one for pointwise rules; the
    plain FFN's sqrt(2 / slots) for row-wise ones."""
    checkpoint_activations: bool = False
    """Recompute each block in the backward pass instead of keeping its activations."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide width={self.width}; change one of them")
        if self.key_heads is not None and self.heads % self.key_heads:
            raise ValueError(
                f"key_heads={self.key_heads} does not divide heads={self.heads}; use a divisor, so that equally many "
                "heads of queries share each of them"
            )
        if self.positions == "rotary" and (self.width // self.heads) % 2:
            raise ValueError(
                f"rotary positions need an even head width, got {self.width // self.heads}; change width or heads"
            )
        if self.forget_on == "weights" and self.positions != "forget":
            raise ValueError(
                f"forget_on=weights needs a forget gate, and positions are {self.positions}; set positions: forget, or "
                "drop it"
            )
        if self.learn_offset and self.attention.shift_invariant:
            raise ValueError("learn_offset=true makes no difference to row-wise rules such as softmax; drop it")
        if getattr(self.ffn, "learn_gamma", False) or getattr(self.ffn, "learn_sink", False):
            raise ValueError(
                "ffn: what a rule learns for each head is for attention; drop it for the feed-forward memory"
            )
        return self

    def rules(self) -> tuple[Rule, ...]:
        """Returns the rule of the feed-forward memory, then that of attention."""
        return self.ffn, self.attention

    @classmethod
    def preset(
        cls, size: LanguagePreset | str, architecture: LanguageArchitecture | str = "fox", **changes: Any
    ) -> Self:
        """Returns one of the named sizes with one of the named architectures.

        Args:
            size: "tiny", "small" or "base".
            architecture: "transformer" has softmax and rotary positions, "fox" softmax and a forget gate, "reluformer"
                the rule `relu_chance` and a forget gate. "transformer_pro", "fox_pro" and "reluformer_pro" add norms
                of queries and keys, an output gate, and shifted keys and values.
            **changes: Values that replace those of the preset; `vocab_size` is required.

        Raises:
            UnknownNameError: The size or the architecture has no such name.
            ConfigError: A changed value does not fit.

        Example:
            >>> LanguageConfig.preset("tiny", "fox_pro", vocab_size=100).positions
            'forget'
        """
        values = {
            **_entry(_LANGUAGE_SIZES, size, "size"),
            **_entry(_LANGUAGE_ARCHITECTURES, architecture, "architecture"),
            **changes,
        }
        return cls(**values)


class ImageConfig(Config):
    """Everything that decides the shape and the mathematics of an `ImageModel`.

    Example:
        >>> ImageConfig(patch=2).tokens
        196
    """

    image_size: int = Field(default=28, gt=0, le=2**14)
    """Height and width of an image, in pixels."""
    channels: int = Field(default=1, gt=0, le=2**10)
    """Channels of a pixel: 1 for grey, 3 for colour."""
    classes: int = Field(default=10, gt=1, le=2**20)
    """Classes to tell apart."""
    patch: int = Field(default=4, gt=0, le=2**14)
    """Side of a square patch, which becomes a token; it divides the size of the image."""
    pooling: Literal["mean", "class"] = "mean"
    """What the output reads: the mean of all patches, or a token of its own."""
    pixel_mean: float = Field(default=0.5, ge=-1e6, le=1e6)
    """Is taken off each pixel, which lies between 0 and 1."""
    pixel_deviation: float = Field(default=0.5, gt=0, le=1e6)
    """Divides each pixel after that."""

    width: int = Field(default=64, gt=0, le=2**16)
    """Width of the residual stream."""
    heads: int = Field(default=4, gt=0, le=2**16)
    """Attention heads; they divide the width."""
    layers: int = Field(default=4, ge=0, le=1000)
    """Blocks of the model."""
    slots: int = Field(default=256, gt=0, le=2**22)
    """Learned slots of each feed-forward memory (the FFN's hidden width)."""

    attention: RuleField = rules.PointwiseSeqlen()
    """Rule of the self-attention."""
    ffn: RuleField = rules.ReluPlain()
    """Rule of the feed-forward layers."""
    qk_norm: bool = True
    """RMS norms of queries and keys in each head."""
    output_gate: bool = False
    """What a head reads is normed, and all heads are multiplied by a gate of the token."""
    learn_offset: bool = False
    """Each head learns a number that is added to its scores. Row-wise rules have none."""

    norm: Literal["pre", "post", "affine"] = "pre"
    """LayerNorm before each sublayer, or after its residual sum; `affine` stands before and does not divide by the
    deviation, so that bounds pass it without loss."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """On embeddings and sublayer outputs, never on weights."""
    ffn_bias: bool | None = None
    """Key and output bias of the feed-forward memory. Unset: with for pointwise rules, without for row-wise ones."""
    ffn_value_std: float | None = Field(default=None, gt=0, le=1e6, examples=[0.05])
    """Standard deviation of the learned values at the start. Unset: a read of variance one for pointwise rules; the
    plain FFN's sqrt(2 / slots) for row-wise ones."""
    checkpoint_activations: bool = False
    """Recompute each block in the backward pass instead of keeping its activations."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.image_size % self.patch:
            raise ValueError(
                f"patch={self.patch} does not divide image_size={self.image_size}; use a divisor, as 4 for 28"
            )
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide width={self.width}; change one of them")
        if self.learn_offset and self.attention.shift_invariant:
            raise ValueError("learn_offset=true makes no difference to row-wise rules such as softmax; drop it")
        if getattr(self.ffn, "learn_gamma", False) or getattr(self.ffn, "learn_sink", False):
            raise ValueError(
                "ffn: what a rule learns for each head is for attention; drop it for the feed-forward memory"
            )
        return self

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch) ** 2

    @property
    def tokens(self) -> int:
        """Tokens of an image: its patches, and the class token if there is one."""
        return self.patches + (self.pooling == "class")

    def rules(self) -> tuple[Rule, ...]:
        """Returns the rule of the feed-forward memory, then that of attention."""
        return self.ffn, self.attention


AnyConfig = ModelConfig | LanguageConfig | ImageConfig
"""The configuration of any model."""


_SIZES: dict[str, dict[str, Any]] = {
    # for two cores
    "tiny": dict(width=192, heads=4, encoder_layers=3, decoder_layers=3, slots=768, dropout=0.1),
    # fairseq's IWSLT setting, the likely one of the paper
    "iwslt": dict(width=512, heads=4, encoder_layers=6, decoder_layers=6, slots=1024, dropout=0.3),
    # Transformer base, for WMT
    "base": dict(width=512, heads=8, encoder_layers=6, decoder_layers=6, slots=2048, dropout=0.1),
}
_ARCHITECTURES: dict[str, dict[str, Any]] = {
    name: dict(ffn="relu_plain", encoder_attention=rule, decoder_attention=rule, cross_attention=rule)
    for name, rule in (("reluformer", "relu"), ("transformer", "softmax"))
}


_LANGUAGE_SIZES: dict[str, dict[str, Any]] = {
    # for two cores
    "tiny": dict(width=128, heads=4, layers=2, slots=512),
    "small": dict(width=256, heads=4, layers=4, slots=1024),
    "base": dict(width=768, heads=12, layers=12, slots=3072),
}
_PRO = dict(qk_norm=True, output_gate=True, shift=True)
_LANGUAGE_ARCHITECTURES: dict[str, dict[str, Any]] = {
    f"{name}{suffix}": {**values, **more}
    for name, values in (
        ("transformer", dict(attention="softmax", positions="rotary")),
        ("fox", dict(attention="softmax", positions="forget", forget="zero")),
        ("reluformer", dict(attention="relu_chance", positions="forget", forget="spread")),
    )
    for suffix, more in (("", {}), ("_pro", _PRO))
}


def _entry(table: Mapping[str, dict[str, Any]], name: str, what: str) -> dict[str, Any]:
    if name not in table:
        raise UnknownNameError(f"unknown {what} '{name}'; {nearest(name, table)}")
    return table[name]


class ModelSection(Config):
    """The section `model` of a recipe: a named size and architecture, and any key of `kind` that differs from them."""

    model_config = ConfigDict(extra="allow")
    kind: ClassVar[type[ModelConfig] | type[LanguageConfig]]
    """The class of the configuration."""
    retired: ClassVar[tuple[str, ...]] = ()
    """Keys of former versions, which are left out."""

    if TYPE_CHECKING:  # each recipe declares the two keys with the names that it knows
        size: Any
        architecture: Any

    @model_validator(mode="after")
    def _is_a_model(self) -> Self:
        changes = self.__pydantic_extra__ or {}
        for key in self.retired:
            changes.pop(key, None)
        if "vocab_size" in changes:
            raise ValueError("vocab_size comes from the tokenizer; set data.tokenizer.vocab_size")
        try:
            model = self.with_vocabulary(2**31 - 1)
            for rule in model.rules():
                rules.spec(rule)
            valid = model.model_dump(mode="json")
        except ReluformerError as error:
            raise ValueError(str(error)) from None
        changes.update({name: valid[name] for name in changes})  # as plain data, rule objects too
        return self

    def with_vocabulary(self, size: int) -> Any:
        """Returns the configuration of a model with a vocabulary of `size` entries, of the class `kind`."""
        changes: dict[str, Any] = self.__pydantic_extra__ or {}
        return self.kind.preset(self.size, self.architecture, vocab_size=size, **changes)
