"""Record anew what `tests/test_golden.py` compares with. Do so only after an intended change, and say why.

    python tests/golden/record.py curves      # curves.json: losses and translations of the three recipes
    python tests/golden/record.py interface   # interface.json: verbs and options of the command line
    python tests/golden/record.py files NAME  # NAME/: a run, its corpus and its exports, as this version writes them

The files of an old version stay: later versions must load them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from curves import HERE, call, translations

FIXTURE = HERE / "recipes" / "fixture.yaml"
TEXTS = ["This is the story of a red bag. Now it is too dirty.", "The children are sad.\n\nMy sister will buy it."]
MORE_UPDATES = 5


def record_curves() -> None:
    """Write curves.json, in a process of its own that reads with the reference only."""
    printed = subprocess.run([sys.executable, str(HERE / "curves.py")], check=True, stdout=subprocess.PIPE).stdout
    (HERE / "curves.json").write_bytes(printed + b"\n")


def record_interface() -> None:
    """Write interface.json."""
    from typer.main import get_command

    from reluformer.cli import app

    write(HERE / "interface.json", interface(get_command(app)))


def interface(command: Any) -> dict[str, Any]:
    """Return the arguments and options of a command, and of the commands in it."""
    options = sorted(name for p in command.params for name in (*p.opts, *p.secondary_opts) if name.startswith("-"))
    arguments = [p.name for p in command.params if p.param_type_name == "argument"]
    found: dict[str, Any] = {"arguments": arguments, "options": options}
    if hasattr(command, "commands"):
        found["commands"] = {name: interface(inner) for name, inner in sorted(command.commands.items())}
    return found


def record_files(version: str) -> None:
    """Train the run of a version, export it, and write what each of them translates."""
    place = HERE / version
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    with contextlib.chdir(place):  # so that no file names a path of this machine
        call("train", FIXTURE, "--run", "run")
        call("export", "run", "--to", "hf", "--out", "hf")
        call("export", "run", "--to", "onnx", "--out", "onnx")
        write(place / "expected.json", expected(place))
        shutil.make_archive("onnx", "zip", "onnx")
        shutil.rmtree("onnx")


def expected(place: Path) -> dict[str, Any]:
    """Return the translations of the run and its ONNX export, and the losses of a few more updates."""
    import reluformer as rf

    with TemporaryDirectory() as directory:
        resumed = Path(directory) / "run"
        shutil.copytree(place / "run", resumed)
        step = json.loads((resumed / "status.json").read_text(encoding="utf-8"))["step"]
        updates = step + MORE_UPDATES
        call("train", FIXTURE, "--run", resumed, "--set", f"training.updates={updates}")
        events = [json.loads(line) for line in (resumed / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "texts": TEXTS,
        "translated_texts": rf.load(place / "run", check_alignment=False).translate(TEXTS),
        "run": translations(place / "run"),
        "onnx": translations(place / "onnx"),
        "updates": updates,
        "valid": next(event["loss"] for event in events if event["event"] == "valid" and event["step"] == updates),
    }


def write(path: Path, content: Any) -> None:
    """Write JSON that a reviewer can read."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["curves"]:
            record_curves()
        case ["interface"]:
            record_interface()
        case ["files", name]:
            record_files(name)
        case _:
            raise SystemExit(__doc__)
