"""What a release holds and says: one wheel for every Python, links that work anywhere, an sdist with its own tests."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from reluformer import __version__
from reluformer.kernels.native import library_name

ROOT = Path(__file__).parents[1]
ADDRESS = "https://example.org/team/reluformer"
RELATIVE = re.compile(r"\]\((?!https://)")
DESCRIBE = """
import json, setuptools
from distutils.core import run_setup
project = run_setup("setup.py", stop_after="commandline")
wheel = project.get_command_obj("bdist_wheel")
wheel.ensure_finalized()
print(json.dumps({
    "tag": wheel.get_tag(),
    "library": project.get_command_obj("build_ext").get_ext_filename("reluformer.kernels.native._library"),
}))
"""
Metadata = dict[str, Callable[..., Any]]


def run(*arguments: str, **variables: str) -> str:
    """Run Python at the root of the project, and return what it prints."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def metadata() -> Metadata:
    return runpy.run_path(str(ROOT / "release" / "metadata.py"))


@pytest.fixture(scope="module")
def package_information(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of PKG-INFO and SOURCES.txt, made as for an sdist."""
    out = tmp_path_factory.mktemp("egg")
    run("setup.py", "-q", "egg_info", "--egg-base", str(out), RELUFORMER_REPOSITORY=ADDRESS)
    return out / "reluformer.egg-info"


def test_one_wheel_serves_every_python_on_a_platform() -> None:
    described = json.loads(run("-c", DESCRIBE).splitlines()[-1])
    platform = re.sub(r"\W", "_", sysconfig.get_platform())
    assert described["tag"] == ["py3", "none", platform]
    assert Path(described["library"]) == Path("reluformer/kernels/native", library_name())


def test_the_metadata_has_absolute_links_and_project_urls(package_information: Path) -> None:
    text = (package_information / "PKG-INFO").read_text(encoding="utf-8")
    head, _, description = text.partition("\n\n")
    assert f"Project-URL: Repository, {ADDRESS}\n" in head
    assert f"Project-URL: Issues, {ADDRESS}/issues\n" in head
    assert "Project-URL: Paper, https://arxiv.org/" in head
    assert "Description-Content-Type: text/markdown" in head
    assert re.search(rf"!\[[^]]*\]\({ADDRESS}/raw/\w+/docs/images/read\.svg\)", description)
    assert re.search(rf"\({ADDRESS}/tree/\w+/src/reluformer/conformance\)", description)
    assert re.search(rf"\({ADDRESS}/blob/\w+/docs/findings\.md\)", description)
    assert not RELATIVE.search(description)


def test_without_an_address_relative_links_become_text(metadata: Metadata) -> None:
    text = metadata["long_description"](None, None)
    assert not RELATIVE.search(text)
    assert "https://arxiv.org/abs/2302.06461" in text
    assert "rf.rules.register" in text, "code stays as it is"


def test_links_in_code_are_left_alone(metadata: Metadata, tmp_path: Path) -> None:
    page = "See [a](docs/a.md#part), [top](#top).\n\n```\nx[0](y)\n```\n"
    (tmp_path / "README.md").write_text(page, encoding="utf-8")
    assert metadata["long_description"](ADDRESS, "abc", tmp_path) == (
        f"See [a]({ADDRESS}/blob/abc/docs/a.md#part), [top]({ADDRESS}/blob/abc/README.md#top).\n\n```\nx[0](y)\n```\n"
    )


def test_the_address_of_the_repository(metadata: Metadata, tmp_path: Path) -> None:
    repository = metadata["repository"]
    actions = {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "team/reluformer"}
    assert repository(tmp_path, actions) == ADDRESS
    assert repository(tmp_path, {"RELUFORMER_REPOSITORY": ADDRESS + "/", **actions}) == ADDRESS
    (tmp_path / "PKG-INFO").write_text(f"Name: reluformer\nProject-URL: Repository, {ADDRESS}\n", encoding="utf-8")
    assert repository(tmp_path, {}) == ADDRESS


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize(
    ("remote", "address"),
    [
        (f"{ADDRESS}.git", ADDRESS),
        ("https://user:secret@example.org/team/reluformer", ADDRESS),
        ("git@example.org:team/reluformer.git", ADDRESS),
        ("ssh://git@example.org/team/reluformer.git", ADDRESS),
        ("/somewhere/reluformer", None),
    ],
)
def test_the_address_of_a_checkout(metadata: Metadata, tmp_path: Path, remote: str, address: str | None) -> None:
    for arguments in (["init", "-q"], ["remote", "add", "origin", remote]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    assert metadata["repository"](tmp_path, {}) == address


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_only_remote_of_a_checkout_tells_the_address(metadata: Metadata, tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)

    git("init", "-q")
    assert metadata["repository"](tmp_path, {}) is None
    assert metadata["project_urls"](None) == {"Paper": "https://arxiv.org/abs/2302.06461"}
    assert "RELUFORMER_REPOSITORY" in metadata["UNKNOWN"]
    git("remote", "add", "upstream", f"{ADDRESS}.git")
    assert metadata["repository"](tmp_path, {}) == ADDRESS
    git("remote", "add", "fork", "https://example.org/another/reluformer")
    assert metadata["repository"](tmp_path, {}) is None, "which of the two it is, nothing tells"


def test_the_documentation_says_how_the_address_is_given_and_that_the_workflow_has_not_run() -> None:
    page = " ".join((ROOT / "docs" / "install.md").read_text(encoding="utf-8").split())
    assert "RELUFORMER_REPOSITORY=https://" in page
    assert "`.github/workflows/ci.yml`" in page and "has not run" in page
    assert "has not run" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_commit_of_an_sdist_and_of_a_workflow(metadata: Metadata, tmp_path: Path) -> None:
    commit, file = metadata["commit"], tmp_path / "src" / "reluformer" / "_commit.txt"
    assert commit(tmp_path, {}) is None
    assert commit(tmp_path, {"GITHUB_SHA": "0123456789abcdef"}) == "0123456"
    file.parent.mkdir(parents=True)
    file.write_text("fedcba9\n", encoding="utf-8")
    assert commit(tmp_path, {"GITHUB_SHA": "0123456789abcdef"}) == "fedcba9"


def test_the_sdist_holds_every_file_of_the_repository(package_information: Path) -> None:
    listed = set((package_information / "SOURCES.txt").read_text(encoding="utf-8").splitlines())
    assert {"Makefile", "constraints.txt", "mkdocs.yml", "release/metadata.py", "tests/test_packaging.py"} <= listed
    assert "src/reluformer/kernels/native/tiles.h" in listed
    assert not [name for name in listed if name.endswith((".so", ".pyc"))]
    if (ROOT / ".git").exists() and shutil.which("git"):
        answer = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        existing = {name for name in answer.stdout.splitlines() if (ROOT / name).is_file()}
        assert existing - listed == set()


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["version"] == citation["version"] == __version__


def test_the_workflow_runs_what_exists() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = "\n".join(step.get("run", "") for step in steps)
    targets = set(
        re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[0].split()
    )
    assert set(re.findall(r"\bmake (\w+)", commands)) <= targets
    assert [file for file in re.findall(r"(?<!\S)(\.ci/\w+)", commands) if not (ROOT / file).is_file()] == []
    assert any("cibuildwheel" in step.get("uses", "") for step in steps)
