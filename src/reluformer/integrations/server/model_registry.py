"""The models behind a server, and how a request selects one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from reluformer import rules
from reluformer.errors import nearest
from reluformer.integrations.server.limits import RequestError
from reluformer.rules import Rule
from reluformer.translation.translator import Translator

ANY_LANGUAGE = "auto"
LANGUAGES = {
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "en": "English", "es": "Spanish", "et": "Estonian",
    "fi": "Finnish", "fr": "French", "hi": "Hindi", "hu": "Hungarian", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "nl": "Dutch", "no": "Norwegian", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian",
    "zh": "Chinese",
}  # fmt: skip


@dataclass(frozen=True)
class ServedModel:
    """A run that translates from one language into another."""

    name: str
    translator: Translator
    source: str = "en"
    target: str = "de"

    @property
    def rule(self) -> Rule:
        """The rule of the cross-attention, whose reads `/inspect` shows."""
        return self.translator.model.config.cross_attention

    def describe(self, default: bool) -> dict[str, Any]:
        """Returns the description of the model for `/models`."""
        config = self.translator.model.config
        return {
            "name": self.name,
            "rule": {
                name: _rule_fields(getattr(config, name))
                for name in ("ffn", "encoder_attention", "decoder_attention", "cross_attention")
            },
            "source": self.source,
            "target": self.target,
            "layers": config.decoder_layers,
            "encoder-layers": config.encoder_layers,
            "heads": config.heads,
            "slots": config.slots,
            "default": default,
            "zero-weights": has_exact_zeros(self.rule),
        }


def has_exact_zeros(rule: Rule) -> bool:
    """Returns True if the rule gives slots of low score a weight of exactly zero."""
    scores = torch.tensor([[-3.0, -2.0, 2.0, 3.0]])
    weights = rule.weights(scores, torch.tensor([[4.0]]), torch.ones_like(scores, dtype=torch.bool))
    return bool((weights == 0).any())


def _rule_fields(rule: Rule) -> dict[str, Any]:
    spec = rules.spec(rule)
    return {"name": spec} if isinstance(spec, str) else dict(spec)


class ModelRegistry(Sequence[ServedModel]):
    """The served models in the order of the command line; the first is the default."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = tuple(models)

    def __getitem__(self, index: Any) -> Any:
        return self._models[index]

    def __len__(self) -> int:
        return len(self._models)

    def named(self, name: str | None) -> ServedModel:
        """Returns the model of this name, or the default without a name.

        Raises:
            RequestError: No model has this name (404).
        """
        if not name:
            return self._models[0]
        for model in self._models:
            if model.name == name:
                return model
        known = nearest(name, [model.name for model in self._models])
        raise RequestError(404, "unknown_model", f"there is no model of the name {name!r} here", known)

    def pick(self, name: str | None, source: str, target: str) -> ServedModel:
        """Returns the model for a request.

        Args:
            name: The name of a model; None or empty selects the first one that knows the languages.
            source: The language of the text, or `auto`.
            target: The language of the translation, or empty.

        Raises:
            RequestError: No model has this name (404) or translates between these languages (400).
        """
        candidates = [self.named(name)] if name else self._models
        for model in candidates:
            if source in (model.source, ANY_LANGUAGE, "") and target in (model.target, ""):
                return model
        pairs = ", ".join(sorted({f"{model.source} to {model.target}" for model in candidates}))
        sentence = f"{source!r} to {target!r} is not translated here"
        raise RequestError(400, "unsupported_languages", sentence, f"ask for {pairs}")

    @property
    def sources(self) -> list[str]:
        """The source languages of all models, each once."""
        return list(dict.fromkeys(model.source for model in self._models))

    def languages(self) -> list[dict[str, Any]]:
        """Returns every language with its targets, in the format of LibreTranslate."""
        codes = dict.fromkeys(code for model in self._models for code in (model.source, model.target))
        targets = {code: [model.target for model in self._models if model.source == code] for code in codes}
        return [
            {"code": code, "name": language_name(code), "targets": list(dict.fromkeys(targets[code]))} for code in codes
        ]


def language_name(code: str) -> str:
    """Returns the English name of a language, or the code itself if it is unknown.

    Example:
        >>> language_name("de"), language_name("xx")
        ('German', 'xx')
    """
    return LANGUAGES.get(code, code)


def unique_names(runs: Sequence[Path]) -> list[str]:
    """Returns a short, unique name for each run.

    A name is that of the run's folder, with as many parent folders as it takes to tell
    the runs apart. Whole paths are used where hyphens in names hide the difference.

    Args:
        runs: Directories of runs; no two of them are the same.

    Example:
        >>> unique_names([Path("a/best"), Path("b/best")])
        ['a-best', 'b-best']
    """
    paths = [run.resolve() for run in runs]
    for count in range(1, max(len(path.parts) for path in paths)):
        names = ["-".join(path.parts[1:][-count:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
