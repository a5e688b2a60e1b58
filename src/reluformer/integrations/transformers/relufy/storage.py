"""A relufied model of transformers on disk, and our own as a run.

    config.json         transformers' own, with the section `relufied`: the rule and the attentions
    model.safetensors   every weight, those of `HeadScores` under `...relufied.*`

transformers alone would load such a folder as the softmax model and leave `relufied` out,
so it takes `load` here. A ReLUFormer needs none of this: `save_run` writes an ordinary run.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reluformer import rules
from reluformer.config import load_yaml
from reluformer.errors import ArgumentError, StorageError
from reluformer.files import write_json
from reluformer.integrations.transformers.relufy.report import Report
from reluformer.models import storage
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.training.run import RunDirectory
from reluformer.translation.recipe import ModelRecipe, Recipe
from reluformer.translation.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT = 1
REPORT = "relufy.json"


def save(student: PreTrainedModel, directory: str | Path, tokenizer: Any = None, report: Report | None = None) -> None:
    """Write a student of `relufy`, with its tokenizer and report if they are given."""
    from reluformer.integrations.transformers.attention import PREFIX
    from reluformer.integrations.transformers.relufy.heads import HeadScores

    scores = {name: module for name, module in student.named_modules() if isinstance(module, HeadScores)}
    if not scores:
        raise ArgumentError(f"{type(student).__name__} was not relufied; save it with save_pretrained")
    directory = Path(directory)
    attentions = {name.rpartition(".")[0]: [module.heads, module.width] for name, module in scores.items()}
    rule = str(student.config._attn_implementation).removeprefix(PREFIX)
    student.config.relufied = {"format": FORMAT, "rule": rule, "attentions": attentions}
    student.save_pretrained(directory)
    if tokenizer is not None:
        tokenizer.save_pretrained(directory)
    if report is not None:
        write_json(directory / REPORT, report.to_dict())


def load(directory: str | Path) -> PreTrainedModel:
    """The student that `save` wrote, with the same outputs."""
    import transformers

    from reluformer.integrations.transformers.attention import PREFIX
    from reluformer.integrations.transformers.registration import register
    from reluformer.integrations.transformers.relufy.pretrained import RELUFIED

    directory = Path(directory)
    if not (directory / storage.CONFIG).is_file():
        raise StorageError(f"{directory}: holds no {storage.CONFIG}, so it is not a saved model")
    config = transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
    section = getattr(config, "relufied", None)
    if not isinstance(section, dict) or section.get("format") != FORMAT:
        raise StorageError(
            f"{directory / storage.CONFIG}: has no section 'relufied' of format {FORMAT}; load other models with "
            "transformers' from_pretrained"
        )
    kind = getattr(transformers, (config.architectures or ["?"])[0], None)
    if kind is None:
        raise StorageError(f"{directory / storage.CONFIG}: transformers has no model {config.architectures}")
    register()
    implementation = PREFIX + rules.get(section["rule"]).name
    kind_with_scores: Any = type(kind.__name__, (kind,), {"__init__": _with_scores(kind)})
    model, info = kind_with_scores.from_pretrained(
        directory, attn_implementation=implementation, local_files_only=True, output_loading_info=True
    )
    lacking = sorted(name for name in info["missing_keys"] if f".{RELUFIED}." in name)
    if lacking:
        raise StorageError(f"{directory}: the weights lack '{lacking[0]}'; copy the whole directory again")
    model.__class__ = kind
    loaded: PreTrainedModel = model
    return loaded


def _with_scores(kind: Any) -> Any:
    """The constructor of a model with its `HeadScores`, so that transformers loads them like all other weights."""

    def construct(self: Any, config: Any, *args: Any, **options: Any) -> None:
        from reluformer.integrations.transformers.relufy.pretrained import attach

        kind.__init__(self, config, *args, **options)
        section = config.relufied
        attentions = {name: (heads, width) for name, (heads, width) in section["attentions"].items()}
        attach(self, attentions, rules.get(section["rule"]))

    return construct


def save_run(student: ReLUFormer, directory: str | Path, like: str | Path, report: Report | None = None) -> None:
    """Write a relufied translator as a run beside the run `like` that its teacher came from.

    The recipe names the student's rules, so `translate`, `evaluate` and `serve` take the run as any other.
    """
    like, run = Path(like), RunDirectory(directory)
    if run.path.resolve() == like.resolve():
        raise ArgumentError(f"{run.path}: is the run of the teacher, which would be lost; choose another directory")
    recipe = load_yaml(Recipe, like / "recipe.yaml")
    tokenizer = Tokenizer.load(like)
    changes = {
        key: value
        for key, value in student.config.model_dump(mode="json").items()
        if key != "vocab_size" and value is not None
    }
    model = ModelRecipe(size=recipe.model.size, architecture="reluformer", **changes)
    run.begin(recipe.replace(model=model))
    for name in ("tokenizer.json", "tokenizer.meta.json"):
        shutil.copyfile(like / name, run.path / name)
    storage.save(run.path, student.config, student.state_dict(), tokenizer.fingerprint)
    if report is not None:
        write_json(run.path / REPORT, report.to_dict())
    run.set_status("finished", relufied=str(rules.spec(student.config.encoder_attention)))
