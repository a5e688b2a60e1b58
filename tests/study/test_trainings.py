"""A training of the study and its evaluation, at a size of seconds, where its corpora are found, and its controls."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from reluformer import rules
from reluformer.errors import DataError, StorageError
from reluformer.layers import FeedForward, LearnedScale
from reluformer.study import evaluation, trainings
from reluformer.study.measures import EVALUATION
from reluformer.study.plan import Run
from reluformer.study.trainings import (
    Context,
    ReluLN,
    SoftmaxScaled,
    SoftmaxSqrt,
    data_config,
    find_corpus,
    prepared_name,
)
from reluformer.study.worker import work
from reluformer.translation.corpus import PreparedCorpus


def do(run: Run, context: Context) -> dict:
    """The run as a worker does it."""
    context.study.write_run(run)
    assert work(context.study, run.address, None) == 0
    result = context.study.result(run)
    assert result is not None
    return result


def test_a_finished_training_leaves_a_small_result(make_run, context: Context) -> None:
    run = make_run({"model.ffn": "softmax"})
    result = do(run, context)
    assert result["status"] == "finished"
    assert result["run"] == run.content
    assert [point["step"] for point in result["valid"]] == [2, 4]
    assert result["loss"] == result["valid"][-1]["loss"]
    assert [snapshot["step"] for snapshot in result["telemetry"]] == [2, 4]
    read = result["telemetry"][-1]["reads"]["encoder.0.ffn"]
    assert read["rule"] == "softmax"
    assert read["output_variance"] > 0
    text = (context.study.directory(run) / "result.json").read_text()
    assert str(context.study.path) not in text
    assert len(text) < 20_000
    assert not (context.study.training(run) / "checkpoints").exists()


def test_a_finished_run_is_not_done_again(make_run, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    first = do(run, context)
    monkeypatch.setattr(trainings, "train", None)
    assert do(run, context) == first


def test_divergence_is_a_result_and_there_is_nothing_to_evaluate(make_run, context: Context) -> None:
    run = make_run({"training.lr": 1e30, "training.clip": None})
    result = do(run, context)
    assert result["status"] == "diverged"
    assert result["loss"] is None
    assert 1 <= result["step"] <= 4
    assert "not finite" in result["message"]
    exam = do(Run({"study": 1, "kind": EVALUATION, "of": run.content, "split": "test", "measures": []}), context)
    assert exam["status"] == "diverged"


def test_the_learning_rate_is_that_of_the_better_trial(make_run, context: Context) -> None:
    trials = {"lr": [1e-6, 1e-2], "updates": 2, "seed": 100}
    run = make_run({"training.lr": None, "trials": trials, "training.updates": 3})
    with pytest.raises(StorageError, match="is needed first"):
        trainings.chosen_rate(run, context)
    losses = [do(trial, context)["loss"] for trial in run.trials]
    assert losses[1] < losses[0]
    assert trainings.chosen_rate(run, context) == 1e-2
    assert do(run, context)["lr"] == 1e-2


def test_a_training_goes_on_from_another_with_its_rate(make_run, context: Context) -> None:
    start = make_run()
    before = do(start, context)
    after = do(make_run({"training.lr": None, "training.updates": 2, "start": dict(start.content)}), context)
    assert after["lr"] == before["lr"]
    assert after["valid"][0]["loss"] < 1.2 * before["loss"]


def test_an_evaluation(make_run, context: Context) -> None:
    run = make_run({"training.updates": 2})
    do(run, context)
    content = {"study": 1, "kind": EVALUATION, "of": run.content, "split": "test", "lengths": [32, 128]}
    options = {"measures": ["translations", "losses", "maps"], "map_tokens": 200, "length_borders": [40]}
    exam = Run({**content, **options, "decoding": {"length_ratio": 0.5, "length_offset": 2}})
    result = do(exam, context)
    assert result["documents"] == 3
    assert 0 <= result["translations"]["bleu"] <= 100
    assert "13a" in result["translations"]["signature"]
    assert set(result["translations"]["d_bleu_by_length"]) == {"0-40", "41+"}
    for found in result["losses"].values():
        assert 0 < found["loss"] < 10
    by_position = result["losses"]["128"]["by_position"]
    assert next(iter(by_position)) == "32"
    reads = result["maps"]["reads"]
    assert set(reads) == {"encoder.0.attention", "decoder.0.attention", "decoder.0.cross"}
    assert all(0 < zeros < 1 for zeros in reads["encoder.0.attention"]["zero_fraction"])
    assert "distance" not in reads["decoder.0.cross"]
    for name in ("translations", "references"):
        lines = (context.study.directory(exam) / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        assert [len(json.loads(line)["hyp"]) for line in lines] == [
            len(json.loads(line)["hyp"])
            for line in (context.study.directory(exam) / "references.jsonl").read_text().splitlines()
        ]


def joined_run(make_run, tokens: int = 96, **changes: object) -> Run:
    segments = {"segment_tokens": tokens, "join_documents": "random"}
    return make_run({"training.updates": 2, "data.segments": segments, "model.encoder_attention": "relu", **changes})


def examine(run: Run, context: Context, **options: object) -> dict:
    do(run, context)
    content = {"study": 1, "kind": EVALUATION, "of": run.content, "split": "test", **options}
    return do(Run({**content, "decoding": {"length_ratio": 0.5, "length_offset": 2}}), context)


def test_joined_captions_are_compared_with_the_start_one_by_one(make_run, context: Context) -> None:
    start = make_run({"data.segments": {"segment_tokens": "sentence"}})
    do(start, context)
    run = joined_run(make_run, start=dict(start.content))
    found = examine(run, context, measures=["joined"], joins={"tokens": 96, "seeds": [0, 1]})["joined"]
    alone = examine(start, context, measures=["joined"], joins={"tokens": 96, "seeds": [0]})["joined"]
    assert found["bleu_alone"] == alone["bleu_alone"] == alone["bleu_own"]
    assert found["loss_alone"] == alone["loss_alone"]
    assert len(found["bleu_by_join"]) == 2
    assert found["cost"] == pytest.approx(found["bleu_alone"] - found["bleu"], abs=0.011)
    assert 0 <= found["slips"] <= 1 and 0 <= found["slips_by_chance"] <= 1
    assert 0 < found["loss"] < 10


def test_translations_of_random_joins_are_whole_joins(make_run, context: Context) -> None:
    found = examine(joined_run(make_run, tokens=200), context, measures=["translations"])
    assert found["documents"] < 3


def test_zeros_are_counted_over_all_visible_pairs(make_run, context: Context) -> None:
    run = joined_run(make_run)
    found = examine(run, context, measures=["zeros"])["zeros"]
    store = PreparedCorpus(context.study.data / prepared_name(data_config(run.content, None))).store("valid")
    source, target = (lengths.astype(int) for lengths in (store.source_lengths, store.target_lengths))
    pairs = (source**2).sum() + (target * (target + 1) // 2).sum() + (source * target).sum()
    assert found["pairs"] == 2 * pairs  # two heads
    assert found["rows"] == 2 * (source.sum() + 2 * target.sum())
    reads = found["reads"]
    assert set(reads) == {"encoder.0.attention", "decoder.0.attention", "decoder.0.cross"}
    assert 0.2 < reads["encoder.0.attention"]["zeros"] < 0.8
    assert all(0 <= read["dead"] < 0.5 for read in reads.values())
    least, most = (choose(read["zeros"] for read in reads.values()) for choose in (min, max))
    assert least < found["zeros"] < most


@pytest.mark.parametrize("count", [0, 1, 60, 61, 125])
def test_a_thinned_curve_ends_where_the_training_did(count: int) -> None:
    events = [{"step": step, "nll": 1.0, "total_tokens": step} for step in range(1, count + 1)]
    log = SimpleNamespace(events=lambda kind: events)
    points = trainings.thinned(SimpleNamespace(log=log))  # type: ignore[arg-type]
    assert len(points) <= 60
    assert [point["step"] for point in points[-1:]] == [event["step"] for event in events[-1:]]


def test_losses_by_position_are_means_over_tokens() -> None:
    rows = [[-1.0] * 40, [-3.0] * 20]
    found = evaluation.by_position(rows)
    assert found["by_position"] == {"32": pytest.approx((32 + 60) / 52, rel=1e-4), "64": 1.0}
    assert found["tokens"] == 60
    assert found["loss"] == pytest.approx(100 / 60, rel=1e-4)


def test_an_unexpected_folder_is_told(context: Context, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such run"):
        context.study.read_run("000000000000")


# ------------------------------------------------------------------ corpora

CONTENT = {"dataset": "multi30k", "data": {"segments": {"segment_tokens": "sentence"}}}


def fill(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("", encoding="utf-8")


def test_both_layouts_are_found(tmp_path: Path) -> None:
    fill(
        tmp_path / "multi30k", *(f"{split}.{lang}.gz" for split in ("train", "valid", "test") for lang in ("en", "de"))
    )
    config = data_config(CONTENT, tmp_path)
    assert config.train.src == tmp_path / "multi30k" / "train.en.gz"
    assert config.train.documents == "line"
    fill(tmp_path / "multi30k", *(f"{split}.jsonl.gz" for split in ("train", "valid", "test")))
    assert data_config(CONTENT, tmp_path).train.path == tmp_path / "multi30k" / "train.jsonl.gz"


def test_europarl_under_either_name(tmp_path: Path) -> None:
    fill(tmp_path / "europarl7", *(f"{split}.jsonl.gz" for split in ("train", "valid", "test")))
    assert find_corpus("europarl7-doc", tmp_path, ("en", "de"))["test"] == {
        "path": tmp_path / "europarl7" / "test.jsonl.gz"
    }


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="say with --data FOLDER where it is"):
        data_config(CONTENT, None)
    (tmp_path / "wmt").mkdir()
    with pytest.raises(DataError, match="expected a folder 'multi30k' in it, found: wmt"):
        data_config(CONTENT, tmp_path)
    fill(tmp_path / "multi30k", "train.en.gz", "notes.txt")
    with pytest.raises(
        DataError, match=r"expected train\.jsonl\.gz, or train\.en\.gz with train\.de\.gz; found: notes"
    ):
        data_config(CONTENT, tmp_path)


def test_softmax_times_the_root_of_the_visible_slots() -> None:
    scores, visible = torch.randn(2, 5), torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    n = visible.sum(-1, keepdim=True).float()
    softmax = rules.get("softmax")
    expected = softmax.weights(scores, n, visible) * n.sqrt()
    torch.testing.assert_close(SoftmaxSqrt().weights(scores, n, visible), expected)
    torch.testing.assert_close(SoftmaxSqrt().weights(scores, n, None).sum(-1), n.sqrt().squeeze(-1))


def test_a_learned_scale_starts_as_softmax_and_is_learned() -> None:
    torch.manual_seed(0)
    layer = FeedForward(8, 16, SoftmaxScaled())
    x = torch.randn(3, 8)
    plain = layer.values(layer.rule.weights(layer.keys(x), torch.tensor(16.0), None))
    torch.testing.assert_close(layer(x)[0], plain)
    layer(x)[0].square().sum().backward()
    assert isinstance(layer.norm, LearnedScale)
    assert layer.norm.log_scale.grad is not None and layer.norm.log_scale.grad != 0
    with torch.no_grad():
        layer.norm.log_scale.fill_(1.0)
    torch.testing.assert_close(layer(x)[0], plain * torch.e)


def test_relu_with_a_norm_is_the_plain_layer_and_a_norm() -> None:
    torch.manual_seed(0)
    layer = FeedForward(8, 16, ReluLN())
    x = torch.randn(3, 8)
    plain = layer.values(torch.relu(layer.keys(x)))
    torch.testing.assert_close(layer(x)[0], torch.nn.functional.layer_norm(plain, (8,)))
