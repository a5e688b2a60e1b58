"""Our tokenizer as a `PreTrainedTokenizerFast`: the same ids, from the same tokenizer.json.

For translation a text is one sentence and gets an end token. `encode_documents` encodes
documents, whose sentences are separated by a token. For a language model a text is the beginning
of a document: it gets a begin token and is padded on the left. tokenizer.json is copied and never rewritten, so its
fingerprint stays the one in the model's configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing
from transformers import BatchEncoding, PreTrainedTokenizerFast

from reluformer.errors import ArgumentError, StorageError
from reluformer.files import parse_json, read_text
from reluformer.translation.tokenizer import BEGIN, END, PAD, SEPARATOR, SPECIAL_TOKENS, UNKNOWN, Tokenizer


class RunTokenizer(PreTrainedTokenizerFast):
    """What the tokenizers of all models share; create one with `from_pretrained`, or with `of` from our own."""

    vocab_files_names: ClassVar[dict[str, str]] = {
        "tokenizer_file": "tokenizer.json",
        "metadata_file": "tokenizer.meta.json",
    }
    model_input_names: ClassVar[list[str]] = ["input_ids", "attention_mask"]
    side: ClassVar[str]
    """Where rows are padded."""

    def __init__(
        self,
        tokenizer_file: str | None = None,
        metadata_file: str | None = None,
        own: Tokenizer | None = None,
        **options: Any,
    ) -> None:
        self.own = _load(tokenizer_file, metadata_file) if own is None else own
        backend = Backend.from_str(self.own.definition)
        backend.post_processor = self.template()
        fixed = {
            "tokenizer_object": backend,
            "pad_token": SPECIAL_TOKENS[PAD],
            "bos_token": SPECIAL_TOKENS[BEGIN],
            "eos_token": SPECIAL_TOKENS[END],
            "sep_token": SPECIAL_TOKENS[SEPARATOR],
            "unk_token": SPECIAL_TOKENS[UNKNOWN],
            "padding_side": self.side,
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": True,  # "<sep>" in a sentence is text
        }
        super().__init__(**{**options, **fixed})

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Wraps a tokenizer of this package."""
        return cls(own=tokenizer)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **options: Any) -> Any:
        """Loads a tokenizer as transformers does.

        Raises:
            StorageError: Files are missing, or the tokenizer belongs to another model.
        """
        directory = Path(str(pretrained_model_name_or_path))
        if directory.is_dir():
            _load(str(directory / "tokenizer.json"), str(directory / "tokenizer.meta.json"))
        tokenizer = super().from_pretrained(pretrained_model_name_or_path, *args, **options)
        if (directory / "config.json").is_file():
            check_fingerprint(_fingerprint_of_model(directory / "config.json"), tokenizer, str(directory))
        return tokenizer

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **options: Any) -> dict[str, Any]:
        """Returns the options unchanged: `__init__` reads the file."""
        return options

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of tokenizer.json."""
        return self.own.fingerprint

    def template(self) -> TemplateProcessing:
        """Returns where special tokens stand around a text."""
        raise NotImplementedError

    def _save_pretrained(
        self, save_directory: Any, file_names: tuple[str, ...], *args: Any, **options: Any
    ) -> tuple[str, ...]:
        if len(self) != self.own.vocab_size:
            raise ArgumentError(
                f"{len(self) - self.own.vocab_size} tokens were added, which no trained model knows; train a "
                "tokenizer with them (`reluformer prepare`)"
            )
        self.own.save(save_directory)
        return (*file_names, *(str(Path(save_directory) / name) for name in self.vocab_files_names.values()))


class ReLUFormerTokenizer(RunTokenizer):
    """The tokenizer of a ReLUFormer: a text is one sentence and gets an end token.

    Args:
        tokenizer_file: The path of tokenizer.json; `from_pretrained` finds it.
        metadata_file: The path of tokenizer.meta.json, in the same directory.
        own: A tokenizer of this package instead of the two files; `of` takes it, too.

    Raises:
        StorageError: A file is missing, or damaged.

    Example:
        >>> from reluformer import hub
        >>> tokenizer = hub.ReLUFormerTokenizer.from_pretrained("exported")
        >>> tokenizer("The lamp is new.")["input_ids"][-1]  # the end token
        2
        >>> rows = tokenizer.encode_documents([["The lamp is new.", "It is big."]])
        >>> tokenizer.decode_sentences(rows["input_ids"][0])
        ['The lamp is new.', 'It is big.']
    """

    side = "right"

    def template(self) -> TemplateProcessing:
        """Returns where special tokens stand: after a sentence, and between two."""
        end, separator = SPECIAL_TOKENS[END], SPECIAL_TOKENS[SEPARATOR]
        return TemplateProcessing(
            single=f"$A {end}", pair=f"$A {separator} $B {end}", special_tokens=[(end, END), (separator, SEPARATOR)]
        )

    def encode_documents(self, documents: Sequence[Sequence[str]], **padding: Any) -> BatchEncoding:
        """Encodes documents as padded rows.

        Args:
            documents: Each document is a list of sentences.
            **padding: Options of `pad`, such as return_tensors.

        Returns:
            `input_ids` and `attention_mask`, each (B, S).

        Raises:
            ArgumentError: A document is a string.
        """
        rows = []
        for document in documents:
            if isinstance(document, str):
                raise ArgumentError("encode_documents takes documents as lists of sentences; write [[sentence], ...]")
            tokens = [token for sentence in self.own.encode_batch(list(document)) for token in (*sentence, SEPARATOR)]
            rows.append([*tokens[:-1], END])
        return self.pad({"input_ids": rows}, **padding)

    def decode_sentences(self, ids: Sequence[int]) -> list[str]:
        """Returns the sentences of a generated row, without special tokens."""
        tokens = [int(token) for token in ids]
        return self.own.decode_sentences([token for token in tokens if token not in (PAD, BEGIN)])


class ReLUFormerLanguageTokenizer(RunTokenizer):
    """The tokenizer of a language model: a text is the beginning of a document and is padded on the left.

    Args:
        tokenizer_file: The path of tokenizer.json; `from_pretrained` finds it.
        metadata_file: The path of tokenizer.meta.json, in the same directory.
        own: A tokenizer of this package instead of the two files; `of` takes it, too.

    Raises:
        StorageError: A file is missing, or damaged.

    Example:
        >>> from reluformer import hub
        >>> from reluformer.translation.tokenizer import Tokenizer
        >>> tokenizer = hub.ReLUFormerLanguageTokenizer.of(Tokenizer.load("runs/demo/reluformer"))
        >>> tokenizer("The lamp")["input_ids"][0]  # the begin token
        1
        >>> tokenizer.padding_side
        'left'
    """

    side = "left"

    def template(self) -> TemplateProcessing:
        """Returns where special tokens stand: before a document, and between two."""
        begin, end = SPECIAL_TOKENS[BEGIN], SPECIAL_TOKENS[END]
        return TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A {end} {begin} $B", special_tokens=[(begin, BEGIN), (end, END)]
        )


def check_fingerprint(expected: str | None, tokenizer: Any, where: str) -> None:
    """Raises an error if the tokenizer is not the model's own."""
    found = getattr(tokenizer, "fingerprint", None)
    if expected is not None and found != expected:
        raise StorageError(
            f"{where}: this is not the tokenizer that the model was trained with; take tokenizer.json and "
            "tokenizer.meta.json from the model's own directory"
        )


def _load(tokenizer_file: str | None, metadata_file: str | None) -> Tokenizer:
    if tokenizer_file is None or metadata_file is None:
        raise StorageError(
            "tokenizer.json or tokenizer.meta.json is missing; copy both from the run or the export of the model"
        )
    return Tokenizer.load(Path(tokenizer_file).parent)


def _fingerprint_of_model(path: Path) -> str | None:
    try:
        found = parse_json(read_text(path)).get("tokenizer_sha256")
    except (OSError, ValueError, AttributeError) as error:
        raise StorageError(f"{path}: damaged, not readable as JSON ({error}); export the model again") from None
    return found if isinstance(found, str) else None
