"""Where and with what a result was made: versions, commit, kernel, machine and command.

torch is imported only where it is asked for, so that the command line starts quickly.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from reluformer import __version__

COMMIT_FILE = "_commit.txt"
"""The file of an installed package that holds the commit; the build writes it."""


def commit(package: Path = Path(__file__).parent) -> str | None:
    """Returns the commit of this code, or None if neither git nor the build tells it.

    Args:
        package: The folder of the package. It may lie in a checkout of something else, whose commit is not ours.
    """
    with suppress(OSError):
        return (package / COMMIT_FILE).read_text(encoding="utf-8").strip() or None
    with suppress(OSError):
        arguments = ["git", "rev-parse", "--show-prefix", "--short", "HEAD"]
        found = subprocess.run(arguments, cwd=package, capture_output=True, text=True, check=False)
        prefix, _, short_hash = found.stdout.strip().partition("\n")
        return short_hash if prefix == "src/reluformer/" else None
    return None


def kernel() -> str:
    """Returns the vector instructions of the compiled kernel in use: avx512, avx2 or portable; none without it."""
    from reluformer.kernels import cpu
    from reluformer.kernels.native.library import PATHS

    return "none" if cpu.unavailable() else PATHS[cpu.loaded().path]


def version_line() -> str:
    """Returns what `reluformer --version` prints: version, commit (if known) and kernel."""
    known = commit()
    return f"reluformer {__version__}{f' (commit {known})' if known else ''}, kernel: {kernel()}"


def command_line(arguments: Sequence[str] | None = None) -> str:
    """Returns the command that runs now, as it could be typed again.

    Args:
        arguments: The program and its arguments. Default: those of this process.

    Example:
        >>> command_line(["/usr/bin/reluformer", "train", "my recipe.yaml"])
        "reluformer train 'my recipe.yaml'"
    """
    program, *rest = (sys.argv if arguments is None else arguments) or [""]
    name = "python -m reluformer" if Path(program).name == "__main__.py" else shlex.quote(Path(program).name)
    return " ".join([name, *map(shlex.quote, rest)])


def processor() -> str:
    """Returns the name of the processor."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def circumstances() -> dict[str, Any]:
    """Returns what a reader must know to judge a number: commit, versions, processor, cores and threads.

    The result holds no name of the machine and no path.
    """
    import torch

    return {
        "commit": commit(),
        "reluformer": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernel": kernel(),
        "cpu": processor(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def training_record() -> dict[str, Any]:
    """Returns what a run keeps about each of its starts: `circumstances`, system, GPU and command."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    system = f"{platform.system()} {platform.machine()}"
    return {**circumstances(), "system": system, "gpu": gpu, "command": command_line()}
