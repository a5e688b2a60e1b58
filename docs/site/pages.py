"""MkDocs hook: README.md, CONTRIBUTING.md and CHANGELOG.md become pages, and links fit the site.

The texts stay where a reader of the repository looks for them. A link to a file that is not part of the
site, such as a recipe, is shown as the name of the file.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# what a reader of the repository finds in the source has a page of its own on the site
REFERENCE = {
    "src/reluformer/rules/__init__.py": ("reference/core.md", "#reluformer.rules"),
    "src/reluformer/conformance": ("reference/conformance.md", ""),
}
FIGURE_SCALE = 0.61
"""Figures of the study have one to three panels; at this scale their type is as large as that of tables."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]+)(#[^)]*)?\)")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages whose text lies outside docs/."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        text = _rewrite((ROOT / name).read_text(encoding="utf-8"), PurePosixPath(), files)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Make the links of a page in docs/ fit the site."""
    if page.file.src_uri in PAGES.values():
        return markdown
    return _rewrite(markdown, PurePosixPath("docs") / PurePosixPath(page.file.src_uri).parent, files)


def _rewrite(markdown: str, folder: PurePosixPath, files: Any) -> str:
    """Rewrite every link outside of code blocks.

    Args:
        markdown: The text of a page.
        folder: The folder of the page in the repository.
        files: The files of the site, by their paths in docs/.

    Returns:
        The text with links that are relative to the page on the site.
    """

    def replace(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match.group(0)
        path = normpath((folder / target).as_posix())
        if path in REFERENCE:
            path, anchor = f"docs/{REFERENCE[path][0]}", REFERENCE[path][1]
        uri = PAGES.get(path, path.removeprefix("docs/"))
        known = path in PAGES or (path.startswith("docs/") and files.get_file_from_path(uri) is not None)
        if not known and f"{path}/README.md".removeprefix("docs/") in {file.src_uri for file in files}:
            uri, known = f"{path}/README.md".removeprefix("docs/"), True
        if not known:
            return text if text.startswith("`") else f"{text} (`{path}`)" if text != path else f"`{path}`"
        depth = len(folder.parts) - 1 if folder.parts else 0
        link = f"{image}[{text}]({'../' * depth}{uri}{anchor or ''})"
        return link + _displayed_width(ROOT / path) if image and "/figures/" in path else link

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(replace, part) for part in parts)


def _displayed_width(figure: Path) -> str:
    """Return the width of a figure (PNG) on the page, as an attribute of its link."""
    if figure.suffix != ".png":
        return ""
    with figure.open("rb") as file:
        width = int.from_bytes(file.read(20)[16:], "big")
    return f'{{ width="{round(FIGURE_SCALE * width)}" }}'
