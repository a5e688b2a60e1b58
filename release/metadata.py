"""What a release says about itself: its repository, its commit and a README that reads well outside the repository.

setup.py runs this file by its path, so it imports nothing but the standard library.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNKNOWN = (
    "note: the address of the repository is unknown, so the package links to the paper alone, and its description has "
    "no links to files; set RELUFORMER_REPOSITORY=https://HOST/OWNER/NAME"
)
"""What a build says without an address."""
PAPER = "https://arxiv.org/abs/2302.06461"
COMMIT_FILE = "src/reluformer/_commit.txt"
"""Written into sdists and, as `reluformer/_commit.txt`, into wheels; a git checkout has none."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]*)(#[^)]*)?\)")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
REMOTE = re.compile(r"(?:https?://(?:[^@/]+@)?|ssh://git@|git@)([\w.-]+)[:/]([\w./~-]+?)(?:\.git)?/?")


def repository(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the web address of the repository, or None if nothing tells it.

    It is read from RELUFORMER_REPOSITORY, from the variables of a GitHub workflow, from the PKG-INFO of an sdist, or
    from the git checkout, in this order. A checkout tells it by its remote `origin`, or by its only remote.

    Args:
        root: The folder of the project.
        environment: The environment variables.
    """
    if given := environment.get("RELUFORMER_REPOSITORY"):
        return given.rstrip("/")
    if environment.get("GITHUB_SERVER_URL") and environment.get("GITHUB_REPOSITORY"):
        return f"{environment['GITHUB_SERVER_URL']}/{environment['GITHUB_REPOSITORY']}"
    if (info := root / "PKG-INFO").is_file():
        urls = HeaderParser().parsestr(info.read_text(encoding="utf-8")).get_all("Project-URL", [])
        return dict(url.split(", ", 1) for url in urls).get("Repository")
    remotes = (_git(root, "remote") or "").split()
    name = remotes[0] if len(remotes) == 1 else "origin"
    found = REMOTE.fullmatch(_git(root, "remote", "get-url", name) or "")
    return f"https://{found[1]}/{found[2]}" if found else None


def commit(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the commit that is built, or None if it is unknown.

    An sdist has it in a file. A checkout asks git, and a GitHub workflow tells it.
    """
    if (file := root / COMMIT_FILE).is_file():
        return file.read_text(encoding="utf-8").strip() or None
    prefix = _git(root, "rev-parse", "--show-prefix")
    if prefix == "":  # else the folder lies in a checkout of something else
        return _git(root, "rev-parse", "--short", "HEAD")
    return environment.get("GITHUB_SHA", "")[:7] or None


def project_urls(address: str | None) -> dict[str, str]:
    """Return the addresses that package indexes show beside the project."""
    if address is None:
        return {"Paper": PAPER}
    return {
        "Repository": address,
        "Documentation": f"{address}/tree/HEAD/docs",
        "Changelog": f"{address}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{address}/issues",
        "Paper": PAPER,
    }


def long_description(address: str | None, reference: str | None, root: Path = ROOT) -> str:
    """Return the README with links that work outside the repository.

    Args:
        address: The web address of the repository. Without one, a relative link becomes its text.
        reference: The commit that the links lead to; None is the newest one.
        root: The folder of the project.
    """

    def replace(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match.group(0)
        if address is None:
            return f"*{text}*" if image else text
        target = target or "README.md"
        kind = "raw" if image else "tree" if (root / target).is_dir() else "blob"
        return f"{image}[{text}]({address}/{kind}/{reference or 'HEAD'}/{target}{anchor or ''})"

    parts = FENCE.split((root / "README.md").read_text(encoding="utf-8"))
    return "".join(part if part.startswith("```") else LINK.sub(replace, part) for part in parts)


def _git(root: Path, *arguments: str) -> str | None:
    with suppress(OSError):
        found = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return found.stdout.strip() if found.returncode == 0 else None
    return None
