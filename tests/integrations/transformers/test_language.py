"""LanguageModel as a model of transformers, and its export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("transformers", reason="needs the extra [hf]")

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DynamicCache,
    StaticCache,
    Trainer,
    TrainingArguments,
    pipeline,
)
from typer.testing import CliRunner

import reluformer as rf
from reluformer import hub, language
from reluformer.cli import app
from reluformer.errors import ArgumentError, ConfigError, StorageError
from reluformer.language.generation import NEVER
from reluformer.models import storage
from reluformer.translation.recipe import TokenizerConfig
from reluformer.translation.tokenizer import BEGIN, END, PAD, Tokenizer

SIZE: dict[str, Any] = dict(vocab_size=40, width=32, heads=4, key_heads=2, layers=2, slots=48)
VARIANTS: dict[str, dict[str, Any]] = {
    "reluformer_pro": {},
    "fox_pro": {"tied_embeddings": False},
    "transformer": {"window": 4},
    "reluformer": {"attention": {"name": "relu", "learn_gamma": True}, "learn_offset": True},
    "fox": {"attention": {"name": "softmax1", "learn_sink": True}, "forget": "spread"},
}
TEXTS = ["The house is big.", "It is old, and nobody lives there.", "<sep> and </s> are text", "ünï 語"]


def make(architecture: str = "reluformer_pro", **changes: Any) -> Any:
    torch.manual_seed(5)
    network = rf.LanguageConfig.preset("tiny", architecture, **{**SIZE, **VARIANTS[architecture], **changes})
    model = hub.ReLUFormerForCausalLM(hub.ReLUFormerLanguageConfig.from_model_config(network)).eval()
    with torch.no_grad():  # scores that matter, and texts that differ
        model.model.output_embedding.weight.mul_(3)
    return model.double()


@pytest.fixture(params=VARIANTS)
def model(request: pytest.FixtureRequest) -> Any:
    return make(request.param)


def rows(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(5, 40, shape, generator=torch.Generator().manual_seed(seed))


def padded(lengths: tuple[int, ...], side: str = "left") -> tuple[Tensor, Tensor]:
    """Rows of these lengths and their mask."""
    longest, sizes = max(lengths), torch.tensor(lengths)[:, None]
    place = torch.arange(longest)
    mask = place >= longest - sizes if side == "left" else place < sizes
    return rows(len(lengths), longest).masked_fill(~mask, PAD), mask.long()


class TestPasses:
    def test_logits_are_those_of_the_network(self, model: Any) -> None:
        text = rows(2, 9)
        expected = model.model(text).logits
        for mask in (None, torch.ones(2, 9)):
            assert torch.equal(model(text, attention_mask=mask, use_cache=False).logits, expected)
        assert torch.equal(model(text, use_cache=False, return_dict=False)[0], expected)
        torch.testing.assert_close(model(text, use_cache=False, logits_to_keep=2).logits, expected[:, -2:])

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_a_padded_row_is_read_as_alone(self, model: Any, side: str) -> None:
        lengths = (9, 4, 1)
        text, mask = padded(lengths, side)
        found = model(text, attention_mask=mask, use_cache=False).logits
        for row, length in enumerate(lengths):
            own = slice(9 - length, 9) if side == "left" else slice(0, length)
            torch.testing.assert_close(found[row, own], model(text[row : row + 1, own]).logits[0])

    @pytest.mark.parametrize("chunk", [1, 4])
    def test_a_cached_pass_is_the_full_pass(self, model: Any, chunk: int) -> None:
        text, mask = padded((9, 4, 2))
        full = model(text, attention_mask=mask, use_cache=False)
        cache, steps = None, []
        for begin in range(0, 9, chunk):
            seen = mask[:, : begin + chunk]
            out = model(text[:, begin : begin + chunk], attention_mask=seen, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
        assert cache is not None and cache.get_seq_length() == 9
        visible = mask.bool()
        torch.testing.assert_close(torch.cat(steps, 1)[visible], full.logits[visible])

    def test_the_loss_is_that_of_the_next_tokens(self) -> None:
        model, text = make(), rows(2, 9)
        labels = text.clone()
        labels[0, :3], labels[1, 8] = -100, PAD
        logits = model.model(text).logits
        each = F.cross_entropy(logits[:, :-1].flatten(0, 1), text[:, 1:].flatten(), reduction="none").view(2, 8)
        counted = (labels[:, 1:] != -100) & (labels[:, 1:] != PAD)
        out = model(text, labels=labels)
        torch.testing.assert_close(out.loss.double(), each[counted].mean(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            model(text, labels=labels, num_items_in_batch=60).loss.double(), each[counted].sum() / 60, rtol=1e-5, atol=0
        )
        assert out.past_key_values is None

    def test_gradient_checkpointing_changes_no_gradient(self) -> None:
        gradients = []
        for on in (False, True):
            model = make().train()
            if on:
                model.gradient_checkpointing_enable()
            model(rows(2, 9), labels=rows(2, 9)).loss.backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        assert all(torch.equal(found, expected) for found, expected in zip(*gradients, strict=True))


class TestGeneration:
    @pytest.mark.parametrize("settings", [{}, {"num_beams": 3, "num_return_sequences": 2}], ids=["greedy", "beam"])
    def test_the_cache_changes_nothing(self, model: Any, settings: dict[str, Any]) -> None:
        text, mask = padded((7, 5, 2))
        options = dict(attention_mask=mask, max_new_tokens=9, do_sample=False, **settings)
        found = model.generate(text, **options)
        assert torch.equal(found, model.generate(text, use_cache=False, **options))
        assert len(found.unique()) > 4
        alone = model.generate(text[1:2, 2:], **{**options, "attention_mask": None})
        count = settings.get("num_return_sequences", 1)
        for row, other in zip(found[count : 2 * count, 2:], alone, strict=True):
            ours, theirs = ([token for token in x.tolist() if token not in (PAD, END)] for x in (row, other))
            assert ours == theirs

    def test_sampling_draws_the_same_with_and_without_a_cache(self, model: Any) -> None:
        text, mask = padded((7, 5, 2))
        drawn = []
        for seed, cached in ((1, True), (1, False), (2, True)):
            torch.manual_seed(seed)
            options = dict(attention_mask=mask, do_sample=True, top_p=0.9, temperature=3.0)
            drawn.append(model.generate(text, use_cache=cached, max_new_tokens=12, **options))
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])
        assert not set(drawn[0][:, 7:].flatten().tolist()) & (set(NEVER) - {PAD})

    def test_several_texts_from_one_prompt(self, model: Any) -> None:
        torch.manual_seed(3)
        found = model.generate(rows(1, 6), do_sample=True, temperature=4.0, num_return_sequences=4, max_new_tokens=8)
        assert found.shape[0] == 4 and len(set(map(tuple, found.tolist()))) > 1

    def test_a_cache_goes_on_with_more_text(self) -> None:
        model, text = make("fox_pro"), rows(2, 8)
        first = model(text[:, :5], past_key_values=DynamicCache())
        cache = first.past_key_values
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([1, 2]))
        cache.reorder_cache(torch.tensor([1, 0]))
        found = model(text.flip(0)[:, 5:], past_key_values=cache).logits
        torch.testing.assert_close(found, model(text.flip(0)).logits[:, 5:])
        cache.reset()
        assert cache.get_seq_length() == 0

    def test_tokens_are_taken_back_unless_keys_are_shifted(self) -> None:
        model, text = make("reluformer"), rows(2, 8)
        cache = model(text[:, :7]).past_key_values
        cache.crop(-3)
        torch.testing.assert_close(model(text[:, 4:], past_key_values=cache).logits, model(text).logits[:, 4:])
        shifted = make("reluformer_pro")(text).past_key_values
        assert not shifted.is_croppable
        with pytest.raises(ArgumentError, match="cannot take back tokens"):
            shifted.crop(-1)


class TestTokenizer:
    @pytest.fixture(name="own")
    def _own(self) -> Tokenizer:
        return Tokenizer.train(TEXTS * 9, TokenizerConfig(vocab_size=320))

    def test_a_text_begins_a_document(self, own: Tokenizer, tmp_path: Path) -> None:
        hub.ReLUFormerLanguageTokenizer.of(own).save_pretrained(tmp_path)
        hub.ReLUFormerLanguageConfig.from_model_config(rf.LanguageConfig(vocab_size=320)).save_pretrained(tmp_path)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path)
        assert isinstance(tokenizer, hub.ReLUFormerLanguageTokenizer)
        for text in TEXTS:
            assert tokenizer(text)["input_ids"] == [BEGIN, *own.encode(text)]
            assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
        batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
        assert batch["input_ids"][:, -1].tolist() == [own.encode(text)[-1] for text in TEXTS]
        assert batch["attention_mask"].sum(-1).tolist() == [len(own.encode(text)) + 1 for text in TEXTS]
        assert (tmp_path / "tokenizer.json").read_text(encoding="utf-8") == own.definition


@pytest.fixture(params=["reluformer_pro", "fox_pro"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    tokenizer = Tokenizer.train(TEXTS * 9, TokenizerConfig(vocab_size=300))
    tokenizer.save(directory)
    model = make(request.param, vocab_size=tokenizer.vocab_size).float().model
    (directory / "recipe.yaml").write_text("task: language\ndata: {train: {embedded: {documents: 3}}}\n")
    storage.save(directory, model.config, model.state_dict(), tokenizer.fingerprint)
    return directory


class TestExport:
    FILES = ("config.json", "model.safetensors", "recipe.yaml", "tokenizer.json", "tokenizer.meta.json")

    def test_there_and_back_again(self, run: Path, tmp_path: Path) -> None:
        hub.export_run(run, tmp_path / "hf")
        written = hub.import_run(tmp_path / "hf", tmp_path / "back")
        assert sorted(written["files"]) == sorted(self.FILES)
        for name in self.FILES:
            assert (tmp_path / "back" / name).read_bytes() == (run / name).read_bytes(), name

    def test_the_export_is_the_run(self, run: Path, tmp_path: Path) -> None:
        hub.export_run(run, tmp_path / "hf")
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
        ours = language.load(run)
        batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
        for row, text in enumerate(TEXTS):
            ids = torch.tensor([[BEGIN, *ours.tokenizer.encode(text)]])
            expected = ours.model(ids).logits[0]
            assert torch.equal(model(ids).logits[0], expected)
            found = model(**batch).logits[row, -ids.size(1) :]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        greedy = model.generate(**tokenizer(TEXTS[0], return_tensors="pt"), max_new_tokens=20, do_sample=False)
        expected_text = ours.generate(TEXTS[0], tokens=20, temperature=0.0)
        assert tokenizer.decode(greedy[0], skip_special_tokens=True).startswith(expected_text)  # whole characters
        for opened in (hub.generator(model, tokenizer), rf.load(tmp_path / "hf"), rf.load(run)):
            assert opened.generate(TEXTS[0], tokens=20, temperature=0.0) == expected_text
            assert opened.generate("A", seed=4, tokens=9) == ours.generate("A", seed=4, tokens=9)

    def test_saved_by_transformers_it_is_the_same(self, run: Path, tmp_path: Path) -> None:
        hub.export_run(run, tmp_path / "hf")
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
        model.save_pretrained(tmp_path / "again")
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
        assert loaded.config.to_model_config() == model.model.config
        assert loaded.generation_config.suppress_tokens == list(NEVER)
        assert torch.equal(loaded(rows(1, 9)).logits, model(rows(1, 9)).logits)
        tied = model.model.config.tied_embeddings
        assert (loaded.model.output_embedding.weight is loaded.model.embedding.weight) == tied

    def test_the_pipeline_continues_a_text(self, run: Path, tmp_path: Path) -> None:
        hub.export_run(run, tmp_path / "hf")
        continued = pipeline("text-generation", model=str(tmp_path / "hf"))
        (found,) = continued(TEXTS[0], max_new_tokens=5, do_sample=False)
        expected = language.load(run).generate(TEXTS[0], tokens=5, temperature=0.0)
        assert found["generated_text"].startswith(expected) and len(expected) > len(TEXTS[0])

    def test_the_command_line(self, run: Path, tmp_path: Path) -> None:
        def invoke(*given: object) -> Any:
            return CliRunner().invoke(app, [str(part) for part in given], catch_exceptions=False)

        shown = invoke("export", run, "--to", "hf", "--out", tmp_path / "hf").stdout
        assert f"AutoModelForCausalLM.from_pretrained('{tmp_path / 'hf'}')" in shown
        options = ("The house", "--tokens", 6, "--seed", 1, "--json")
        continued = [json.loads(invoke("generate", place, *options).stdout) for place in (run, tmp_path / "hf")]
        assert continued[0] == continued[1]
        shown = invoke("export", tmp_path / "hf", "--to", "run", "--out", tmp_path / "back").stdout
        assert "reluformer generate" in shown

    def test_what_cannot_be_loaded_is_named(self, run: Path, tmp_path: Path) -> None:
        hub.export_run(run, tmp_path / "hf")
        for wrong in ({"beam": 3}, {"int8": True}):
            with pytest.raises(ArgumentError, match=r"a language model, and \w+ is for translation"):
                rf.load(run, **wrong)
        with pytest.raises(StorageError, match="use `reluformer generate`"):
            rf.loading.load_translator(tmp_path / "hf")
        config = json.loads((tmp_path / "hf" / "config.json").read_text())
        config["network"]["layers"] = 3
        (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
        with pytest.raises(StorageError, match=r"do not fit config\.json: missing keys"):
            AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
        Tokenizer.train(["other words"] * 9, TokenizerConfig(vocab_size=300)).save(tmp_path / "hf")
        with pytest.raises(StorageError, match="not the tokenizer that the model was trained with"):
            AutoTokenizer.from_pretrained(tmp_path / "hf")


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")  # of torch, where there is no accelerator
def test_the_trainer_trains_it(tmp_path: Path) -> None:
    tokenizer = hub.ReLUFormerLanguageTokenizer.of(Tokenizer.train(TEXTS * 9, TokenizerConfig(vocab_size=300)))
    model = make(vocab_size=len(tokenizer)).float()
    data = [{"input_ids": [*tokenizer(text)["input_ids"], END]} for text in TEXTS * 4]
    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=4, max_steps=8, learning_rate=1e-2, logging_steps=1,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=1, gradient_checkpointing=True,
    )  # fmt: skip
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = Trainer(model, arguments, train_dataset=data, data_collator=collator)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 8 and losses[-1] < 0.8 * losses[0]


def test_wrong_use() -> None:
    model, (text, mask) = make(), padded((6, 3))
    with pytest.raises(ArgumentError, match="input_ids are not given"):
        model(attention_mask=mask)
    with pytest.raises(ArgumentError, match="does not record attentions"):
        model(text, output_attentions=True)
    with pytest.raises(ArgumentError, match=r"attention_mask has shape \(2, 5\); it must be .* \(2, 6\)"):
        model(text, attention_mask=mask[:, 1:])
    with pytest.raises(ArgumentError, match="hides a token between visible ones"):
        model(text, attention_mask=torch.tensor([[1, 0, 1, 1, 1, 1]] * 2))
    right, seen = padded((6, 3), "right")
    with pytest.raises(ArgumentError, match="pad on the left to generate"):
        model.generate(right, attention_mask=seen, max_new_tokens=3)
    with pytest.raises(ArgumentError, match="past_key_values is a StaticCache"):
        model.generate(text, attention_mask=mask, max_new_tokens=3, cache_implementation="static")
    with pytest.raises(ArgumentError, match="another model or batch"):
        model(text[:1, :1], past_key_values=model(text).past_key_values)
    with pytest.raises(ArgumentError, match="with 2 layers, 2 of them of a ReLUFormer, and the model has 1"):
        make(layers=1)(text[:, :1], past_key_values=model(text).past_key_values)
    with pytest.raises(ArgumentError, match="past_key_values was filled by another model: shift is True there"):
        make(shift=False)(text[:, :1], past_key_values=model(text).past_key_values)
    with pytest.raises(ArgumentError, match="past_key_values is a StaticCache"):
        model(text, past_key_values=StaticCache(model.config, max_cache_len=9))
    with pytest.raises(ArgumentError, match="the vocabulary of a ReLUFormer"):
        model.resize_token_embeddings(50)
    with pytest.raises(ConfigError, match=r"from_model_config\(LanguageConfig"):
        hub.ReLUFormerForCausalLM(hub.ReLUFormerLanguageConfig())
