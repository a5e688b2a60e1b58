"""Time this checkout against another one, interleaved: reads, training steps, translation, preparation and start-up.

    python benchmarks/checkouts.py OTHER_CHECKOUT --threads 2 --out results.json

Each checkout runs in a process of its own and waits while the other one works. A round times every case in both, so
slow moments of the machine meet both sides. The ratio is the other checkout's seconds divided by ours: above 1 means
that this checkout is faster. Only names that all versions share are used. Build the compiled library in both first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
FIXTURE = HERE.parents[1] / "tests" / "golden" / "v0.1" / "run"
Case = Callable[[], object]


def main() -> None:
    """Run both checkouts in turns, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each checkout (default: 15)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="only cases that contain one of these")
    parser.add_argument("--out", type=Path, help="write the ratios here as JSON")
    options = parser.parse_args()
    sides = {"ours": Side(HERE.parents[1], options.threads), "other": Side(options.other.resolve(), options.threads)}
    seconds: dict[str, dict[str, list[float]]] = {}
    cases = [case for case in sides["ours"].cases if any(text in case for text in options.only)]
    for turn in range(options.rounds + 1):
        for case in cases:
            for name in sorted(sides, reverse=bool(turn % 2)):
                taken = sides[name].time(case)
                if turn:  # the first round warms up
                    seconds.setdefault(case, {}).setdefault(name, []).append(taken)
    for side in sides.values():
        side.close()
    results = {case: summary(both["ours"], both["other"]) for case, both in seconds.items()}
    print(f"{'case':<36}{'ours, ms':>10}{'ratio of minima':>17}{'of medians':>12}")
    for case, row in results.items():
        print(f"{case:<36}{row['ours_ms']:>10.2f}{row['ratio_of_minima']:>17.3f}{row['ratio_of_medians']:>12.3f}")
    if options.out is not None:
        from measure import circumstances

        found = {
            "rounds": options.rounds,
            "threads": options.threads,
            "other_commit": commit_of(options.other),
            "circumstances": {key: value for key, value in circumstances().items() if key != "command"},
            "cases": results,
        }
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout.strip()


def summary(ours: list[float], other: list[float]) -> dict[str, float]:
    """Return our median time, and the other's minimum and median divided by ours."""
    return {
        "ours_ms": round(1e3 * statistics.median(ours), 3),
        "ratio_of_minima": round(min(other) / min(ours), 3),
        "ratio_of_medians": round(statistics.median(other) / statistics.median(ours), 3),
    }


class Side:
    """A process that times the cases of one checkout when it is told to."""

    def __init__(self, checkout: Path, threads: int) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE), "--work"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self.cases: list[str] = self._answer()

    def time(self, case: str) -> float:
        """Return the seconds of one call."""
        assert self.process.stdin is not None
        print(case, file=self.process.stdin, flush=True)
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


def work() -> None:
    """Name the cases of the package that Python imports, then time one for every line that comes in."""
    with tempfile.TemporaryDirectory() as directory:
        cases = {**read_cases(), **model_cases(), **command_cases(Path(directory))}
        print(json.dumps(list(cases)), flush=True)
        for line in sys.stdin:
            call = cases[line.strip()]
            started = time.perf_counter()
            call()
            print(json.dumps(time.perf_counter() - started), flush=True)


def read_cases() -> dict[str, Case]:
    """Return reads of every size, with and without gradients."""
    import torch

    import reluformer as rf

    def read(rule: str, length: int, times: int, train: bool, **options: Any) -> Case:
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 4, length, 64, requires_grad=train) for _ in range(3))

        def call() -> None:
            for _ in range(times):
                out = rf.read(q, k, v, rule=rule, **options)
                if train:
                    out.sum().backward()

        return call

    cases: dict[str, Case] = {}
    for rule in ("softmax", "relu", "relu_norm", "relu_exp", "sigmoid"):
        cases[f"read {rule} 64, 40 times"] = read(rule, 64, 40, False)
        cases[f"read {rule} 1024"] = read(rule, 1024, 1, False)
        cases[f"train {rule} 128, 10 times"] = read(rule, 128, 10, True)
        cases[f"train {rule} 1024 causal"] = read(rule, 1024, 1, True, causal=True)
    cases["train sparsemax 256"] = read("sparsemax", 256, 1, True)
    cases["statistics relu 1024"] = read("relu", 1024, 1, False, return_stats=True)
    return cases


def model_cases() -> dict[str, Case]:
    """Return training steps of both architectures, and a feed-forward memory that reads a few rows."""
    import torch

    import reluformer as rf
    from reluformer.layers import FeedForward

    def step(architecture: str) -> Case:
        torch.manual_seed(0)
        model = rf.ReLUFormer(rf.ModelConfig.preset("tiny", architecture, vocab_size=1000, dropout=0.0))
        source, target = torch.randint(1000, (2, 8, 128))

        def call() -> None:
            model.zero_grad()
            model(source, target).logits.logsumexp(-1).sum().backward()

        return call

    torch.manual_seed(0)
    memory = FeedForward(512, 2048, rf.rules.get("relu_plain")).eval()
    with torch.no_grad():
        memory.keys.bias -= 1.5  # most slots do not fire
    rows = torch.randn(1, 2, 512)

    @torch.inference_mode()
    def few_rows() -> None:
        for _ in range(50):
            memory(rows)

    steps = {f"training step {name}": step(name) for name in ("reluformer", "transformer")}
    return {**steps, "feed-forward, 2 rows, 50 times": few_rows}


def command_cases(directory: Path) -> dict[str, Case]:
    """Return translation with the recorded run, as it is and with a larger model, preparation, and start-up."""
    import torch

    import reluformer as rf

    def load(run: Path, **decoding: Any) -> Any:
        """Load a run that only searches: a version that also checks what its sentences read leaves the check out."""
        try:
            return rf.load(run, check_alignment=False, **decoding)
        except rf.ReluformerError:
            return rf.load(run, **decoding)

    small = load(FIXTURE)
    for name in ("tokenizer.json", "tokenizer.meta.json"):
        shutil.copy(FIXTURE / name, directory)
    documents = [["The old woman sees the dog .", "It is big ."]] * 4
    cases: dict[str, Case] = {"translate, recorded run": lambda: small.translate_documents(documents)}
    for name, attention in (("relu", "relu"), ("softmax", "softmax"), ("sparsemax", "sparsemax")):
        torch.manual_seed(0)
        changes = dict.fromkeys(("encoder_attention", "decoder_attention", "cross_attention"), attention)
        config = rf.ModelConfig.preset("tiny", vocab_size=small.tokenizer.vocab_size, **changes)
        rf.ReLUFormer(config).save(directory)
        larger = load(directory, beam=4)
        cases[f"translate, {name}, tiny"] = lambda larger=larger: larger.translate_documents(documents[:1])
    recipe = HERE.parents[1] / "tests" / "golden" / "recipes" / "relu.yaml"

    def command(*arguments: str) -> Case:
        call = [sys.executable, "-m", "reluformer", *arguments]
        cached = {**os.environ, "PYTHONPYCACHEPREFIX": str(directory / "compiled")}
        cached.pop("PYTHONDONTWRITEBYTECODE", None)  # as for a user, the first turn compiles the Python files
        return lambda: subprocess.run(
            call, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=cached
        )

    def prepare() -> None:
        prepared = directory / "prepared"
        shutil.rmtree(prepared, ignore_errors=True)
        command("prepare", str(recipe), "--to", str(prepared))()

    return {**cases, "reluformer prepare": prepare, "reluformer --help": command("--help")}


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--work"] else main()
