"""`reluformer serve` as far as it goes without serving."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from reluformer.cli import export as verbs
from reluformer.cli.options import EXTRAS
from reluformer.errors import ArgumentError, ReluformerError, StorageError


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What would be served."""
    for part in EXTRAS["serve"]:
        pytest.importorskip(part, reason=f"{part} is not installed: pip install 'reluformer[serve]'")
    from reluformer.integrations.server import application

    seen: dict[str, Any] = {}

    def serve(models: Any, *, ready: Any, **options: Any) -> None:
        seen.update(options, models=models)
        ready("http://127.0.0.1:5000/")

    monkeypatch.setattr(application, "serve", serve)
    monkeypatch.delenv(verbs.KEY_VARIABLE, raising=False)
    return seen


def test_a_run_is_served_where_it_says(invoke: Any, run: Path, served: dict[str, Any]) -> None:
    result = invoke("serve", run, "--max-batch", "3", "--timeout", "7", "--beam", "5")
    assert result.exit_code == 0
    assert "open http://127.0.0.1:5000/ in a browser" in result.stdout
    assert (served["host"], served["port"], served["key"]) == ("127.0.0.1", 5000, None)
    assert (served["limits"].batch_texts, served["limits"].request_seconds) == (3, 7.0)
    (model,) = served["models"]
    assert (model.name, model.source, model.target, model.translator.config.beam) == ("trained", "en", "de", 5)
    assert "warning" not in result.stderr


def test_a_wide_address_without_a_key_is_warned_of(invoke: Any, run: Path, served: dict[str, Any]) -> None:
    result = invoke("serve", run, "--host", "0.0.0.0")
    assert re.search(r"warning: everybody who reaches 0\.0\.0\.0 .*RELUFORMER_API_KEY", result.stderr)


def test_the_key_comes_from_a_file_or_the_environment_and_is_not_shown(
    invoke: Any, run: Path, served: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("geheim\n")
    result = invoke("serve", run, "--host", "0.0.0.0", "--api-key-file", tmp_path / "key")
    assert served["key"] == "geheim" and "geheim" not in result.output and "warning" not in result.stderr
    monkeypatch.setenv(verbs.KEY_VARIABLE, "other")
    assert "other" not in invoke("serve", run).output and served["key"] == "other"
    monkeypatch.setenv(verbs.KEY_VARIABLE, " ")
    with pytest.raises(ArgumentError, match="is empty"):
        invoke("serve", run)
    (tmp_path / "key").write_text("")
    with pytest.raises(ArgumentError, match="is empty"):
        invoke("serve", run, "--api-key-file", tmp_path / "key")
    with pytest.raises(ArgumentError, match="cannot be read"):
        invoke("serve", run, "--api-key-file", tmp_path / "absent")


def test_wrong_use(invoke: Any, run: Path, served: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such directory"):
        invoke("serve", tmp_path / "absent")
    (tmp_path / "link").symlink_to(run)
    for again in (run, tmp_path / "link"):
        with pytest.raises(ArgumentError, match="named twice"):
            invoke("serve", run, again)
    with pytest.raises(ArgumentError, match="choose info or warning"):
        invoke("serve", run, "--log-level", "loud")
    with pytest.raises(ArgumentError, match=r"--timeout inf: .* give a number of seconds"):
        invoke("serve", run, "--timeout", "inf")
    assert invoke("serve", run, "--timeout", "nan").exit_code == 2
    assert invoke("serve", run, "--port", "70000").exit_code == 2


def test_a_folder_of_runs_stands_for_its_reluformer(
    invoke: Any, run: Path, served: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "reluformer").symlink_to(run)
    invoke("serve", tmp_path)
    assert served
    with pytest.raises(ArgumentError, match="named twice"):
        invoke("serve", tmp_path, tmp_path / "reluformer")


def test_an_onnx_export_is_not_served(invoke: Any, served: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "onnx.json").write_text("{}")
    with pytest.raises(StorageError, match="an ONNX export, which only translates; give the run"):
        invoke("serve", tmp_path)
    assert not served


def test_what_is_missing_is_named(invoke: Any, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "serve", ("absent_part",))
    with pytest.raises(ReluformerError, match=r"needs absent_part; pip install 'reluformer\[serve\]'"):
        invoke("serve", run)
