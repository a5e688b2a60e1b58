"""Texts in, translations out: `pipeline("translation", ...)`.

transformers 5 removed its own task of that name; `register` puts this one in its place, for
a ReLUFormer and for no other model.
"""

from __future__ import annotations

from typing import Any

from transformers import LogitsProcessorList, Pipeline

from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.generation import OutlineProcessor, check_tokenizer, search_settings, texts_of
from reluformer.integrations.transformers.modeling import ReLUFormerForConditionalGeneration
from reluformer.translation import formats
from reluformer.translation.recipe import DecodingConfig

TASK = "translation"


class TranslationPipeline(Pipeline):
    """Each text is one document, read in one piece; its sentences are found and kept apart.

    It searches as the run was told to. Options of `DecodingConfig` (beam, length_penalty, n_best, ...)
    may be given to the pipeline or to a call. For documents longer than the model was trained on,
    `hub.translator`.
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
        """The tokens of a text; one without any sentence is remembered, as nothing is to be made of it."""
        sentences, _ = formats.get("plain").parse(text)
        tokens = self.tokenizer.encode_documents([sentences], return_tensors="pt")
        return {**tokens, "untouched": None if sentences else text}

    def _forward(self, inputs: Any, **decoding: Any) -> dict[str, Any]:
        config = self._decoding_config(decoding)
        untouched = inputs.pop("untouched")
        outline = OutlineProcessor(inputs["input_ids"], config)
        rows = self.model.generate(
            **inputs,
            **search_settings(config),
            max_new_tokens=outline.max_new_tokens,
            logits_processor=LogitsProcessorList([outline]),
        )
        return {"rows": rows.unflatten(0, (inputs["input_ids"].size(0), -1)), "untouched": untouched}

    def postprocess(self, outputs: dict[str, Any]) -> list[dict[str, str]]:
        """The n best of one text, best first."""
        texts = texts_of(outputs["rows"][0].tolist(), self.tokenizer)
        if outputs["untouched"] is not None:
            texts = [outputs["untouched"]] * len(texts)
        return [{"translation_text": text} for text in texts]
