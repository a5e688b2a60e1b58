"""Requests a second and their latency, decoded together, one after the other, and together in int8; and a soak.

python benchmarks/serving.py --run runs/demo/reluformer --json out.json [--texts test.en.gz] [--soak]

Clients on the same machine ask for one text after the other, each as soon as it has its
answer. The three kinds of server take turns. `--soak` compares every answer of many requests
with the one that the text got alone, while other clients misbehave.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
from pathlib import Path
from typing import Any

from measure import circumstances
from serving_load import THREADS, Answers, ask, for_seconds, server
from serving_soak import soak


def texts_of(path: Path | None, most: int) -> list[str]:
    """The lines of a file, or documents of the embedded corpus."""
    if path is None:
        from reluformer.translation.embedded import generate

        return [" ".join(found.document.src) for found in generate(most, split="test")]
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [line.strip() for line in content.decode().splitlines() if line.strip()][:most]


def measure(run: Path, texts: list[str], counts: list[int], seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Three rows for each number of clients: all servers are up all the time, and take turns."""
    rows = []
    with server(run) as together, server(run, "--max-batch", "1") as single, server(run, "--int8") as rounded:
        kinds = {"together": together, "one at a time": single, "together, int8": rounded}
        for clients in counts:
            turns: dict[str, list[Answers]] = {kind: [] for kind in kinds}
            for _ in range(rounds):
                for kind, running in kinds.items():
                    turns[kind].append(ask(running, texts, clients, for_seconds(seconds)))
            found = [_row(kind, clients, answers) for kind, answers in turns.items()]
            single_rate = found[1]["requests_per_second"]
            for row in found:
                row["throughput_over_one_at_a_time"] = round(row["requests_per_second"] / single_rate, 2)
                print(json.dumps(row), flush=True)
            rows += found
    return rows


def _row(kind: str, clients: int, turns: list[Answers]) -> dict[str, Any]:
    return {
        "decoded": kind,
        "clients": clients,
        "requests_per_second": round(statistics.median(len(a.seconds) / a.took for a in turns), 1),
        "of_each_turn": [round(len(a.seconds) / a.took, 1) for a in turns],
        **{
            f"p{round(100 * share)}_milliseconds": round(statistics.median(a.percentile(share) for a in turns), 1)
            for share in (0.5, 0.95, 0.99)
        },
        "unanswered": sum(text is None for answers in turns for _, text in answers.texts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="directory of a run")
    parser.add_argument("--texts", type=Path, help="a text a line, .gz or not; else documents of the embedded corpus")
    parser.add_argument("--most", type=int, default=1000, help="texts at the most")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--soak", type=int, default=0, metavar="REQUESTS", help="compare so many answers instead")
    parser.add_argument("--json", type=Path, help="add the figures to this file, under the name of --name")
    parser.add_argument("--name", help="what the figures are called in the file; else the name of the run")
    arguments = parser.parse_args()
    texts = texts_of(arguments.texts, arguments.most)
    results: dict[str, Any] = {**circumstances(), "threads": THREADS, "texts": len(texts)}
    results["mean_characters"] = round(statistics.mean(map(len, texts)), 1)
    if arguments.soak:
        results["soak"] = soak(arguments.run, texts, max(arguments.clients), arguments.soak)
        print(json.dumps(results["soak"], indent=1))
    else:
        results["rows"] = measure(arguments.run, texts, arguments.clients, arguments.seconds, arguments.rounds)
    if arguments.json is not None:
        _add(arguments.json, arguments.name or arguments.run.name, results)


def _add(path: Path, name: str, results: dict[str, Any]) -> None:
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"benchmark": "serving"}
    known[name] = {**known.get(name, {}), **results}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
