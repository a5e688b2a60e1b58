"""`generate` finds what our own search finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs the extra [hf]")

from transformers import LogitsProcessorList, MarianConfig, MarianMTModel, pipeline

from reluformer import hub
from reluformer.errors import ArgumentError, ConfigError, StorageError
from reluformer.models.config import ModelConfig
from reluformer.translation.beam_search import beam_search
from reluformer.translation.recipe import DecodingConfig, TokenizerConfig
from reluformer.translation.tokenizer import END, SEPARATOR, Tokenizer

SENTENCES = ["The house is big.", "It is old.", "My dog has a garden.", "We like it."]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return hub.ReLUFormerTokenizer.of(Tokenizer.train(SENTENCES * 9, TokenizerConfig(vocab_size=300)))


def make(vocabulary: int, rule: str = "relu", **config: Any) -> Any:
    """A random model that ends its sentences: the row of the end is made likelier."""
    torch.manual_seed(11)
    network = ModelConfig(
        vocab_size=vocabulary, width=32, heads=2, encoder_layers=1, decoder_layers=2, slots=32, dropout=0.0,
        tied_embeddings=False, encoder_attention=rule, decoder_attention=rule, cross_attention=rule,
    )  # fmt: skip
    model = hub.ReLUFormerForConditionalGeneration(hub.ReLUFormerConfig.from_model_config(network, **config))
    with torch.no_grad():
        model.model.output_embedding.weight.mul_(2.5)
    return model.eval()


def sources() -> tuple[Tensor, Tensor]:
    """Documents of one to three sentences, padded on the right."""
    drawn = torch.randint(5, 23, (5, 12), generator=torch.Generator().manual_seed(3))
    lengths = torch.tensor([12, 9, 6, 12, 4])
    drawn[0, 4] = drawn[0, 8] = drawn[3, 6] = SEPARATOR
    mask = torch.arange(12) < lengths[:, None]
    drawn[torch.arange(5), lengths - 1] = END
    return drawn.masked_fill(~mask, 0), mask


def generated(model: Any, config: DecodingConfig, **options: Any) -> list[list[tuple[int, ...]]]:
    tokens, mask = sources()
    outline = hub.OutlineProcessor(tokens, config)
    rows = model.generate(
        tokens, attention_mask=mask, logits_processor=LogitsProcessorList([outline]),
        max_new_tokens=outline.max_new_tokens, **hub.search_settings(config), **options,
    )  # fmt: skip
    texts = [tuple(token for token in row if token not in (0, 1, END)) for row in rows.tolist()]
    n = config.n_best
    return [texts[i : i + n] for i in range(0, len(texts), n)]


SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": dict(beam=1),
    "beam": dict(beam=4, n_best=3),
    "short": dict(beam=4, length_penalty=0.0),
    "long": dict(beam=3, length_penalty=2.0, n_best=2),
    "quick": dict(beam=3, n_best=2, stop="beam"),
    "minimum": dict(beam=3, min_length=6),
}


@pytest.mark.parametrize("rule", ["relu", "softmax"])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_translations(name: str, rule: str) -> None:
    model = make(23, rule)
    config = DecodingConfig(length_ratio=1.0, length_offset=2, **SETTINGS[name])
    expected = [[found.tokens for found in row] for row in beam_search(model.model, *sources(), config=config)]
    assert generated(model, config) == expected
    assert generated(model, config, use_cache=False) == expected
    assert len({len(row[0]) for row in expected}) > 1
    assert [row[0].count(SEPARATOR) for row in expected] == [2, 0, 0, 1, 0]


def test_sampling() -> None:
    model = make(23)
    tokens, mask = sources()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(model.generate(tokens, attention_mask=mask, do_sample=True, max_new_tokens=8))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_an_outline_of_other_sources_is_refused() -> None:
    tokens, mask = sources()
    outline = hub.OutlineProcessor(tokens[:2])
    with pytest.raises(ArgumentError, match="5 rows but 2 sources"):
        make(23).generate(
            tokens, attention_mask=mask, logits_processor=LogitsProcessorList([outline]), max_new_tokens=3
        )


@pytest.fixture
def exported(tokenizer: Any, tmp_path: Path) -> Path:
    model = make(len(tokenizer), tokenizer_sha256=tokenizer.fingerprint)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_the_pipeline_translates_as_our_translator(exported: Path) -> None:
    translate = pipeline("translation", model=str(exported))
    settings = dict(beam=2, length_ratio=1.0, length_offset=2)
    ours = hub.translator(translate.model, translate.tokenizer, check_alignment=False, **settings)
    text = " ".join(SENTENCES[:2])
    expected = [" ".join(found) for found in ours.translate_documents([SENTENCES[:2], SENTENCES[2:3]])]
    assert translate(text, **settings) == [{"translation_text": expected[0]}]
    found = translate([text, SENTENCES[2]], batch_size=2, **settings)
    assert [row[0]["translation_text"] for row in found] == expected
    assert len(translate(text, n_best=2, **settings)) == 2
    with pytest.raises(ConfigError, match="length_penalty"):
        translate(text, length_penality=1.0)


def test_the_pipeline_searches_as_the_run_was_told_to(tokenizer: Any, tmp_path: Path) -> None:
    told = dict(beam=6, n_best=5, length_ratio=1.0, length_offset=2)
    make(len(tokenizer), decoding=told, tokenizer_sha256=tokenizer.fingerprint).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    translate = pipeline("translation", model=str(tmp_path))
    ours = hub.translator(translate.model, translate.tokenizer)
    (ranked,) = ours.translate_n_best([SENTENCES[:1]], 5)
    expected = [" ".join(translation.sentences) for translation in ranked]
    assert [found["translation_text"] for found in translate(SENTENCES[0])] == expected
    assert len(translate(SENTENCES[0], n_best=6)) == 6, "as many as the run has beams"


@pytest.mark.parametrize("size", [1, 2])
def test_a_text_without_a_sentence_comes_back_as_it_is(exported: Path, size: int) -> None:
    translate = pipeline("translation", model=str(exported), beam=2, length_ratio=1.0, length_offset=2)
    found = translate(["", SENTENCES[0], " \n", "..."], batch_size=size)
    assert found == [[{"translation_text": ""}], translate(SENTENCES[0]), *translate([" \n", "..."])]
    assert [row[0]["translation_text"] for row in found[2:]] == [" \n", "..."]
    assert translate(" \n", n_best=2) == [{"translation_text": " \n"}] * 2


def test_the_task_serves_no_other_model(tokenizer: Any) -> None:
    sizes = dict(vocab_size=9, d_model=8, encoder_layers=1, decoder_layers=1, decoder_attention_heads=2, pad_token_id=0)
    other = MarianMTModel(MarianConfig(**sizes, encoder_attention_heads=2, decoder_start_token_id=0))
    with pytest.raises(ArgumentError, match="for a ReLUFormer, not for MarianMTModel"):
        pipeline("translation", model=other, tokenizer=tokenizer)


def test_a_tokenizer_of_another_model_is_refused(exported: Path) -> None:
    model = hub.ReLUFormerForConditionalGeneration.from_pretrained(exported)
    other = hub.ReLUFormerTokenizer.of(Tokenizer.train(["other words"] * 9, TokenizerConfig(vocab_size=300)))
    with pytest.raises(StorageError, match="not the tokenizer that the model was trained with"):
        hub.translator(model, other)
    with pytest.raises(StorageError, match="not the tokenizer that the model was trained with"):
        pipeline("translation", model=model, tokenizer=other)
