"""Inputs of the fuzzers: whole files of every kind, and seeded mutations of them.

An input is a folder of files. A mutation changes a few of them, as a bad disk, a careless program or an
attacker would. The same seed and number give the same input.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

Files = dict[str, bytes | None]
"""The files of an input by name; None stands for a named pipe."""

NUMBERS = (
    *(0, -1, 1, 7, 2**31, 2**63, 10**18, 10**5000, 1e308, -0.0),
    *(float("inf"), float("nan"), True, "1e999", "0x" + "f" * 5000),
)
WORDS = (
    *("{x}", "{0}", "%s", "%(a)s", "\0", "\ud800", "\ufeff", "..", "../../x", "/dev/zero"),
    *("[1]", "[/1]", "\u2028", "ß" * 99, ""),
)
BITS = (
    *(" ", ".", "a. ", "\n", "\r", "\t", "<b>", "</b>", "<", ">", "<!--", "<code>", "&#9;", "&", "%", "%(", "{", "}"),
    *("[", "](", "![", "[1]", "`", "```\n", "\\", "*", "|", "|-|\n", "> ", "- ", "1. ", "# ", "http://a.b", "a@b.c"),
    *('"', "'", "(", "\0", "\ufeff", "\u2028", "\x85", "é", "😀", "---\n", "<script>", "<xliff ", "msgid "),
    *('msgstr[0] ""\n', "nplurals=9;", '{"src": [', "null", "[[", "]]", "<tu>", "<seg>", "\x1b", "\v"),
)
PARAGRAPH = "Dr. Smith saw 3 cats. Use `ls -l` (or not)! A <b>green</b> coat costs 5 &lt; 6 €. See [it](http://a.b)."
XML = "A green coat. It is new."
DOCUMENTS = {
    "a.txt": PARAGRAPH + "\n\n  " + PARAGRAPH + "\r\nLast",
    "a.md": f"---\ntitle: x\n---\n# Title\n\n{PARAGRAPH}\n\n- item **one**\n- [ ] `two`\n\n"
    "|a|b|\n|-|-|\n|c \\| d|e|\n\n> quote  \n> on\n",
    "a.html": f"<!doctype html><p class='x'>{PARAGRAPH}</p><pre>code</pre><ul><li>One<li>Two &amp; <i>three</i></ul>",
    "a.tsv": "A cat.\tEine Katze.\nA dog.\t\n\nOne more.\n",
    "a.csv": 'source,target\nA cat.,Eine Katze.\n"A dog, too.",\n,\n"It ""ran""\nhome.",,note\n',
    "a.srt": "1\n00:00:01,000 --> 00:00:02,500\n<i>A cat</i> ran\nhome. {\\an8}It is new.\n\n"
    "2\n00:00:03,000 --> 00:00:04,000 X1:5\n- A dog?\n- 1,234\n",
    "a.vtt": "WEBVTT\n\nNOTE a\n\nSTYLE\n::cue {}\n\n"
    "x\n00:01.000 --> 00:02.000 line:0\n<v Anna>A cat &amp; <00:01.500>a dog.\n",
    "a.jsonl": '{"id": "d1", "src": ["A cat.", "It ran."]}\n{"id": "d2", "src": ["A dog."], "tgt": ["Ein Hund."]}\n',
    "a.tmx": '<?xml version="1.0"?><tmx version="1.4"><header/><body>'
    f'<tu><tuv xml:lang="en"><seg>{XML}</seg></tuv></tu>'
    '<tu><tuv xml:lang="en"><seg>A <bpt i="1">[b]</bpt>new<ept i="1"/> <ph x="2"/> coat.</seg></tuv></tu></body></tmx>',
    "a.xlf": '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">'
    '<file source-language="en" target-language="de" datatype="plaintext" original="x"><body>'
    f'<trans-unit id="1"><source>{XML} <g id="1">Here</g></source></trans-unit></body></file></xliff>',
    "b.xlf": '<xliff version="2.0" srcLang="en" trgLang="de" xmlns="urn:oasis:names:tc:xliff:document:2.0">'
    f'<file id="f"><unit id="1"><segment><source>{XML}</source></segment></unit></file></xliff>',
    "a.po": 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
    '"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n\n'
    'msgid "%d file of {name}"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n\n'
    '#, fuzzy\nmsgid "Open"\nmsgstr "Auf"\n',
}
CORPORA = {
    "a.src": "A cat.\nIt ran.\n\nA dog.\n",
    "a.tgt": "Eine Katze.\nSie lief.\n\nEin Hund.\n",
    "a.tsv": "A cat.\tEine Katze.\nIt ran.\tSie lief.\n\nA dog.\tEin Hund.\n",
    "a.csv": 'source,target\nA cat.,Eine Katze.\n"A dog, too.",Ein Hund.\n,\n"It ""ran"".","Er\nlief."\n',
    "a.jsonl": '{"id": "d1", "src": ["A cat.", "It ran."], "tgt": ["Eine Katze.", "Sie lief."]}\n' * 3,
    "a.tmx": DOCUMENTS["a.tmx"].replace("</tu>", '<tuv xml:lang="de"><seg>Ein Mantel.</seg></tuv></tu>'),
    "a.xlf": DOCUMENTS["a.xlf"].replace("</source>", "</source><target>Ein Mantel.</target>"),
    "a.po": DOCUMENTS["a.po"].replace('msgstr[0] ""', 'msgstr[0] "%d Datei"'),
}
LANGUAGE_TEXTS = {
    "a.txt": DOCUMENTS["a.txt"],
    "a.jsonl": '{"text": "A cat. It ran."}\n\n{"text": ["A dog.", "It \\u00e9 ran."], "n": 1}\n',
}
RECIPE = """data:
  train: {embedded: {documents: 20, sentences: [3, 5]}}
  valid: {src: a.src, tgt: a.tgt, documents: line}
  tokenizer: {vocab_size: 400}
  segments: {segment_tokens: 256}
model: {size: tiny, width: 16, heads: 2, encoder_attention: {name: relu, gamma: 2.0}}
training: {updates: 20, lr: 0.01, betas: [0.9, 0.98], regularizer: {}, max_minutes: 5}
decoding: {beam: 2, length_offset: 4, window_tokens: sentence}
"""
OVERRIDES = ["model.width=32", "training.lr=3e-4", "data.train.embedded.documents=7", "decoding.beam=1"]


def mutated_bytes(content: bytes, draw: random.Random) -> bytes:
    """Returns bytes with one of the faults of disks and copies."""
    place = draw.randrange(len(content) + 1)
    end = min(len(content), place + draw.choice((1, 1, 2, 8, 64, 4096)))
    match draw.randrange(6):
        case 0:
            return content[:place]
        case 1:
            return content[:place] + bytes(end - place) + content[end:]
        case 2:
            return content[:place] + draw.randbytes(end - place) + content[end:]
        case 3:
            return content[:place] + draw.randbytes(draw.randint(1, 9)) + content[place:]
        case 4:
            return content[:place] + content[place:end] * draw.choice((2, 3, 50)) + content[end:]
        case _:
            changed = bytearray(content or b"x")
            changed[place % len(changed)] ^= 1 << draw.randrange(8)
            return bytes(changed)


def mutated_text(content: bytes, draw: random.Random) -> bytes:
    """Returns a text with hostile pieces, doubled parts or missing parts."""
    text = content.decode("utf-8", "replace")
    for _ in range(draw.choice((1, 1, 2, 5))):
        place = draw.randrange(len(text) + 1)
        end = min(len(text), place + draw.choice((0, 1, 5, 40)))
        piece = draw.choice((*BITS, *WORDS)) * draw.choice((1, 1, 1, 2, 30, 3000))
        text = text[:place] + draw.choice((piece, "", text[place:end] * 3)) + text[end:]
    return text.encode("utf-8", "replace")


def mutated_inside(content: bytes, draw: random.Random) -> bytes:
    """Returns a text with pieces of one line inside of its lines, so that the sides of a corpus still match."""
    lines = content.decode("utf-8", "replace").split("\n")
    for _ in range(draw.choice((1, 1, 2, 5))):
        number = draw.randrange(len(lines))
        line = lines[number]
        place = draw.randrange(len(line) + 1)
        piece = draw.choice((*BITS, *WORDS)) * draw.choice((1, 1, 1, 2, 30, 3000))
        piece = "".join(sign for sign in piece if sign not in '\n\r\t"<,')
        lines[number] = line[:place] + draw.choice((piece, piece, line[place : place + 9] * 3)) + line[place:]
    return "\n".join(lines).encode("utf-8", "replace")


def mutated_value(value: Any, draw: random.Random) -> Any:
    """Returns a value of JSON with one value, key or entry changed somewhere inside."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        match draw.randrange(12):
            case 0:
                return {name: inner for name, inner in value.items() if name != key}
            case 1:
                return {(name + draw.choice(WORDS) if name == key else name): inner for name, inner in value.items()}
            case _:
                return {**value, key: mutated_value(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.7:
        place = draw.randrange(len(value))
        return [*value[:place], mutated_value(value[place], draw), *value[place + 1 :]]
    if isinstance(value, int | float) and not isinstance(value, bool) and draw.random() < 0.5:
        return draw.choice((-value, value + 1, value * 10**6, value * 10**12, value / 3, str(value), [value]))
    nested: Any = []
    for _ in range(draw.choice((1, 60, 3000))):
        nested = [nested]
    return draw.choice((*NUMBERS, *WORDS, None, [], {}, nested, {"a": 1}, "x" * 10**5, [value] * 3))


def mutated_json(content: bytes, draw: random.Random) -> bytes:
    """Returns JSON with a changed value, or damaged text."""
    if draw.random() < 0.25:
        return draw.choice((mutated_bytes, mutated_text))(content, draw)
    try:
        return dump(mutated_value(json.loads(content), draw))
    except (ValueError, RecursionError):
        return mutated_text(content, draw)


def dump(value: Any) -> bytes:
    """Returns a value as JSON, however deep it is nested and however many digits it has."""
    if isinstance(value, dict):
        return b"{" + b", ".join(dump(str(key)) + b": " + dump(inner) for key, inner in value.items()) + b"}"
    if isinstance(value, list):
        depth = 0
        while isinstance(value, list) and len(value) == 1:
            value, depth = value[0], depth + 1
        inner = b", ".join(map(dump, value)) if isinstance(value, list) else dump(value)
        return b"[" * depth + (b"[" + inner + b"]" if isinstance(value, list) else inner) + b"]" * depth
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**4000:
        return b"9" * 5001
    return json.dumps(value).encode()


def document(base: Files, draw: random.Random) -> Files:
    """Returns a document for translation in one of the formats."""
    name = draw.choice(list(DOCUMENTS))
    content = _several(DOCUMENTS[name].encode(), draw)
    return _sometimes_packed({name: content}, draw)


def corpus(base: Files, draw: random.Random) -> Files:
    """Returns a corpus, as one file or as a pair."""
    name = draw.choice(list(CORPORA))
    names = ("a.src", "a.tgt") if name in ("a.src", "a.tgt") else (name,)
    files: Files = {each: CORPORA[each].encode() for each in names}
    changed = draw.choice(names)
    files[changed] = None if draw.random() < 0.01 else _several(CORPORA[changed].encode(), draw)
    return _sometimes_packed(files, draw) if len(files) == 1 else files


def text(base: Files, draw: random.Random) -> Files:
    """Returns a corpus of a language model."""
    name = draw.choice(list(LANGUAGE_TEXTS))
    content = None if draw.random() < 0.01 else _several(LANGUAGE_TEXTS[name].encode(), draw)
    return _sometimes_packed({name: content}, draw)


def recipe(base: Files, draw: random.Random) -> Files:
    """Returns a recipe and single values that override it."""
    import yaml

    if draw.random() < 0.5:
        text = mutated_text(RECIPE.encode(), draw)
    else:
        text = dump(mutated_value(yaml.safe_load(RECIPE), draw))  # JSON is YAML
    overrides = list(OVERRIDES)
    for _ in range(draw.choice((0, 0, 1, 2))):
        overrides.append(mutated_text(draw.choice(OVERRIDES).encode(), draw).decode("utf-8", "replace"))
        key = draw.choice(OVERRIDES).partition("=")[0]
        overrides.append(f"{key}={dump(draw.choice((*NUMBERS, *WORDS))).decode()}")
    return {"recipe.yaml": text, "overrides.json": json.dumps(overrides).encode()}


def model(base: Files, draw: random.Random) -> Files:
    """Returns the folder of a model; half of the time with checksums that fit, as an attacker would make them."""
    files = dict(base)
    for _ in range(draw.choice((1, 1, 2))):
        name = draw.choice([name for name in files if files[name] is not None])
        if draw.random() < 0.02:
            files[name] = None
        elif name.endswith(".safetensors"):
            files[name] = _mutated_weights(files[name] or b"", draw)
        elif name.endswith(".json"):
            files[name] = mutated_json(files[name] or b"", draw)
        else:
            files[name] = mutated_text(files[name] or b"", draw)
    return _with_checksums(files) if draw.random() < 0.5 else files


def run(base: Files, draw: random.Random) -> Files:
    """Returns the directory of a run with one damaged file: a checkpoint, the log, the prepared corpus, ..."""
    name = draw.choice(list(base))
    content = base[name] or b""
    change = mutated_json if name.endswith(".json") and draw.random() < 0.5 else mutated_bytes
    return {**base, name: None if draw.random() < 0.01 else change(content, draw)}


BODIES: dict[str, dict[str, Any]] = {
    "/translate": {"q": [PARAGRAPH, "1,234"], "source": "en", "target": "de", "format": "html", "alternatives": 1},
    "/translate/stream": {"q": PARAGRAPH, "source": "auto", "target": "de", "format": "html"},
    "/translate_file": {"source": "en", "target": "de", "api_key": "x"},
    "/detect": {"q": PARAGRAPH},
    "/inspect": {"q": XML, "text": ["Ein Mantel.", "Er ist neu."], "attention": "encoder"},
}
"""A good body of each route of the server."""


def body(base: Files, draw: random.Random) -> Files:
    """Returns a request to the server: its route and content type, and its body as JSON or as a form."""
    from urllib.parse import urlencode

    route = draw.choice(list(BODIES))
    values = BODIES[route] if draw.random() < 0.3 else mutated_value(BODIES[route], draw)
    kind = "form" if route == "/translate_file" else draw.choice(("json", "json", "json", "form", "fields"))
    if not isinstance(values, dict):
        kind = "json"
    boundary = draw.choice(("x", "x", "x", "", "--", "y" * 200))
    head = {"json": "application/json", "fields": "application/x-www-form-urlencoded"}
    if kind == "json":
        content = dump(values) if draw.random() < 0.8 else mutated_json(dump(BODIES[route]), draw)
    elif kind == "fields":
        pairs = [(_field(key)[:99], _field(value)) for key, value in values.items()]
        content = urlencode(pairs * draw.choice((1, 1, 40))).encode()
    else:
        content = _multipart(values, boundary, document({}, draw), draw)
    if kind != "json" and draw.random() < 0.3:
        content = mutated_bytes(content, draw)
    head["form"] = f"multipart/form-data; boundary={boundary}"
    request = {"route": route, "type": head[kind] if draw.random() < 0.97 else draw.choice((*WORDS, *BITS))}
    return {"request.json": json.dumps(request).encode(), "body": content}


def _field(value: Any) -> bytes:
    """Returns a value as a form would send it."""
    return (value if isinstance(value, str) else dump(value).decode())[:9999].encode("utf-8", "replace")


def _multipart(values: dict[str, Any], boundary: str, files: Files, draw: random.Random) -> bytes:
    """Returns a form with a file, whose bytes are those of a document."""
    pieces = []
    for key, value in values.items():
        name = _field(key)[:99]
        pieces.append(b'Content-Disposition: form-data; name="' + name + b'"\r\n\r\n' + _field(value))
    for name, content in files.items():
        shown = name if draw.random() < 0.8 else draw.choice(WORDS) + name
        head = f'Content-Disposition: form-data; name="file"; filename="{shown}"\r\n\r\n'
        pieces.append(head.encode("utf-8", "replace") + (content or b""))
    mark = b"--" + boundary.encode()
    return b"".join(mark + b"\r\n" + piece + b"\r\n" for piece in pieces) + mark + b"--\r\n"


KINDS: dict[str, Callable[[Files, random.Random], Files]] = {
    "documents": document,
    "corpora": corpus,
    "texts": text,
    "recipes": recipe,
    "models": model,
    "language": model,
    "runs": run,
    "bodies": body,
}


def make(kind: str, base: Files, seed: int, number: int) -> Files:
    """Returns input `number` of a kind; `base` holds the whole files that it is made from."""
    return KINDS[kind](base, random.Random(f"{kind} {seed} {number}"))


def read_files(directory: Path) -> Files:
    """Returns the files of a folder and of those in it."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def _several(content: bytes, draw: random.Random) -> bytes:
    for _ in range(draw.choice((1, 1, 2, 4))):
        content = draw.choice((mutated_inside, mutated_inside, mutated_text, mutated_text, mutated_bytes))(
            content, draw
        )
    return content


def _sometimes_packed(files: Files, draw: random.Random) -> Files:
    if draw.random() < 0.9:
        return files
    packed: Files = {f"{name}.gz": gzip.compress(content or b"", mtime=0) for name, content in files.items()}
    if draw.random() < 0.5:
        packed = {name: mutated_bytes(content or b"", draw) for name, content in packed.items()}
    return packed


def _mutated_weights(content: bytes, draw: random.Random) -> bytes:
    """Returns a safetensors file with a changed header, or changed bytes."""
    size = int.from_bytes(content[:8], "little")
    if draw.random() < 0.5 or size > len(content):
        return mutated_bytes(content, draw)
    header = mutated_json(content[8 : 8 + size], draw)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def _with_checksums(files: Files) -> Files:
    """Returns the files of a model with the checksums that belong to them, where they can still be written."""
    digests = {name: hashlib.sha256(content or b"").hexdigest() for name, content in files.items()}
    changes = {
        "tokenizer.meta.json": {"sha256": digests.get("tokenizer.json")},
        "config.json": {"weights": digests.get("model.safetensors"), "tokenizer": digests.get("tokenizer.json")},
    }
    fitting = dict(files)
    for name, values in changes.items():
        try:
            content = json.loads(fitting.get(name) or b"")
            fitting[name] = dump({**content, **values})
        except (ValueError, TypeError, RecursionError):
            continue
    return fitting
