"""Compare what two checkouts compute, bit for bit: the losses of three recipes and the translations of ten documents.

    python tests/golden/compare.py OTHER_CHECKOUT

Both checkouts run on one thread of this machine and read with `impl="reference"`; see `curves.py`. The exit code is
1 if anything differs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run both checkouts, print a table, and exit with 1 if they differ."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    ours, theirs = (curves(checkout) for checkout in (HERE.parents[1], Path(sys.argv[1]).resolve()))
    print(f"{'recipe':<10} {'updates':>8} {'differing':>10} {'first':>6} {'last loss':>20} {'translations':>13}")
    equal = ours.keys() == theirs.keys()
    for name in ours:
        equal = row(name, ours[name], theirs[name]) and equal
    print("bit for bit equal" if equal else "DIFFERENT")
    raise SystemExit(0 if equal else 1)


def curves(checkout: Path) -> dict[str, Any]:
    """Return the numbers of a checkout, measured in a process of its own."""
    source = checkout / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout

    found = Path(run("-c", "import reluformer; print(reluformer.__file__)").strip())
    if not found.is_relative_to(source):
        raise SystemExit(f"{checkout}: Python imports {found} instead of the package there")
    result: dict[str, Any] = json.loads(run(str(HERE / "curves.py")))
    return result


def row(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Print one recipe; return whether both checkouts agree on it. Floats survive JSON exactly."""
    pairs = list(zip([*ours["train"], *ours["valid"]], [*theirs["train"], *theirs["valid"]], strict=True))
    differing = [number for number, (one, other) in enumerate(pairs, 1) if one != other]
    sentences = [[entry["sentences"] for entry in side["translations"]] for side in (ours, theirs)]
    same = sum(one == other for one, other in zip(*sentences, strict=True))
    print(
        f"{name:<10} {len(ours['train']):>8} {len(differing):>10} {differing[0] if differing else '-':>6} "
        f"{ours['train'][-1]['loss']:>20.15f} {f'{same} of {len(sentences[0])}':>13}"
    )
    return not differing and sentences[0] == sentences[1]


if __name__ == "__main__":
    main()
