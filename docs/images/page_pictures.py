"""Draws page-light.png and page-dark.png: the page of `reluformer serve` with two runs, looking at one word.

python docs/images/page_pictures.py runs/demo/reluformer runs/demo/transformer

needs playwright and a Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright

HERE = Path(__file__).parent
WORD, LAYER, HEAD = "sie", 0, 1
"""What to look at; which head reads what depends on the run."""


@contextmanager
def serving(runs: list[Path]) -> Iterator[str]:
    """The address of a server of these runs."""
    command = [sys.executable, "-m", "reluformer", "serve", *map(str, runs), "--port", "0", "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+/", server.stdout.readline())
            if address is None:
                sys.exit("the server did not start")
            yield address[0]
        finally:
            server.terminate()


def draw(browser: Browser, address: str, models: int, scheme: str, path: Path) -> None:
    """Translate the example, choose a word, keep the picture."""
    page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
    page.goto(address)
    page.get_by_role("button", name="Try an example").click()
    columns = page.locator(".column")
    expect(columns.locator("[data-part=status]").filter(has_text=" in ")).to_have_count(models, timeout=60_000)
    page.select_option("#layer", str(LAYER))
    page.select_option("#head", str(HEAD))
    columns.first.get_by_text(WORD, exact=True).first.click()
    expect(columns.locator("[data-part=findings]:visible")).to_have_count(models, timeout=60_000)
    page.mouse.move(0, 0)
    page.screenshot(path=path, full_page=True)


def main() -> None:
    """Both pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="the browser's program")
    parser.add_argument("--to", type=Path, default=HERE, help="directory for the pictures")
    given = parser.parse_args()
    with serving(given.runs) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            draw(browser, address, len(given.runs), scheme, given.to / f"page-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
