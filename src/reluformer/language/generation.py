"""Continuing a text: tokens are drawn from the model's distribution one by one.

The temperature divides the logits; 0 takes the most likely token. Of the distribution only the most likely tokens that
together have `top_p` of it are drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from reluformer.errors import ArgumentError, StorageError
from reluformer.files import HALF_PAIR
from reluformer.models import storage
from reluformer.models.language_model import LanguageModel
from reluformer.training.run import RunDirectory
from reluformer.translation.tokenizer import BEGIN, END, PAD, SEPARATOR, UNKNOWN, Tokenizer

NEVER = (PAD, BEGIN, SEPARATOR, UNKNOWN)
"""Tokens that are never drawn."""


class Generator:
    """A language model with its tokenizer; `reluformer.load` opens those of a run.

    Args:
        model: The language model, which is on `device`.
        tokenizer: The tokenizer that the model was trained with.
        device: The device that the model computes on.

    Raises:
        StorageError: Model and tokenizer have different numbers of entries.

    Example:
        >>> from reluformer import LanguageConfig
        >>> tokenizer = Tokenizer.load("runs/demo/reluformer")
        >>> config = LanguageConfig(vocab_size=tokenizer.vocab_size, width=16, heads=2, layers=1, slots=32)
        >>> generator = Generator(LanguageModel(config), tokenizer)  # its weights are random
        >>> text = generator.generate("The session", temperature=0.8, tokens=5, seed=0)
        >>> text.startswith("The session")
        True
    """

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, device: str | torch.device = "cpu") -> None:
        """Take a model, which is on `device`, and its tokenizer."""
        if tokenizer.vocab_size != model.config.vocab_size:
            raise StorageError(
                f"the tokenizer has {tokenizer.vocab_size} entries and the model {model.config.vocab_size}; they "
                "belong to different runs"
            )
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.device = device

    def generate(self, prompt: str = "", **options: float | int | None) -> str:
        """Returns the prompt with its continuation; the options are those of `stream`."""
        return prompt + "".join(self.stream(prompt, **options))  # type: ignore[arg-type]

    def stream(
        self,
        prompt: str = "",
        *,
        tokens: int = 200,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int | None = None,
    ) -> Iterator[str]:
        """Yields the continuation of a text piece by piece, until the document ends.

        Args:
            prompt: The beginning of the text; empty for a new document.
            tokens: The most tokens of the continuation.
            temperature: What divides the logits; 0 for the most likely token.
            top_p: Draw from the most likely tokens with this share of the distribution.
            seed: The same seed draws the same text; None for another text each time.

        Raises:
            ArgumentError: An option lies outside its range.
        """
        if tokens < 1 or not 0 <= temperature < math.inf or not 0 < top_p <= 1:
            raise ArgumentError(
                f"tokens={tokens}, temperature={temperature}, top_p={top_p}: tokens must be at least 1, temperature "
                "a number that is not negative, and top_p between 0 and 1"
            )
        if seed is not None and not 0 <= seed < 2**63:
            raise ArgumentError(f"seed={seed}: must be between 0 and 2^63 - 1")
        if HALF_PAIR.search(prompt):
            raise ArgumentError("the prompt has bytes that are no UTF-8; convert it first")
        random = torch.Generator()
        random.seed() if seed is None else random.manual_seed(seed)
        ids = [BEGIN, *self.tokenizer.encode(prompt)] if prompt else [BEGIN]
        return self._pieces(ids, tokens, temperature, top_p, random)

    @torch.no_grad()
    def _pieces(
        self, ids: list[int], tokens: int, temperature: float, top_p: float, random: torch.Generator
    ) -> Iterator[str]:
        state = self.model.start()
        told = self.tokenizer.decode(ids)
        states = self.model.step(torch.tensor([ids], device=self.device), state)
        for _ in range(tokens):
            token = draw(self.model.logits(states[0, -1]), temperature, top_p, random)
            if token == END:
                break
            ids.append(token)
            text = self.tokenizer.decode(ids)
            if not text.endswith("\ufffd"):  # in the middle of a character
                yield text[len(told) :]
                ids = [token]  # decoding all of them again would take time that grows with the square of the length
                told = self.tokenizer.decode(ids)
            states = self.model.step(torch.tensor([[token]], device=self.device), state)


def draw(logits: Tensor, temperature: float, top_p: float, random: torch.Generator) -> int:
    """Returns a token drawn from logits (V,); special tokens but the end are left out.

    Raises:
        StorageError: A logit is not finite, as weights that are too large cause.

    Example:
        >>> draw(torch.tensor([9.0, 9.0, 1.0, 9.0, 9.0, 2.0, 5.0]), 0.0, 1.0, torch.Generator())
        6
    """
    logits = logits.detach().float().cpu().clone()
    if not bool(logits.isfinite().all()):
        raise StorageError("the model predicts NaN or infinity; its weights are damaged, take an earlier checkpoint")
    logits[list(NEVER)] = -torch.inf
    if temperature == 0:
        return int(logits.argmax())
    divisor = min(max(temperature, 1e-30), 1e30)  # beyond, float32 gives 0 / 0
    shares, order = torch.softmax((logits - logits.max()) / divisor, dim=-1).sort(descending=True)
    kept = shares.cumsum(-1) - shares < top_p  # the first one always
    shares = shares * kept
    return int(order[torch.multinomial(shares / shares.sum(), 1, generator=random)])


def load(directory: str | Path, device: str | torch.device = "cpu") -> Generator:
    """Loads a language model with its tokenizer from a run; `reluformer.load` opens exports as well.

    Args:
        directory: A run as `reluformer train` writes it, or its `best/`.
        device: The device that the model computes on.

    Raises:
        StorageError: The directory holds no language model, another model's tokenizer, or a damaged file.
    """
    run = RunDirectory(directory)
    path = run.model
    model = LanguageModel.load(path)
    tokenizer = Tokenizer.load(path)
    expected = storage.tokenizer_fingerprint(path)
    if expected is not None and expected != tokenizer.fingerprint:
        raise StorageError(f"{path}: the model was trained with another tokenizer; copy the whole directory")
    return Generator(model.to(device), tokenizer, device)
