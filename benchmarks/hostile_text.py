"""The time that readers, splitters and formats need for hostile text of 0.1, 1 and 10 MB.

    python benchmarks/hostile_text.py --out docs/results/hostile-text.json

Each text is read in a process of its own, which is killed after a time limit. Growth is the time of the longest text
over that of the one before it: about 10 is linear time, and 100 is quadratic.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from measure import circumstances, publish
from reluformer.errors import ReluformerError
from reluformer.translation import formats, scoring, splitters
from reluformer.translation.corpus import read_documents
from reluformer.translation.downloads.convert import read_segments, unescape
from reluformer.translation.recipe import CorpusSource

SIZES = (100_000, 1_000_000, 10_000_000)
SECONDS = 900.0
PO = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "{}"\nmsgstr ""\n'
TMX = '<tmx version="1.4"><header/><body><tu><tuv xml:lang="en"><seg>{}</seg></tuv></tu></body></tmx>'
XLIFF_2 = (
    '<xliff version="2.0" srcLang="en" trgLang="de" xmlns="urn:oasis:names:tc:xliff:document:2.0"><file id="f">'
    '<unit id="1"><segment><source>{}</source></segment></unit></file></xliff>'
)
TABLE = "|a|b|\n|-|-|\n"
PATTERNS: dict[str, tuple[str, str, str, str]] = {
    # name: the reader, and what the text begins with, repeats and ends with
    "spaces": ("plain", "a", " ", "b"),
    "stops": ("plain", "", ".", ""),
    "letters with dots": ("plain", "", "a.", ""),
    "newlines": ("plain", "a", "\n", "b"),
    "spaces in wrapped text": ("wrapped", "a", " ", "b"),
    "lines of spaces": ("wrapped", "a", "    \n b", ""),
    "sentences of a line": ("aligned", "", "A cat. ", ""),
    "unclosed tag": ("html", "<b>", "a", ""),
    "unclosed tags": ("html", "", "<b>a", ""),
    "quotes in tags": ("html", "", "<a \"'", ""),
    "tags in sentences": ("html", "", "A <b>c</b> b. ", ""),
    "marks in a long sentence": ("html", "<b>a</b> " * 190, "a ", ""),
    "comments": ("html", "", "<!-- --", ""),
    "code in sentences": ("markdown", "", "A `c` b. ", ""),
    "open brackets": ("markdown", "", "[a](", ""),
    "ticks": ("markdown", "", "``a`", ""),
    "hard breaks": ("markdown", "", "a  \n", ""),
    "cells in a row": ("markdown", TABLE, "|a", "|\n"),
    "rows of a table": ("markdown", TABLE, "|a|b|\n", ""),
    "quotes in quotes": ("markdown", "", "> ", "a"),
    "columns of spaces": ("tsv", "a", " ", "\tb"),
    "rows of spaces": ("tsv", "", "  \t  \n", ""),
    "a long sentence": ("jsonl", '{"src": ["', "a. ", '"]}'),
    "brackets": ("jsonl", '{"src": ["a"], "id": ', "[", ""),
    "stops in a segment": ("tmx", TMX.partition("{}")[0], "a. ", TMX.partition("{}")[2]),
    "openings": ("xliff", "", "<xliff ", ""),
    "percent signs": ("xliff", XLIFF_2.partition("{}")[0], "%0 ", XLIFF_2.partition("{}")[2]),
    "zeros of a placeholder": ("po", PO.partition("{}")[0] + "%", "0", PO.partition("{}")[2]),
    "percent signs of a message": ("po", PO.partition("{}")[0], "% ", PO.partition("{}")[2]),
    "plural declarations": ("po", 'msgid ""\nmsgstr "Plural-Forms: ', "nplurals=x", '\\n"\n'),
    "splitter: abbreviations": ("simple", "", "Nr. ", ""),
    "splitter: quotes": ("simple", "", '." ', ""),
    "splitter: lines": ("none", "", "\r", ""),
    "corpus of one line": ("corpus.tsv", "a\t", "b ", "\n"),
    "corpus of tabs": ("corpus.tsv", "", "\t", "\n"),
    "corpus of JSON": ("corpus.jsonl", '{"src": ["', "a ", '"], "tgt": ["b"]}\n'),
    "corpus of a message": ("corpus.po", PO.partition("{}")[0], "a ", PO.partition("{}")[2]),
    "hypotheses": ("hypotheses.jsonl", '{"hyp": ["', "a ", '"]}\n'),
    "SGML segments without an end": ("segments.sgm", "<doc docid=a>", "<seg id=1>x\n", ""),
    "character references": ("unescape", "", "&#9", ""),
}


def read(reader: str, text: str, path: Path) -> None:
    """Reads a text as the named reader does, and fills it where it is a document."""
    if reader in splitters.names():
        splitters.get(reader).split(text)
    elif reader == "unescape":
        unescape(text)
    elif "." in reader:
        path = path.with_name(reader)
        path.write_text(text, encoding="utf-8", newline="")
        read_file: dict[str, Callable[[Path], Any]] = {
            "corpus": lambda path: list(read_documents(CorpusSource(path=path))),
            "hypotheses": scoring.read_hypotheses,
            "segments": read_segments,
        }
        read_file[reader.partition(".")[0]](path)
    else:
        codec = formats.PlainText(wrapped=True) if reader == "wrapped" else formats.get(reader)
        sentences, skeleton = codec.parse(text)
        skeleton.fill([sentence + " x" for sentence in sentences])


def measured(connection: Connection, pattern: str, size: int) -> None:
    """Sends the seconds of processor time that a text takes."""
    reader, head, unit, tail = PATTERNS[pattern]
    text = head + unit * (size // len(unit)) + tail
    with tempfile.TemporaryDirectory() as place:
        started = time.process_time()
        with suppress(ReluformerError):  # a refusal must come quickly, too
            read(reader, text, Path(place) / "text")
        connection.send(time.process_time() - started)


def seconds(pattern: str, size: int) -> float | None:
    """Returns the time of a text, or None after the time limit."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=measured, args=(there, pattern, size))
    process.start()
    there.close()
    try:
        return round(float(here.recv()), 3) if here.poll(SECONDS) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()


def main() -> None:
    """Prints a line for each pattern."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=PATTERNS, metavar="NAME")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for pattern in options.patterns:
        times = [seconds(pattern, size) for size in options.sizes]
        growth = [round(b / a, 1) if a and b else None for a, b in pairwise(times)]
        rows.append({"pattern": pattern, "reader": PATTERNS[pattern][0], "seconds": times, "growth": growth})
        if not options.json:
            print(json.dumps(rows[-1]), flush=True)
    if options.out is not None and options.out.exists():  # texts that were not measured again stay
        before = {row["pattern"]: row for row in json.loads(options.out.read_text(encoding="utf-8"))["texts"]}
        measured_again = {row["pattern"]: row for row in rows}
        rows = [row for name in PATTERNS if (row := measured_again.get(name, before.get(name))) is not None]
    publish({"sizes": options.sizes, "texts": rows, "circumstances": circumstances()}, options.json, options.out)


if __name__ == "__main__":
    main()
