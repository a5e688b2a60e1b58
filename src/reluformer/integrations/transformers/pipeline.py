"""`generate` with the settings of our beam search, the translation pipeline, a `Translator` and a `Generator`.

`generate(**search_settings(config))` ranks hypotheses as our beam search does. Both divide
the log-probability by length^length_penalty; the end token counts, the begin token does
not. `early_stopping` "never" and True correspond to our `stop` exact and beam.
`OutlineProcessor` forbids the tokens that an outline forbids. It does so after the softmax,
so it takes no probability away from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, Pipeline

from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.language_modeling import ReLUFormerForCausalLM
from reluformer.integrations.transformers.modeling import ReLUFormerForConditionalGeneration
from reluformer.integrations.transformers.tokenization import (
    ReLUFormerLanguageTokenizer,
    ReLUFormerTokenizer,
    check_fingerprint,
)
from reluformer.language import Generator
from reluformer.translation import formats
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.search import Outline, OutlineState
from reluformer.translation.translator import Translator

TASK = "translation"


class OutlineProcessor(LogitsProcessor):
    """A logits processor: as many sentences as the source has, none longer than its limit.

    Args:
        sources: The input_ids (B, S), including padding.
        config: The decoding settings; default: those of `DecodingConfig`.
        pad_id: The id of the padding token.

    Example:
        >>> import torch
        >>> outline = OutlineProcessor(torch.tensor([[7, 8, 3, 9, 2]]))  # two sentences, so a separator comes first
        >>> allowed = outline(torch.tensor([[1, 7]]), torch.zeros(1, 10))
        >>> allowed[0, 3].item(), allowed[0, 2].item()
        (0.0, -inf)
    """

    def __init__(self, sources: Tensor, config: DecodingConfig | None = None, pad_id: int = 0) -> None:
        config = config or DecodingConfig()
        rows = [[token for token in row if token != pad_id] for row in sources.tolist()]
        self.outlines = [Outline.of(row, config) for row in rows]
        self._min_length = config.min_length

    @property
    def max_new_tokens(self) -> int:
        """The maximum length of a target in tokens."""
        return max(outline.most_tokens for outline in self.outlines)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Takes input_ids (B * beams, T) with the begin token, and scores (B * beams, V)."""
        beams, rest = divmod(input_ids.size(0), len(self.outlines))
        if rest:
            raise ArgumentError(f"{input_ids.size(0)} rows but {len(self.outlines)} sources; make one for each batch")
        outlines = [outline for outline in self.outlines for _ in range(beams)]
        state = OutlineState(outlines, 0, self._min_length, input_ids.device)
        first = torch.zeros(len(outlines), 1, dtype=torch.long, device=input_ids.device)
        for tokens in input_ids[:, 1:].unbind(1):
            state.follow(first, tokens[:, None])
        allowed = scores.clone()
        state.forbid(allowed)
        return allowed


def search_settings(config: DecodingConfig) -> dict[str, Any]:
    """Returns the arguments of `generate` that are equivalent to `config`.

    Args:
        config: The decoding settings.

    Returns:
        The arguments by name. Those that depend on a batch come from its `OutlineProcessor`.

    Example:
        >>> from reluformer.translation.recipe import DecodingConfig
        >>> search_settings(DecodingConfig(beam=2))["num_beams"]
        2
    """
    return {
        "do_sample": False,
        "num_beams": config.beam,
        "num_return_sequences": config.n_best,
        "length_penalty": config.length_penalty,
        "early_stopping": config.beam > 1 and ("never" if config.stop == "exact" else True),
    }


def translator(
    model: ReLUFormerForConditionalGeneration, tokenizer: ReLUFormerTokenizer, **decoding: Any
) -> Translator:
    """Returns a `Translator`, which translates documents of any length with our own search.

    Args:
        model: A model from `from_pretrained`.
        tokenizer: The tokenizer of this model.
        **decoding: Changes of the decoding settings, as in `reluformer.load`.

    Returns:
        The translator, with the decoding settings of the model's configuration.

    Raises:
        StorageError: The tokenizer belongs to another model.

    Example:
        >>> from reluformer import hub
        >>> model = hub.ReLUFormerForConditionalGeneration.from_pretrained("exported")
        >>> tokenizer = hub.ReLUFormerTokenizer.from_pretrained("exported")
        >>> translations = hub.translator(model, tokenizer, beam=2).translate(["The lamp is new."])
        >>> len(translations)
        1
    """
    check_tokenizer(model, tokenizer)
    config = model.config.to_decoding_config().replace(**decoding)
    return Translator(model.model.eval(), tokenizer.own, config)


def generator(model: ReLUFormerForCausalLM, tokenizer: ReLUFormerLanguageTokenizer) -> Generator:
    """Returns a `Generator`, which continues a text as `reluformer generate` does.

    Args:
        model: A model from `from_pretrained`.
        tokenizer: The tokenizer of this model.

    Returns:
        The generator, on the device of the model.

    Raises:
        StorageError: The tokenizer belongs to another model.

    Example:
        >>> from reluformer import LanguageConfig, hub
        >>> from reluformer.translation.tokenizer import Tokenizer
        >>> own = Tokenizer.load("runs/demo/reluformer")
        >>> sizes = LanguageConfig(vocab_size=own.vocab_size, width=16, heads=2, layers=1, slots=32)
        >>> model = hub.ReLUFormerForCausalLM(hub.ReLUFormerLanguageConfig.from_model_config(sizes))
        >>> tokenizer = hub.ReLUFormerLanguageTokenizer.of(own)
        >>> hub.generator(model, tokenizer).generate("The lamp", tokens=4, seed=0).startswith("The lamp")
        True
    """
    check_tokenizer(model, tokenizer)
    return Generator(model.model, tokenizer.own, model.device)


def check_tokenizer(model: Any, tokenizer: Any) -> None:
    """Raises an error if the tokenizer belongs to another model."""
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    check_fingerprint(model.config.tokenizer_sha256, tokenizer, name)


def decode_rows(rows: Sequence[Sequence[int]], tokenizer: ReLUFormerTokenizer) -> list[str]:
    """Decodes generated rows; sentences are joined by a space."""
    return [" ".join(tokenizer.decode_sentences(row)) for row in rows]


class TranslationPipeline(Pipeline):
    """The pipeline behind `pipeline("translation", ...)`, for a ReLUFormer and no other model.

    transformers 5 removed its own task of that name. Each text is one document, which is
    read in one piece; its sentences are split and translated one to one. The decoding
    settings are those of the run. Options of `DecodingConfig` (beam, length_penalty, n_best,
    ...) may be given to the pipeline or to a call. Use `hub.translator` for documents that
    are longer than those of the training.

    Args:
        model: A model from `from_pretrained`; `pipeline` loads it from the name of its directory.

    Raises:
        ArgumentError: The model is no ReLUFormer.
        StorageError: The tokenizer belongs to another model.

    Example:
        >>> from transformers import pipeline
        >>> from reluformer import hub
        >>> hub.register()
        >>> translate = pipeline("translation", model="exported", beam=2)
        >>> [found] = translate("The lamp is new. It is big.")
        >>> list(found)
        ['translation_text']
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(self, model: Any, *args: Any, **options: Any) -> None:
        if not isinstance(model, ReLUFormerForConditionalGeneration):
            raise ArgumentError(
                f"transformers removed its task '{TASK}', and reluformer.hub brings it back for a ReLUFormer, not for "
                f"{type(model).__name__}; call that model's generate()"
            )
        super().__init__(model, *args, **options)
        check_tokenizer(self.model, self.tokenizer)

    def _sanitize_parameters(self, **decoding: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        self._decoding_config(decoding)  # an error names the nearest option
        return {}, decoding, {}

    def _decoding_config(self, decoding: dict[str, Any]) -> DecodingConfig:
        config: DecodingConfig = self.model.config.to_decoding_config()
        return config.replace(**decoding)

    def preprocess(self, text: str) -> dict[str, Any]:
        """Tokenizes a text; a text without any sentence is passed on and returned unchanged."""
        sentences, _ = formats.get("plain").parse(text)
        tokens = self.tokenizer.encode_documents([sentences], return_tensors="pt")
        return {**tokens, "unchanged": None if sentences else text}

    def _forward(self, inputs: Any, **decoding: Any) -> dict[str, Any]:
        config = self._decoding_config(decoding)
        unchanged = inputs.pop("unchanged")
        outline = OutlineProcessor(inputs["input_ids"], config)
        rows = self.model.generate(
            **inputs,
            **search_settings(config),
            max_new_tokens=outline.max_new_tokens,
            logits_processor=LogitsProcessorList([outline]),
        )
        return {"rows": rows.unflatten(0, (inputs["input_ids"].size(0), -1)), "unchanged": unchanged}

    def postprocess(self, outputs: dict[str, Any]) -> list[dict[str, str]]:
        """Returns the n-best translations of one text, best first."""
        texts = decode_rows(outputs["rows"][0].tolist(), self.tokenizer)
        if outputs["unchanged"] is not None:
            texts = [outputs["unchanged"]] * len(texts)
        return [{"translation_text": text} for text in texts]
