"""`reluformer evaluate`: the run's own split, translated, scored and kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from reluformer import load
from reluformer.errors import ArgumentError, DataError, StorageError
from reluformer.training.run import RunDirectory
from reluformer.translation import scoring
from reluformer.translation.embedded import document_from_id, generate, score_discourse
from reluformer.translation.recipe import Recipe

Invoke = Callable[..., Result]


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """The run where it may be written to."""
    shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("data", "checkpoints", "best"))
    return tmp_path / "copy"


def test_figures_and_translations_of_the_test_split(invoke: Invoke, copy: Path) -> None:
    figures = json.loads(invoke("evaluate", copy, "--json").stdout)
    assert json.loads((copy / "evaluation" / "test.json").read_text(encoding="utf-8")) == figures
    lines = (copy / "evaluation" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    kept = [json.loads(line) for line in lines]
    documents = list(generate(4, split="test", sentences=(3, 5)))
    assert [entry["id"] for entry in kept] == [document.document.id for document in documents]
    hypotheses = load(copy).translate_documents([document.document.src for document in documents])
    assert [entry["hyp"] for entry in kept] == hypotheses
    references = [document.document.tgt for document in documents]
    assert figures["scores"] == json.loads(json.dumps(scoring.score(hypotheses, references).to_dict()))
    assert figures["discourse"] == score_discourse(documents, hypotheses).to_dict()
    assert figures["decoding"]["beam"] == 2


def test_limited_and_sentence_level_evaluations_have_their_own_names(invoke: Invoke, copy: Path) -> None:
    options = ("--split", "valid", "--limit", "2", "--sentence-level", "--beam", "1")
    shown = invoke("evaluate", copy, *options).stdout
    assert sorted(path.name for path in (copy / "evaluation").iterdir()) == [
        "valid-sentences-first-2.json",
        "valid-sentences-first-2.jsonl",
    ]
    figures = json.loads((copy / "evaluation" / "valid-sentences-first-2.json").read_text(encoding="utf-8"))
    assert (figures["decoding"]["window_tokens"], figures["decoding"]["beam"]) == ("sentence", 1)
    assert (figures["scores"]["documents"], figures["split"]) == (2, "valid")
    assert "what crosses sentences" in shown
    assert "chrF2 =" in shown


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_that_cannot_be_written_still_shows_its_scores(invoke: Invoke, copy: Path, as_json: bool) -> None:
    (copy / "evaluation").write_text("a file where the directory would be", encoding="utf-8")
    result = invoke("evaluate", copy, "--limit", "1", *(["--json"] if as_json else []))
    assert json.loads(result.stdout)["scores"]["documents"] == 1 if as_json else "chrF2 =" in result.stdout
    assert "warning: the scores are printed only, --out FILE writes them elsewhere" in result.stderr


def test_scores_in_a_file_elsewhere(invoke: Invoke, copy: Path, tmp_path: Path) -> None:
    place = tmp_path / "new" / "scores.json"
    figures = json.loads(invoke("evaluate", copy, "--limit", "1", "--out", place, "--json").stdout)
    assert json.loads(place.read_text(encoding="utf-8")) == figures
    assert len(place.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()) == 1
    assert not (copy / "evaluation").exists()


def test_a_place_for_the_scores_that_is_no_file(invoke: Invoke, copy: Path, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "scores.jsonl"):
        with pytest.raises(ArgumentError, match="give the name of a JSON file"):
            invoke("evaluate", copy, "--out", place)


def test_two_runs_on_the_same_documents(invoke: Invoke, run: Path, copy: Path) -> None:
    figures = json.loads(invoke("evaluate", copy, "--limit", "3", "--against", run, "--json").stdout)
    assert [comparison["metric"] for comparison in figures["comparisons"]] == ["bleu", "d_bleu"]
    assert [comparison["p_value"] for comparison in figures["comparisons"]] == [1.0, 1.0]
    assert figures["against"][0]["scores"] == figures["scores"]
    shown = invoke("evaluate", copy, "--limit", "3", "--against", run).stdout
    assert shown.count("paired bootstrap resampling") == 2


def test_the_folder_of_a_baseline_stands_for_its_reluformer(
    invoke: Invoke, run: Path, copy: Path, tmp_path: Path
) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "reluformer").symlink_to(run)
    figures = json.loads(invoke("evaluate", copy, "--limit", "2", "--against", tmp_path / "demo", "--json").stdout)
    assert figures["against"][0]["scores"] == figures["scores"]


def test_brackets_in_the_name_of_a_run_are_no_markup(invoke: Invoke, copy: Path) -> None:
    run = copy.rename(copy.with_name("a[bold]"))
    table = invoke("evaluate", run, "--limit", "1").stdout.partition("what crosses sentences")[2]
    assert "a[bold]" in table.partition("pronouns")[0]


def test_a_corpus_in_files_has_no_discourse_scores(invoke: Invoke, copy: Path, recipe: Recipe, tmp_path: Path) -> None:
    document = document_from_id("embedded/seed=0/test/sentences=3-5/0").document
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({"id": "x", "src": document.src, "tgt": document.tgt}), encoding="utf-8")
    RunDirectory(copy).set_recipe(recipe.replace(data=recipe.data.replace(test={"path": path}, valid=None)))
    figures = json.loads(invoke("evaluate", copy, "--json").stdout)
    assert figures["discourse"] is None
    assert figures["scores"]["documents"] == 1
    with pytest.raises(ArgumentError, match="names no valid split; use --split test"):
        invoke("evaluate", copy, "--split", "valid")
    path.write_text("\n")
    with pytest.raises(DataError, match="the test split of its recipe holds no documents"):
        invoke("evaluate", copy)
    path.unlink()
    with pytest.raises(DataError, match=r"test\.jsonl"):
        invoke("evaluate", copy)


def test_wrong_runs(invoke: Invoke, copy: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such directory"):
        invoke("evaluate", tmp_path / "none")
    with pytest.raises(StorageError, match="no such directory"):
        invoke("evaluate", copy, "--against", tmp_path / "none")
    (copy / "recipe.yaml").unlink()
    with pytest.raises(StorageError, match=r"a model without recipe\.yaml"):
        invoke("evaluate", copy)
    assert invoke("evaluate", copy, "--split", "train").exit_code == 2
