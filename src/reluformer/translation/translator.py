"""The translator: a model with its tokenizer, from text to text.

`load_run` opens a run; `reluformer.load` opens exports as well. `score_targets` is forced
decoding: it scores translations that are given.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch

from reluformer.errors import ArgumentError, StorageError, UnfinishedRunWarning
from reluformer.models import storage
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.training.run import RunDirectory, find_run, refuse_folder_of_runs
from reluformer.translation import formats
from reluformer.translation.document import TranslatedSentence
from reluformer.translation.formats import FillReport, TextFormat
from reluformer.translation.inspection import AttentionMaps, inspect_document
from reluformer.translation.native_decoder import decoder_of
from reluformer.translation.recipe import DecodingConfig, decoding_of
from reluformer.translation.stepper import Decoder, ModelDecoder, evaluating, in_batches_of_similar_length, padded
from reluformer.translation.tokenizer import BEGIN, END, SEPARATOR, Tokenizer
from reluformer.translation.windows import (
    ReportProgress,
    Translation,
    stream_document,
    translate_documents,
)

Sentences = Sequence[str]


@dataclass(frozen=True)
class TargetScore:
    """The log-probabilities of a target given its source."""

    tokens: tuple[float, ...]
    """One for each token given the tokens before it, the end included."""
    sentences: tuple[float, ...]
    """One for each sentence, with the separator or end behind it."""

    @property
    def total(self) -> float:
        """The log-probability of the whole target."""
        return sum(self.tokens)


def load_run(
    directory: str | Path, device: str | torch.device = "cpu", *, int8: bool = False, **decoding: Any
) -> Translator:
    """Loads the translator of a run.

    Args:
        directory: A run, or its `best/`. A folder of runs, such as that of `make demo`, stands for the run
            called `reluformer` in it. An unfinished run has its best weights so far, and a warning says so.
        device: The device that the model computes on.
        int8: Whether to translate with weights of 8 bits.
        **decoding: Keys of `DecodingConfig` that differ from the run's recipe, such as `beam=1`.

    Returns:
        The translator, with the decoding settings of the run's recipe.

    Raises:
        StorageError: The directory holds no model, another model's tokenizer, or a damaged file.
        ArgumentError: The compiled library cannot decode the model with int8 weights.

    Example:
        >>> load_run("runs/demo", beam=1).config.beam
        1
    """
    run = RunDirectory(find_run(Path(directory)))
    directory = run.path
    if run.is_onnx:
        raise StorageError(f"{directory}: an ONNX export, not a run; reluformer.load opens it")
    refuse_folder_of_runs(directory)
    if (note := run.weights_note) is not None:
        warnings.warn(note, UnfinishedRunWarning, stacklevel=2)
    run = RunDirectory(run.model)
    directory = run.path
    model = ReLUFormer.load(directory)
    if not (run.tokenizer / "tokenizer.json").is_file():
        raise StorageError(
            f"{directory}: holds a model but no tokenizer.json; copy tokenizer.json and tokenizer.meta.json from the "
            "run or the prepared data that the model was trained with"
        )
    tokenizer = Tokenizer.load(run.tokenizer)
    if tokenizer.vocab_size != model.config.vocab_size:
        raise StorageError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} entries, the model {model.config.vocab_size}; "
            "use the tokenizer that the model was trained with"
        )
    if storage.tokenizer_fingerprint(directory) not in (None, tokenizer.fingerprint):
        raise StorageError(
            f"{directory}: this is not the tokenizer that the model was trained with; copy tokenizer.json and "
            "tokenizer.meta.json from the model's own run"
        )
    return Translator(decoder_of(model.to(device).eval(), int8), tokenizer, decoding_of(run).replace(**decoding))


class Translator:
    """A translator of texts and documents.

    Args:
        model: The model, or a decoder, such as that of int8 weights or of an ONNX export.
        tokenizer: The tokenizer that the model was trained with.
        config: How to search; by default `DecodingConfig()`.

    Example:
        >>> import reluformer as rf
        >>> translator = rf.load("runs/demo")
        >>> [translation] = translator.translate(["The lamp is new. It is big."])
        >>> type(translation)
        <class 'str'>
    """

    def __init__(self, model: ReLUFormer | Decoder, tokenizer: Tokenizer, config: DecodingConfig | None = None) -> None:
        self.tokenizer = tokenizer
        self.config = config or DecodingConfig()
        self.decoder: Decoder = model if isinstance(model, Decoder) else decoder_of(model)

    @property
    def model(self) -> ReLUFormer:
        """The PyTorch model; an ArgumentError for an ONNX export, which has none."""
        if not isinstance(self.decoder, ModelDecoder):
            raise ArgumentError(
                "an exported model only translates; to score, inspect or train, load the run that it was exported from"
            )
        return self.decoder.model

    @overload
    def translate(
        self,
        texts: Sequence[str],
        *,
        n_best: None = ...,
        format: str | TextFormat = ...,
        progress: ReportProgress | None = ...,
        report: FillReport | None = ...,
    ) -> list[str]: ...

    @overload
    def translate(
        self,
        texts: Sequence[str],
        *,
        n_best: int,
        format: str | TextFormat = ...,
        progress: ReportProgress | None = ...,
        report: FillReport | None = ...,
    ) -> list[list[str]]: ...

    def translate(
        self,
        texts: Sequence[str],
        *,
        n_best: int | None = None,
        format: str | TextFormat = "plain",
        progress: ReportProgress | None = None,
        report: FillReport | None = None,
    ) -> list[str] | list[list[str]]:
        r"""Translates texts. Everything that is no sentence stays as it is.

        Args:
            texts: The texts, each of any length.
            n_best: The number of translations of each text; None for the best one alone.
            format: The name of a text format, such as "markdown", or a format object.
            progress: Is called with the number of translated sentences and the number of all.
            report: Counts what happened to the sentences and marks of the best translations: what was copied, what
                was translated anew, and which marks were placed by position. See `formats.FillReport`.

        Returns:
            A translation of each text; with `n_best`, a list of them, best first.

        Raises:
            ArgumentError: `texts` is a single string, or `n_best` is less than 1.
            UnknownNameError: There is no format of that name.

        Example:
            >>> import reluformer as rf
            >>> translator = rf.load("runs/demo", beam=2)
            >>> [page] = translator.translate(["# The lamp\n"], format="markdown")
            >>> page.startswith("# ") and page.endswith("\n")
            True
            >>> [choices] = translator.translate(["The lamp is new."], n_best=2)
            >>> len(choices)
            2
        """
        _refuse_single("translate", texts)
        layout = formats.get(format) if isinstance(format, str) else format
        skeletons = [layout.skeleton(text) for text in texts]
        parts = [document.src for skeleton in skeletons for document in skeleton.documents]
        ranked = self.translate_n_best(parts, n_best or 1, progress, formats.alignment_needs(skeletons))
        choices = [
            formats.fill_all(skeletons, [found[rank].translated for found in ranked], report if rank == 0 else None)
            for rank in range(n_best or 1)
        ]
        return choices[0] if n_best is None else [list(texts) for texts in zip(*choices, strict=True)]

    def translate_documents(
        self, documents: Sequence[Sentences], progress: ReportProgress | None = None
    ) -> list[list[str]]:
        """Translates documents that are lists of sentences; every sentence becomes exactly one sentence.

        Args:
            documents: Lists of sentences.
            progress: Is called with the number of translated sentences and the number of all.

        Returns:
            The translated sentences of each document.

        Raises:
            ArgumentError: A document is a string and not a list of sentences.

        Example:
            >>> import reluformer as rf
            >>> [document] = rf.load("runs/demo").translate_documents([["The lamp is new.", "It is big."]])
            >>> len(document)
            2
        """
        return [list(best[0].sentences) for best in self.translate_n_best(documents, 1, progress)]

    def translate_n_best(
        self,
        documents: Sequence[Sentences],
        n: int,
        progress: ReportProgress | None = None,
        aligned: Sequence[bool] | None = None,
    ) -> list[list[Translation]]:
        """Returns the n best translations of each document with their scores; the beam is at least n wide.

        Args:
            documents: Lists of sentences.
            n: The number of translations.
            progress: Is called with the number of translated sentences and the number of all.
            aligned: Whether the sentences of each document need their alignments; by default none does.

        Returns:
            The translations of each document, best first.

        Raises:
            ArgumentError: A document is a string and not a list of sentences.

        Example:
            >>> import reluformer as rf
            >>> [found] = rf.load("runs/demo").translate_n_best([["The lamp is new."]], n=2)
            >>> len(found), len(found[0].sentences), found[0].score < 0
            (2, 1, True)
        """
        for document in documents:
            _refuse_single("translate_documents", document)
        config = self.config.replace(n_best=n, beam=max(n, self.config.beam))
        return translate_documents(self.decoder, self.tokenizer, documents, config, progress, aligned)

    def stream(self, document: str | Sentences) -> Iterator[str]:
        """Yields the translated sentences of one document, each as soon as nothing can change it.

        They are the sentences of `translate_documents`.

        Args:
            document: A plain text, which is split into sentences, or a list of sentences.

        Yields:
            The translation of each sentence, in the order of the document.

        Example:
            >>> import reluformer as rf
            >>> translator = rf.load("runs/demo")
            >>> len(list(translator.stream("The lamp is new. It is big.")))
            2
        """
        if isinstance(document, str):
            document, _ = formats.get("plain").parse(document)
        return (sentence.text for sentence in self.stream_translations(document))

    def stream_translations(self, document: Sentences, aligned: bool = False) -> Iterator[TranslatedSentence]:
        """Yields what `stream` does, with alignments where `aligned` asks for them.

        Args:
            document: A list of sentences.
            aligned: Whether to align each sentence with its source.

        Yields:
            The translation of each sentence, in the order of the document.

        Example:
            >>> import reluformer as rf
            >>> translator = rf.load("runs/demo")
            >>> [found] = translator.stream_translations(["The lamp is new."])
            >>> type(found.text), found.alignment
            (<class 'str'>, None)
        """
        return stream_document(self.decoder, self.tokenizer, document, self.config, aligned)

    def score(self, sources: Sequence[Sentences], targets: Sequence[Sentences]) -> list[TargetScore]:
        """Scores given translations: how likely the model finds each target given its source.

        Args:
            sources: Documents, each a list of sentences. A document is read in one piece, however long it is.
            targets: Their translations, in the same form.

        Returns:
            The log-probabilities of each target, by token and by sentence.

        Raises:
            ArgumentError: The numbers of sources and targets differ, a document is a string and not a list of
                sentences, or this is an ONNX export.

        Example:
            >>> import reluformer as rf
            >>> translator = rf.load("runs/demo")
            >>> [found] = translator.score([["The lamp is new."]], [["Die Lampe ist neu."]])
            >>> len(found.sentences), found.total < 0
            (1, True)
        """
        source_rows, target_rows = ([self._tokens(document) for document in side] for side in (sources, targets))
        return score_targets(self.model, source_rows, target_rows, self.config.batch_tokens)

    def inspect(self, text: str | Sentences, translation: Sentences | None = None) -> list[AttentionMaps]:
        """Returns what each token of a text and its translation read, in every layer and head.

        Args:
            text: A plain text, which is split into sentences, or a list of sentences.
            translation: The translation of each sentence; by default the model translates them.

        Returns:
            The tokens and maps of each window of the text, in order. A text that fits into one window has one.

        Raises:
            ArgumentError: The text has no sentence, the numbers of sentences differ, or this is an ONNX export.

        Example:
            >>> import reluformer as rf
            >>> translator = rf.load("runs/demo")
            >>> [maps] = translator.inspect("The lamp is new. It is big.")
            >>> layers, heads, *tokens = maps.cross.shape
            >>> tokens == [len(maps.target), len(maps.source)]
            True
        """
        sentences = formats.get("plain").parse(text)[0] if isinstance(text, str) else text
        if translation is not None:
            _refuse_single("inspect", translation)
        return inspect_document(self, sentences, translation)

    def _tokens(self, document: Sentences) -> list[int]:
        _refuse_single("score", document)
        sentences = self.tokenizer.encode_batch(list(document))
        tokens = [token for sentence in sentences for token in (*sentence, SEPARATOR)]
        return [*tokens[:-1], END]


@torch.inference_mode()
def score_targets(
    model: ReLUFormer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], batch_tokens: int = 8192
) -> list[TargetScore]:
    """Scores targets given their sources (forced decoding).

    Args:
        model: The model.
        sources: The token ids of each source, with its end token.
        targets: The token ids of each target, with its end token.
        batch_tokens: The most tokens of a batch, padding included.

    Returns:
        The log-probabilities of each target.

    Raises:
        ArgumentError: The numbers of sources and targets differ, or a target lacks its end token.

    Example:
        >>> from reluformer import ModelConfig, ReLUFormer
        >>> model = ReLUFormer(ModelConfig(vocab_size=20, width=16, heads=2))
        >>> [found] = score_targets(model, [[7, 8, 2]], [[9, 2]])
        >>> len(found.tokens)
        2
    """
    if len(sources) != len(targets):
        raise ArgumentError(f"{len(sources)} sources but {len(targets)} targets; give one target for each source")
    for number, target in enumerate(targets):
        if not target or target[-1] != END:
            raise ArgumentError(f"target {number} does not finish with the end token {END}; append it")
    return in_batches_of_similar_length(
        sources, targets, batch_tokens, lambda some, theirs: _score_batch(model, some, theirs)
    )


def _score_batch(
    model: ReLUFormer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[TargetScore]:
    device = model.output_embedding.weight.device
    source, mask = padded(sources, device)
    target, _ = padded(targets, device)
    begin = torch.full_like(target[:, :1], BEGIN)
    with evaluating(model):
        logits = model(source, torch.cat([begin, target[:, :-1]], 1), mask).logits
    chosen = logits.gather(2, target[:, :, None]).squeeze(2) - torch.logsumexp(logits, 2)
    return [_target_score(row, values) for row, values in zip(targets, chosen.tolist(), strict=True)]


def _target_score(target: Sequence[int], values: Sequence[float]) -> TargetScore:
    sentences = [0.0]
    for token, value in zip(target, values, strict=False):
        sentences[-1] += value
        if token == SEPARATOR:
            sentences.append(0.0)
    return TargetScore(tuple(values[: len(target)]), tuple(sentences))


def _refuse_single(method: str, given: Any) -> None:
    if isinstance(given, str):
        raise ArgumentError(f"{method} takes a list, got one string; write [text]")
