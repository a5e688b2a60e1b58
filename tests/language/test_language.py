"""The task 'language': corpora, training with exact resume, measures, generation, and the command line."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import reluformer as rf
from reluformer import language
from reluformer.cli import app
from reluformer.config import load_yaml
from reluformer.errors import ArgumentError, ConfigError, DataError, StorageError
from reluformer.kernels import cpu
from reluformer.language.corpus import LanguageCorpus, documents, prepare
from reluformer.language.generation import draw
from reluformer.language.recipe import LanguageDataConfig, LanguageRecipe, TextSource
from reluformer.language.scoring import evaluate, needle
from reluformer.language.task import LanguageBatches, batch_of
from reluformer.training.progress import SilentProgress
from reluformer.translation.tokenizer import BEGIN, END

ROOT = Path(__file__).parents[2]


def recipe(**training: Any) -> dict[str, Any]:
    options = {"updates": 6, "tokens_per_batch": 256, "warmup": 2, "lr": 3e-3, "validate_every": 3, **training}
    return {
        "task": "language",
        "data": {
            "train": {"embedded": {"documents": 40}},
            "valid": {"embedded": {"documents": 10}},
            "test": {"embedded": {"documents": 12}},
            "tokenizer": {"vocab_size": 400},
            "context": 32,
        },
        "model": {"size": "tiny", "architecture": "reluformer_pro", "width": 32, "slots": 32, "key_heads": 2},
        "training": options,
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("language") / "run"
    result = rf.train(recipe(), directory, progress=SilentProgress())
    assert result.status == "finished"
    return directory


class TestCorpora:
    def test_text_files(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("One line.\nAnother.\n\n\nSecond document.\n", encoding="utf-8")
        found = list(documents([TextSource(path=tmp_path / "a.txt")], "train"))
        assert found == ["One line.\nAnother.", "Second document."]
        by_line = TextSource(path=tmp_path / "a.txt", documents="line")
        assert list(documents([by_line], "train")) == ["One line.", "Another.", "Second document."]
        whole = TextSource(path=tmp_path / "a.txt", documents="file")
        assert list(documents([whole], "train")) == ["One line.\nAnother.\n\n\nSecond document."]

    def test_json_lines(self, tmp_path: Path) -> None:
        lines = [{"text": "A."}, {"text": ["B.", "C."]}]
        with gzip.open(tmp_path / "a.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(map(json.dumps, lines)) + "\n")
        assert list(documents([TextSource(path=tmp_path / "a.jsonl.gz")], "train")) == ["A.", "B. C."]
        with pytest.raises(DataError, match=r"a.jsonl.gz:1: has no text under 'src' \(it has text\)"):
            list(documents([TextSource(path=tmp_path / "a.jsonl.gz", field="src")], "train"))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"{", "is not JSON"),
            (b'{"text": 3}', "has no text"),
            (b"\xff", "not UTF-8"),
            (b'{"text": "\\ud800"}', "half of a surrogate"),
        ],
    )
    def test_bad_lines_have_their_place(self, content: bytes, message: str, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_bytes(b'{"text": "good"}\n' + content + b"\n")
        with pytest.raises(DataError, match=f"a.jsonl:2: {message}"):
            list(documents([TextSource(path=tmp_path / "a.jsonl")], "train"))

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"gone.txt: no such file"):
            list(documents([TextSource(path=tmp_path / "gone.txt")], "train"))

    def test_a_stream_gives_back_its_documents(self, tmp_path: Path) -> None:
        config = LanguageDataConfig(train={"embedded": {"documents": 5}}, tokenizer={"vocab_size": 400}, context=8)
        summary = prepare(config, tmp_path / "data")
        corpus = LanguageCorpus(tmp_path / "data")
        stream = corpus.stream("train")
        ends = np.flatnonzero(stream == END)
        starts = np.flatnonzero(stream == BEGIN)
        texts = [corpus.tokenizer.decode(stream[a + 1 : b].tolist()) for a, b in zip(starts, ends, strict=True)]
        assert texts == list(documents(config.train, "train"))
        assert summary["splits"]["train"]["tokens"] == len(stream)
        assert prepare(config, tmp_path / "data") == summary
        rows = corpus.rows("train", 8)
        assert rows.shape == ((len(stream) - 1) // 8, 9) and rows[1, 0] == rows[0, 8]
        with pytest.raises(DataError, match=r"a row takes 100,001; lower data.context"):
            corpus.rows("train", 100_000)
        with pytest.raises(DataError, match="no valid split"):
            corpus.rows("valid", 8)

    def test_a_damaged_or_packed_file_is_read_within_limits(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        packed = bytearray(gzip.compress(b"A line of text.\n" * 1000))
        packed[30] ^= 0xFF
        (tmp_path / "a.txt.gz").write_bytes(packed)
        with pytest.raises(DataError, match=r"a\.txt\.gz: cannot be read after line 0"):
            list(documents([TextSource(path=tmp_path / "a.txt.gz")], "train"))
        monkeypatch.setattr("reluformer.language.corpus._MOST_CHARACTERS", 100)
        (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfShort.\n" + b"x" * 101)
        found = documents([TextSource(path=tmp_path / "b.txt", documents="line")], "train")
        assert next(found) == "Short."
        with pytest.raises(DataError, match=r"b\.txt:2: a line of more than 100 bytes"):
            next(found)

    @pytest.mark.parametrize("damage", ["train.tokens", "language.json", "tokenizer.json"])
    def test_a_damaged_corpus_is_refused_and_prepared_again(self, damage: str, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("The cat ran home.\n\n" * 50, encoding="utf-8")
        config = LanguageDataConfig(train={"path": tmp_path / "a.txt"}, tokenizer={"vocab_size": 300})
        data = tmp_path / "data"
        whole = prepare(config, data)
        stream = LanguageCorpus(data).stream("train").copy()

        def flip() -> None:
            content = bytearray((data / damage).read_bytes())
            content[len(content) // 2] ^= 1
            (data / damage).write_bytes(content)

        flip()
        with pytest.raises(StorageError, match=r"damaged"):
            (LanguageCorpus(data).stream("train"), LanguageCorpus(data).tokenizer)
        assert prepare(config, data) == whole
        assert np.array_equal(LanguageCorpus(data).stream("train"), stream)
        flip()
        (tmp_path / "a.txt").unlink()
        with pytest.raises((StorageError, DataError), match=r"damaged|no such file"):
            prepare(config, data)

    @pytest.mark.parametrize("splits", [None, [], {"train": {}}, {"train": {"tokens": "9"}}, {"train": 3}])
    def test_a_summary_without_its_figures_is_refused(self, splits: Any, tmp_path: Path) -> None:
        prepare(LanguageDataConfig(train={"embedded": {"documents": 5}}, tokenizer={"vocab_size": 400}), tmp_path)
        summary = json.loads((tmp_path / "language.json").read_text(encoding="utf-8"))
        (tmp_path / "language.json").write_text(json.dumps({**summary, "splits": splits}), encoding="utf-8")
        with pytest.raises(StorageError, match=r"language.json: damaged"):
            LanguageCorpus(tmp_path)

    def test_a_changed_file_is_prepared_again_and_a_missing_one_is_not(self, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_text("One.\n\nTwo.\n", encoding="utf-8")
        config = LanguageDataConfig(train={"path": path}, tokenizer={"vocab_size": 300})
        assert prepare(config, tmp_path / "data")["splits"]["train"]["documents"] == 2
        path.write_text("One.\n\nTwo.\n\nThree.\n", encoding="utf-8")
        found = prepare(config, tmp_path / "data")
        assert found["splits"]["train"]["documents"] == 3
        path.unlink()
        assert prepare(config, tmp_path / "data") == found
        (tmp_path / "data" / "train.tokens").write_bytes(b"")
        with pytest.raises(StorageError, match=r"train\.tokens: damaged.* not there any more; copy .*data again"):
            prepare(config, tmp_path / "data")

    def test_other_files_in_the_directory_are_kept(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("precious", encoding="utf-8")
        prepare(LanguageDataConfig(train={"embedded": {"documents": 5}}, tokenizer={"vocab_size": 400}), tmp_path)
        assert (tmp_path / "thesis.txt").read_text(encoding="utf-8") == "precious"
        assert LanguageCorpus(tmp_path).has("train")

    def test_a_shortened_stream_is_refused(self, tmp_path: Path) -> None:
        config = LanguageDataConfig(train={"embedded": {"documents": 5}}, tokenizer={"vocab_size": 400})
        prepare(config, tmp_path / "data")
        with (tmp_path / "data" / "train.tokens").open("r+b") as file:
            file.truncate(40)
        with pytest.raises(StorageError, match="damaged, or changed"):
            LanguageCorpus(tmp_path / "data").stream("train")


class TestBatches:
    ROWS = np.arange(20 * 9, dtype=np.int32).reshape(20, 9) + 10

    def test_an_epoch_shows_every_row_once_and_processes_share_it(self) -> None:
        config = LanguageRecipe(data={"train": {"embedded": {}}, "context": 8}, training={"tokens_per_batch": 24})
        alone = LanguageBatches(self.ROWS, config)
        assert alone.updates_per_epoch == 7
        seen = torch.cat([alone.batches(step)[0].tokens[:, 0] for step in range(1, 8)])
        assert sorted(seen.tolist()) == self.ROWS[:, 0].tolist()
        shares = [LanguageBatches(self.ROWS, config, rank, 2).batches(2)[0].tokens[:, 0].tolist() for rank in (0, 1)]
        assert len(set(shares[0]) | set(shares[1])) == 6
        again = LanguageBatches(self.ROWS, config)
        assert torch.equal(again.batches(5)[0].tokens, alone.batches(5)[0].tokens)

    def test_packed_rows_begin_where_documents_do(self) -> None:
        rows = self.ROWS[:2].copy()
        rows[0, 3] = rows[1, 0] = BEGIN
        batch = batch_of(rows, packed=True)
        assert batch.tokens.shape == (1, 16)
        assert batch.offsets is not None and batch.offsets.tolist() == [0, 3, 8, 16]


class TestTraining:
    def test_it_learns_and_keeps_the_best_model(self, run: Path) -> None:
        losses = [event["loss"] for event in rf.training.run.RunDirectory(run).log.events("valid")]
        assert losses[-1] < losses[0] < math.log(400) + 0.5
        assert (run / "best" / "model.safetensors").is_file()

    def test_a_resumed_run_is_the_same_bit_for_bit(self, run: Path, tmp_path: Path) -> None:
        rf.train(recipe(updates=3, checkpoint_every=3), tmp_path / "run", progress=SilentProgress())
        rf.train(recipe(), tmp_path / "run", progress=SilentProgress())
        assert (tmp_path / "run/model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()

    def test_packed_documents_and_other_rules_train(self, tmp_path: Path) -> None:
        values = recipe(updates=2)
        values["data"]["packed"] = True
        values["model"] |= {"architecture": "fox", "attention": {"name": "softmax1", "learn_sink": True}}
        assert rf.train(values, tmp_path / "run", progress=SilentProgress()).status == "finished"

    def test_recipes_that_do_not_fit(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="unknown task 'langauge'; did you mean 'language'"):
            rf.train({"task": "langauge"}, tmp_path)
        with pytest.raises(ConfigError, match=r"holds no row of data.context=512"):
            LanguageRecipe(data={"train": {"embedded": {}}}, training={"tokens_per_batch": 256})
        with pytest.raises(ConfigError, match="key_heads=3 does not divide heads=4"):
            LanguageRecipe(data={"train": {"embedded": {}}}, model={"key_heads": 3})
        with pytest.raises(ConfigError, match="exactly one of 'path' and 'embedded'"):
            LanguageRecipe(data={"train": {}})
        with pytest.raises(ConfigError, match="add format: text or jsonl"):
            LanguageRecipe(data={"train": {"path": "text.csv"}})

    def test_the_recipe_in_configs_is_valid(self) -> None:
        found = load_yaml(LanguageRecipe, ROOT / "configs/language/europarl.yaml")
        with torch.device("meta"):
            model = rf.LanguageModel(found.model_config_for(8000))
        assert (len(model.decoder), model.config.width, found.data.context) == (4, 256, 512)


class TestMeasures:
    def test_the_loss_is_that_of_the_whole_rows(self, run: Path) -> None:
        model, corpus = language.load(run).model, LanguageCorpus(run / "data")
        scores = evaluate(model, corpus, "test", 32)
        rows = torch.from_numpy(np.array(corpus.rows("test", 32), dtype=np.int64))
        with torch.no_grad():
            logits = model(rows[:, :-1]).logits
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
        assert scores.loss == pytest.approx(float(losses.mean()), rel=1e-5)
        assert scores.by_position["4-7"] == pytest.approx(float(losses[:, 4:8].mean()), rel=1e-5)
        assert scores.perplexity == pytest.approx(math.exp(scores.loss))
        assert 0 < scores.zero_fraction < 1 and scores.tokens == rows[:, 1:].numel()
        assert scores.skipped_share == 0  # short rows
        with pytest.raises(ArgumentError, match="context must be at least 1"):
            evaluate(model, corpus, "test", 0)

    def test_the_share_of_pairs_that_a_gate_lets_the_kernel_skip(self, run: Path) -> None:
        if reason := cpu.unavailable():
            pytest.skip(reason)
        model, corpus = language.load(run).model, LanguageCorpus(run / "data")
        for name, parameter in model.named_parameters():
            if name.endswith("forget_bias"):
                parameter.data.fill_(-5.0)  # every token forgets nearly all
        found = evaluate(model, corpus, "test", 400, 2)
        assert found.skipped_share is not None and 0.2 < found.skipped_share < 1
        assert found.to_dict()["skipped_share"] == found.skipped_share
        for changes in ({"positions": "rotary"}, {"forget_on": "weights"}):
            other = rf.LanguageModel(model.config.replace(**changes))
            assert evaluate(other, corpus, "test", 32, 1).skipped_share is None
        windowed = rf.LanguageModel(model.config.replace(window=300))
        assert evaluate(windowed, corpus, "test", 400, 1).skipped_share == 0  # the kernel reads no windows

    def test_a_needle_is_found_by_a_model_that_repeats_and_by_no_other(self, run: Path) -> None:
        model, corpus = language.load(run).model, LanguageCorpus(run / "data")
        rows = corpus.rows("test", 63)

        class Repeater:
            """Predicts the token that followed the last occurrence of the newest one."""

            config = model.config
            seen = torch.zeros(len(rows), 0, dtype=torch.long)

            def eval(self) -> None: ...

            def start(self) -> None: ...

            def step(self, tokens: torch.Tensor, state: None) -> torch.Tensor:
                self.seen = torch.cat([self.seen, tokens], dim=1)
                logits = torch.zeros(*tokens.shape, model.config.vocab_size)
                for i, row in enumerate(self.seen.tolist()):
                    places = [j for j in range(len(row) - 1) if row[j] == row[-1]]
                    logits[i, -1, row[places[-1] + 1] if places else 0] = 1
                return logits

            def logits(self, states: torch.Tensor) -> torch.Tensor:
                return states

        assert needle(Repeater(), rows, 64, depth=0.5) > 0.6  # type: ignore[arg-type]
        assert needle(model, rows, 64) == 0
        with pytest.raises(ArgumentError, match="does not fit into 10 tokens"):
            needle(model, rows, 10)


class TestGeneration:
    def test_the_same_seed_draws_the_same_text(self, run: Path) -> None:
        generator = language.load(run)
        first, second, other = (generator.generate("The", tokens=20, seed=seed) for seed in (3, 3, 4))
        assert first == second != other and first.startswith("The")
        assert "".join(generator.stream("The", tokens=20, seed=3)) == first[3:]

    def test_temperature_0_takes_the_most_likely_token(self, run: Path) -> None:
        generator = language.load(run)
        ids = [BEGIN, *generator.tokenizer.encode("The")]
        with torch.no_grad():
            for _ in range(5):
                ids.append(int(draw(generator.model(torch.tensor([ids])).logits[0, -1], 0, 1, torch.Generator())))
        assert generator.generate("The", tokens=5, temperature=0) == generator.tokenizer.decode(ids)

    def test_top_p_leaves_the_rest_out(self) -> None:
        logits = torch.tensor([0.0, 0, 0, 0, 0, 2.0, 1.0, -1.0])
        random = torch.Generator().manual_seed(0)
        assert {draw(logits, 1.0, 0.5, random) for _ in range(50)} == {5}
        assert {draw(logits, 1.0, 1.0, random) for _ in range(300)} == {2, 5, 6, 7}

    def test_wrong_options(self, run: Path) -> None:
        generator = language.load(run)
        for options in ({"tokens": 0}, {"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}):
            with pytest.raises(ArgumentError, match="tokens must be at least 1"):
                generator.generate("The", **options)
        for number in (math.nan, math.inf):
            with pytest.raises(ArgumentError, match="tokens must be at least 1"):
                generator.generate("The", temperature=number)
        with pytest.raises(ArgumentError, match="seed=-1: must be between 0"):
            generator.generate("The", seed=-1)
        with pytest.raises(ArgumentError, match="no UTF-8"):
            generator.generate("The \udcff")

    @pytest.mark.parametrize("temperature", [1e-320, 1e-40, 1e38, 1e300])
    def test_extreme_temperatures(self, temperature: float) -> None:
        logits = torch.tensor([0.0, 0, 0, 0, 0, 2.0, 1.0, -1.0])
        random = torch.Generator().manual_seed(0)
        drawn = {draw(logits, temperature, 1.0, random) for _ in range(300)}
        assert drawn == ({5} if temperature < 1 else {2, 5, 6, 7})

    def test_predictions_that_are_no_numbers_are_refused(self) -> None:
        with pytest.raises(StorageError, match="predicts NaN or infinity"):
            draw(torch.tensor([0.0, 0, 0, 0, 0, math.nan]), 1.0, 1.0, torch.Generator())

    @pytest.mark.parametrize("text", ["A cat.  Two  spaces.", " é😀 x\n\n 😀😀", "  ", "ünïcödé"])
    def test_pieces_add_up_to_the_text(self, text: str, run: Path) -> None:
        generator = language.load(run)
        ids = [*generator.tokenizer.encode(text), END]

        class Parrot:
            """Predicts the tokens of the text one after the other."""

            config = generator.model.config
            left = iter(ids)

            def eval(self) -> Any:
                return self

            def start(self) -> None: ...

            def step(self, tokens: torch.Tensor, state: None) -> torch.Tensor:
                return torch.nn.functional.one_hot(torch.tensor([[next(self.left, END)]]), self.config.vocab_size)

            def logits(self, states: torch.Tensor) -> torch.Tensor:
                return states

        parrot = language.Generator(Parrot(), generator.tokenizer)  # type: ignore[arg-type]
        assert parrot.generate(tokens=len(ids), temperature=0) == generator.tokenizer.decode(ids) == text

    def test_a_translation_model_is_refused(self, tmp_path: Path) -> None:
        rf.ReLUFormer(rf.ModelConfig(vocab_size=40, width=32, slots=16)).save(tmp_path)
        with pytest.raises(StorageError, match="encoder_decoder, not language_model"):
            language.load(tmp_path)


class TestCommandLine:
    def test_evaluate_prints_perplexity_and_loss_by_position(self, run: Path) -> None:
        shown = CliRunner().invoke(app, ["evaluate", str(run)])
        assert shown.exit_code == 0 and "perplexity" in shown.stdout and "after 16-31" in shown.stdout
        as_json = CliRunner().invoke(app, ["evaluate", str(run), "--json", "--limit", "2"])
        scores = json.loads(as_json.stdout)["scores"]
        assert [score["context"] for score in scores] == [32, 64, 128]
        assert [score["skipped_share"] for score in scores] == [0, 0, 0] and "skipped by the gate" in shown.stdout
        assert scores[0]["rows"] == 2 and (run / "evaluation" / "test.json").is_file()

    @pytest.mark.parametrize("option", ["--beam=2", "--int8", "--sentence-level", "--device=cuda"])
    def test_evaluate_refuses_what_is_for_translation(self, option: str, run: Path) -> None:
        result = CliRunner().invoke(app, ["evaluate", str(run), option])
        assert isinstance(result.exception, ArgumentError) and "no translations" in str(result.exception)

    def test_inspect_shows_the_history(self, run: Path) -> None:
        result = CliRunner().invoke(app, ["inspect", str(run), "--json"])
        assert result.exit_code == 0 and json.loads(result.stdout)["updates_asked"] == 6

    def test_prepare_takes_the_recipe_and_train_its_result(self, tmp_path: Path) -> None:
        path, data = tmp_path / "small.yaml", tmp_path / "data"
        path.write_text(json.dumps(recipe(updates=1)), encoding="utf-8")
        shown = CliRunner().invoke(app, ["prepare", str(path), "--to", str(data)])
        assert shown.exit_code == 0 and shown.stdout.startswith("train: 40 documents")
        written = (data / "train.tokens").stat().st_mtime_ns
        result = CliRunner().invoke(app, ["train", str(path), "--run", str(tmp_path / "run"), "--prepared", str(data)])
        assert result.exit_code == 0 and (data / "train.tokens").stat().st_mtime_ns == written

    def test_generate_prints_a_text(self, run: Path) -> None:
        result = CliRunner().invoke(app, ["generate", str(run), "The", "--tokens", "8", "--seed", "1"])
        assert result.exit_code == 0 and result.stdout.startswith("The")
        as_json = CliRunner().invoke(app, ["generate", str(run), "The", "--tokens", "8", "--seed", "1", "--json"])
        assert result.stdout == "The" + json.loads(as_json.stdout)["continuation"] + "\n"

    def test_train_takes_the_recipe_and_resumes_by_directory(self, tmp_path: Path) -> None:
        path = tmp_path / "small.yaml"
        path.write_text(json.dumps(recipe(updates=2)), encoding="utf-8")
        run = tmp_path / "run"
        result = CliRunner().invoke(app, ["train", str(path), "--run", str(run), "--json"])
        assert result.exit_code == 0 and json.loads(result.stdout)["step"] == 2
        again = CliRunner().invoke(app, ["train", str(run), "--set", "training.updates=4", "--json"])
        assert json.loads(again.stdout)["step"] == 4
