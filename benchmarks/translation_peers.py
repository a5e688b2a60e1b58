"""Other systems that translate with the weights of a softmax model: CTranslate2, transformers' generate, ONNX Runtime.

Each takes lists of tokens with their end, and returns the tokens of their translations. What is
not installed is left out and named. Marian has no norm before its sublayers, so it has random
weights of the same sizes, and its targets have a given length.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reluformer.layers import sinusoids
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.stepper import padded
from reluformer.translation.tokenizer import BEGIN, END, PAD

Tokens = Sequence[Sequence[int]]
System = Callable[[Tokens], list[list[int]]]
POSITIONS = 1024
TOGETHER = 64
"""Sentences of a batch where a system has to translate a whole file."""


def refusal(model: ReLUFormer) -> str | None:
    """Why the peers cannot have the weights of a model."""
    config = model.config
    if config.norm != "pre" or config.positions != "sinusoidal":
        return "its positions must be sinusoidal, and its norms before the sublayers"
    if any(rule.name != "softmax" for rule in config.rules()[1:]) or config.ffn.name != "relu_plain":
        return "it must have softmax in all attention, and ReLU in the feed-forward layers"
    return None


def ctranslate2_of(model: ReLUFormer, compute_type: str, threads: int, beam: int, together: int = 0) -> System:
    """CTranslate2; `together` is the size of its own batches, which its threads take in turns; 0 is a single batch."""
    import ctranslate2

    words = [f"w{number}" for number in range(model.config.vocab_size)]
    words[END], words[BEGIN] = "</s>", "<s>"
    spec = _ctranslate2_spec(model, ctranslate2)
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token = spec.config.decoder_start_token = words[BEGIN]
    spec.config.eos_token, spec.config.unk_token = words[END], words[PAD]
    spec.validate()
    spec.optimize(quantization=compute_type)
    with tempfile.TemporaryDirectory() as directory:
        spec.save(directory)
        workers, each = (threads, 1) if together else (1, threads)
        translator = ctranslate2.Translator(
            directory, compute_type=compute_type, inter_threads=workers, intra_threads=each
        )
    numbers = {word: number for number, word in enumerate(words)}

    def translate(sources: Tokens, **options: Any) -> list[list[int]]:
        rows = [[words[token] for token in row] for row in sources]
        found = translator.translate_batch(rows, beam_size=beam, max_batch_size=together, **options)
        return [[numbers[word] for word in one.hypotheses[0]] for one in found]

    return translate


def _ctranslate2_spec(model: ReLUFormer, ctranslate2: Any) -> Any:
    config = model.config
    spec = ctranslate2.specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=True,
        activation=ctranslate2.specs.Activation.RELU,
    )
    encodings = sinusoids(0, POSITIONS, config.width, torch.device("cpu"))
    if config.separator is not None:  # of a lone sentence, whose number is 0
        encodings = encodings + sinusoids(0, 1, config.width, torch.device("cpu"))
    for side, table in ((spec.encoder, model.source_embedding), (spec.decoder, model.target_embedding)):
        embeddings = side.embeddings[0] if side is spec.encoder else side.embeddings
        embeddings.weight = _array(table.weight)
        side.scale_embeddings = True
        side.position_encodings.encodings = _array(encodings)
    spec.decoder.projection.weight = _array(model.output_embedding.weight)
    spec.decoder.projection.bias = np.zeros(config.vocab_size, np.float32)
    _norm(spec.encoder.layer_norm, model.encoder_norm)
    _norm(spec.decoder.layer_norm, model.decoder_norm)
    for side, blocks in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        for layer, block in zip(side.layer, blocks, strict=True):
            own, ffn = block.attention, block.ffn
            _norm(layer.self_attention.layer_norm, own.norm)
            _linear(layer.self_attention.linear[0], own.layer.query, own.layer.key_value)
            _linear(layer.self_attention.linear[1], own.layer.output)
            if block.cross is not None:
                _norm(layer.attention.layer_norm, block.cross.norm)
                _linear(layer.attention.linear[0], block.cross.layer.query)
                _linear(layer.attention.linear[1], block.cross.layer.key_value)
                _linear(layer.attention.linear[2], block.cross.layer.output)
            _norm(layer.ffn.layer_norm, ffn.norm)
            _linear(layer.ffn.linear_0, ffn.layer.keys)
            _linear(layer.ffn.linear_1, ffn.layer.values)
    return spec


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A copy: CTranslate2 scales what it is given in place."""
    return np.array(tensor.detach().float().numpy())


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _linear(spec: Any, *layers: Any) -> None:
    spec.weight = _array(torch.cat([layer.weight for layer in layers]))
    spec.bias = _array(torch.cat([layer.bias for layer in layers]))


def generate_of(model: ReLUFormer, config: DecodingConfig) -> System:
    """`generate` of transformers with our model."""
    from reluformer import hub
    from reluformer.integrations.transformers.modeling import ReLUFormerConfig
    from reluformer.integrations.transformers.pipeline import search_settings

    wrapped = hub.ReLUFormerForConditionalGeneration(ReLUFormerConfig.from_model_config(model.config))
    wrapped.model.load_state_dict(model.state_dict())
    wrapped.eval()

    def translate(sources: Tokens) -> list[list[int]]:
        found = []
        for rows in _batches(sources):
            source, mask = padded(rows)
            attention = torch.ones_like(source) if mask is None else mask.long()
            with torch.inference_mode():
                tokens = wrapped.generate(
                    source, attention_mask=attention, max_new_tokens=2 * source.size(1) + 16, **search_settings(config)
                )
            found += [_until_end(row[1:]) for row in tokens.tolist()]
        return found

    return translate


def marian_of(model: ReLUFormer, beam: int, length: int) -> System:
    """Marian's `generate` with random weights; every target has `length` tokens."""
    from transformers import MarianConfig, MarianMTModel

    config = model.config
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.width,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            encoder_ffn_dim=config.slots,
            decoder_ffn_dim=config.slots,
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=PAD,
            decoder_start_token_id=BEGIN,
            bos_token_id=BEGIN,
            eos_token_id=END,
            forced_eos_token_id=None,
        )
    ).eval()

    def translate(sources: Tokens) -> list[list[int]]:
        found: list[list[int]] = []
        for rows in _batches(sources):
            source, mask = padded(rows)
            with torch.inference_mode():
                tokens = marian.generate(
                    source,
                    attention_mask=torch.ones_like(source) if mask is None else mask.long(),
                    num_beams=beam,
                    min_new_tokens=length,
                    max_new_tokens=length,
                    do_sample=False,
                )
            found += tokens[:, 1:].tolist()
        return found

    return translate


def _batches(sources: Tokens) -> list[Tokens]:
    """As they are, or a whole file in batches."""
    return [sources[start : start + TOGETHER] for start in range(0, len(sources), TOGETHER)]


def _until_end(row: list[int]) -> list[int]:
    return row[: row.index(END)] if END in row else row


def onnx_of(run: Path, config: DecodingConfig) -> System:
    """ONNX Runtime with an int8 export of a run, and our beam search."""
    from reluformer.integrations import onnx
    from reluformer.translation.beam_search import start_search
    from reluformer.translation.search import Outline

    with tempfile.TemporaryDirectory() as directory:
        onnx.export_run(run, Path(directory) / "int8", quantize="int8", opset=None, force=False)
        decoder = onnx.load(Path(directory) / "int8").decoder

    def translate(sources: Tokens) -> list[list[int]]:
        search = start_search(decoder, config)
        numbers = [search.add(source, Outline.of(source, config)) for source in sources]
        while not search.done:
            search.run()
        return [list(search.hypotheses(number)[0].tokens) for number in numbers]

    return translate
