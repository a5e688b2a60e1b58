"""The tokenizer: one joint vocabulary of both languages, Hugging Face `tokenizers` over bytes.

Every sentence is tokenized with one space in front, which decoding takes away again: the
first word of a sentence is then the same token as inside it, and decode(encode(x)) == x
for any text. Special tokens only ever come from their ids, never from text that looks
like them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from reluformer.errors import DataError, StorageError
from reluformer.files import parse_json, read_json, read_text, write_text
from reluformer.translation.document import Range
from reluformer.translation.recipe import TokenizerConfig

PAD, BEGIN, END, SEPARATOR, UNKNOWN = range(5)
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<sep>", "<unk>")
FORMAT = 1
_APPENDED_STEP = 1e-4
_FILE, _METADATA = "tokenizer.json", "tokenizer.meta.json"
_PARTS: dict[str, Any] = {
    "normalizer": {"type": "Prepend", "prepend": " "},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Strip", "content": " ", "start": 1}]},
    "post_processor": None,
    "truncation": None,
    "padding": None,
}
"""The parts of a tokenizer.json that `Tokenizer.train` writes, without the options that change nothing."""
_CHANGING_OPTIONS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")
_MOST_CHARACTERS = 100_000
"""The most characters of an entry of the vocabulary."""


class Tokenizer:
    """A tokenizer turns sentences into token ids and back. Make one with `train` or `load`.

    Example:
        >>> from reluformer.translation.recipe import TokenizerConfig
        >>> from reluformer.translation.tokenizer import Tokenizer
        >>> tokenizer = Tokenizer.train(["A cat sat.", "A cat ran."], TokenizerConfig(vocab_size=300))
        >>> tokenizer.decode(tokenizer.encode("A cat ran."))
        'A cat ran.'
    """

    def __init__(self, definition: str, kind: str) -> None:
        """Takes the text of a tokenizer.json, which is kept as it is, so that its fingerprint stays."""
        self._definition = definition
        self.kind = kind
        self._tokenizer: Any = tokenizers.Tokenizer.from_str(definition)
        # literal "<sep>" in a sentence stays text; this switch is not part of tokenizer.json
        self._tokenizer.encode_special_tokens = True

    @classmethod
    def train(cls, sentences: Iterable[str], config: TokenizerConfig) -> Tokenizer:
        """Learns a vocabulary from the first `config.sample_sentences` sentences.

        Raises:
            DataError: There are no sentences.
        """
        sample = iter(islice(sentences, config.sample_sentences))
        first = next(sample, None)
        if first is None:
            raise DataError("no sentences to learn a tokenizer from")
        tokenizer: Any = tokenizers.Tokenizer(models.BPE() if config.kind == "bpe" else models.Unigram())
        tokenizer.normalizer = normalizers.Prepend(" ")
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        tokenizer.train_from_iterator(_chain(first, sample), _trainer(config))
        definition = tokenizer.to_str(pretty=False)
        return cls(_in_fixed_order(definition) if config.kind == "unigram" else definition, config.kind)

    @property
    def vocab_size(self) -> int:
        """The number of entries, with the special ones."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def definition(self) -> str:
        """The text of its tokenizer.json."""
        return self._definition

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the definition, which is equal for equal tokenizers only."""
        return hashlib.sha256(self._definition.encode("utf-8")).hexdigest()

    def encode(self, sentence: str) -> list[int]:
        """Returns the token ids of one sentence, without special tokens."""
        ids: list[int] = self._tokenizer.encode(sentence, add_special_tokens=False).ids
        return ids

    def encode_with_ranges(self, sentence: str) -> tuple[list[int], tuple[Range, ...]]:
        """Returns the token ids of one sentence, and where each token stands in it."""
        encoding = self._tokenizer.encode(sentence, add_special_tokens=False)
        return encoding.ids, tuple(encoding.offsets)

    def ranges(self, ids: Sequence[int], text: str) -> tuple[Range, ...]:
        """Returns where each token stands in `text`, which is what `decode` made of the tokens.

        A character of several bytes may belong to several tokens.
        """
        sizes = [len(self._tokenizer.id_to_token(token) or "") if token > UNKNOWN else 0 for token in ids]
        places = [0] * (len(text.encode("utf-8")) + 1)  # of the character that each byte belongs to
        byte = 0
        for place, character in enumerate(text):
            size = len(character.encode("utf-8"))
            places[byte : byte + size] = [place] * size
            byte += size
        places[byte] = len(text)
        start = byte - sum(sizes)  # -1 where decoding took a space away
        found = []
        for size in sizes:
            low, high = (min(max(edge, 0), byte) for edge in (start, start + size))
            found.append((places[low], places[high - 1] + 1 if high > low else places[low]))
            start += size
        return tuple(found)

    def encode_batch(self, sentences: Sequence[str]) -> list[list[int]]:
        """Encodes many sentences on all cores."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(sentences, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of one sentence; special tokens vanish."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def decode_sentences(self, ids: Sequence[int]) -> list[str]:
        """Returns the sentences of a segment, split at separators, up to the first end token."""
        sentences: list[list[int]] = [[]]
        for token in ids:
            if token == END:
                break
            if token == SEPARATOR:
                sentences.append([])
            else:
                sentences[-1].append(int(token))
        return [self.decode(sentence) for sentence in sentences]

    def save(self, directory: str | Path) -> None:
        """Writes tokenizer.json (Hugging Face's format) and its metadata into `directory`."""
        directory = Path(directory)
        metadata = {"format": FORMAT, "kind": self.kind, "vocab_size": self.vocab_size, "sha256": self.fingerprint}
        write_text(directory / _FILE, self._definition)
        write_text(directory / _METADATA, json.dumps(metadata, indent=2) + "\n")

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """Loads what `save` wrote.

        Raises:
            StorageError: The files are missing, damaged, or were changed since.
        """
        path = Path(directory) / _FILE
        metadata = read_json(Path(directory) / _METADATA, what="tokenizer metadata", version=FORMAT)
        try:
            definition = read_text(path, most=2**28)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"{path}: cannot read the tokenizer: {error.strerror}") from None
        except ValueError:
            raise StorageError(f"{path}: damaged, it is not UTF-8; prepare the data again") from None
        if hashlib.sha256(definition.encode("utf-8")).hexdigest() != metadata.get("sha256"):
            raise StorageError(f"{path}: damaged, or changed since it was saved; prepare the data again")
        _check_parts(definition, path)
        try:
            tokenizer = cls(definition, str(metadata.get("kind")))
        # tokenizers raises a bare Exception for whatever it cannot parse, and a BaseException where its own code fails
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise StorageError(f"{path}: not a tokenizer: {error}") from None
        if tuple(map(tokenizer._tokenizer.id_to_token, range(len(SPECIAL_TOKENS)))) != SPECIAL_TOKENS:
            raise StorageError(f"{path}: ids 0 to 4 are not {' '.join(SPECIAL_TOKENS)}; it was not made by reluformer")
        return tokenizer


def _check_parts(definition: str, path: Path) -> None:
    """Refuses parts that `train` never writes: a foreign normaliser can turn one character into gigabytes."""
    try:
        values = parse_json(definition)
        model, added = values["model"], values["added_tokens"]
        found = {name: values.get(name) for name in _PARTS}
        vocabulary = model["vocab"]
        longest = max(map(len, vocabulary if isinstance(vocabulary, dict) else (piece for piece, _ in vocabulary)))
        options = {name: model[name] for name in _CHANGING_OPTIONS if model.get(name)}
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges", ())]
        unknown = next((merge for merge in merges if "".join(merge) not in vocabulary), None)
        special = [(token["id"], token["content"]) for token in added]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{path}: not a tokenizer: {type(error).__name__}: {error}") from None
    for name, expected in _PARTS.items():
        if not _agrees(found[name], expected):
            raise StorageError(f"{path}: has another '{name}' than reluformer writes; it was not made by reluformer")
    if options or special != list(enumerate(SPECIAL_TOKENS)):
        other = f"the option '{next(iter(options))}'" if options else "other added tokens"
        raise StorageError(f"{path}: has {other}; it was not made by reluformer")
    if unknown is not None:  # the library would end the thread over it
        shown = " ".join(map(repr, unknown))[:100]
        raise StorageError(f"{path}: damaged, it merges {shown}, which the vocabulary does not hold joined")
    if longest > _MOST_CHARACTERS:
        raise StorageError(
            f"{path}: an entry of the vocabulary has {longest:,} characters, at most {_MOST_CHARACTERS:,}"
        )


def _agrees(found: Any, expected: Any) -> bool:
    """Returns whether a value holds what is expected; keys that are not named may have any value."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(_agrees(found.get(key), value) for key, value in expected.items())
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(_agrees, found, expected))
    return bool(found == expected)


def _chain(first: str, rest: Iterable[str]) -> Iterable[str]:
    yield first
    yield from rest


def _trainer(config: TokenizerConfig) -> Any:
    options: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "special_tokens": list(SPECIAL_TOKENS),
        "initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet()),
        "show_progress": False,
    }
    if config.kind == "bpe":
        return trainers.BpeTrainer(**options, min_frequency=2)
    return trainers.UnigramTrainer(**options, unk_token=SPECIAL_TOKENS[UNKNOWN])


def _in_fixed_order(definition: str) -> str:
    """Removes the traces of the trainer's random hash order from a unigram definition.

    The trainer adds up scores in that order, so they differ in the last digits; and it
    appends the bytes it kept no piece for in that order, scored upwards from the lowest
    score in steps of 1e-4. Here those bytes all get the lowest score.
    """
    values = json.loads(definition)
    vocabulary = values["model"]["vocab"]
    special, pieces = vocabulary[: len(SPECIAL_TOKENS)], vocabulary[len(SPECIAL_TOKENS) :]
    lowest = min(score for _, score in pieces)

    def settled(piece: str, score: float) -> float:
        steps = (score - lowest) / _APPENDED_STEP
        appended = len(piece) == 1 and steps < 256.5 and abs(steps - round(steps)) < 1e-3
        return round(lowest if appended else score, 9)

    fixed = sorted(((piece, settled(piece, score)) for piece, score in pieces), key=lambda p: (-p[1], p[0]))
    values["model"]["vocab"] = [*special, *fixed]
    return json.dumps(values, ensure_ascii=False)
