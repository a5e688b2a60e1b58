"""The documentation site: it builds without warnings, holds every page, and asks no other server for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ABSENT = [name for name in ("mkdocs", "material", "mkdocstrings") if find_spec(name) is None]
GENERATED = {"index.md", "contributing.md", "changelog.md"}
RESOURCE = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)[^>]*\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link(?![^>]*rel=["']?canonical)[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|url\(["']?((?:https?:)?//[^"')]+)"""
    r"""|@import\s+["']((?:https?:)?//[^"']+)""",
    re.IGNORECASE,
)
LINK = re.compile(r"""\b(?:href|src)=["']?([^"'\s>#?]+)""")


def pages(entry: object) -> list[str]:
    """Return the paths of all pages in a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    items = entry if isinstance(entry, list) else list(entry.values()) if isinstance(entry, dict) else []
    return [page for item in items for page in pages(item)]


def test_the_navigation_names_every_page_once() -> None:
    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert len(listed) == len(set(listed))
    assert [page for page in listed if page not in GENERATED and not (ROOT / "docs" / page).is_file()] == []
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("*.md")}
    written |= {f"reference/{path.name}" for path in (ROOT / "docs" / "reference").glob("*.md")}
    assert written <= set(listed)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site once; a warning is an error."""
    if ABSENT:
        pytest.skip(f"needs {', '.join(ABSENT)}: pip install 'reluformer[docs]'")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


def test_the_reference_holds_the_public_functions(site: Path) -> None:
    reference = "".join(path.read_text(encoding="utf-8") for path in sorted((site / "reference").glob("*.html")))
    for name in ("memory.read", "rules.register", "layers.Attention", "models.encoder_decoder.ReLUFormer"):
        assert f'id="reluformer.{name}"' in reference, name


def test_nothing_is_requested_from_another_server(site: Path) -> None:
    found = {
        (path.relative_to(site).as_posix(), "".join(match))
        for kind in ("*.html", "*.css")
        for path in site.rglob(kind)
        for match in RESOURCE.findall(path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_every_link_leads_to_a_file_of_the_site(site: Path) -> None:
    missing = {
        (path.relative_to(site).as_posix(), link)
        for path in site.rglob("*.html")
        if path.name != "404.html"  # its links begin at the root of a server
        for link in LINK.findall(path.read_text(encoding="utf-8"))
        if not link.startswith(("http:", "https:", "mailto:", "data:", "//"))
        if not (path.parent / unquote(link)).exists()
    }
    assert missing == set()
