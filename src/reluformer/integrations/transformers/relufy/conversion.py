"""`relufy()`: swaps the rule of a model, calibrates, distils and reports; and the storage of students."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch import nn

from reluformer import rules
from reluformer.errors import ArgumentError, StorageError
from reluformer.files import write_json
from reluformer.integrations.transformers.relufy.calibration import HeadFit, HeadScores, calibrate, relu_rule
from reluformer.integrations.transformers.relufy.distillation import Distillation, OnUpdate, PhaseLog, distil
from reluformer.integrations.transformers.relufy.family import CalibrationTexts, Family
from reluformer.models import storage
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.rules import Rule
from reluformer.training.run import RunDirectory
from reluformer.translation.recipe import ModelRecipe, Recipe
from reluformer.translation.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Model = TypeVar("Model", bound=nn.Module)
StudentMeasure = Callable[[nn.Module], Mapping[str, float]]
HELD_OUT = 10
"""Every tenth text is held out if the caller gives none, and if there are at least ten."""
TRIALS = 7
"""How many levels a search for a target tries: each halves the range."""
LEVELS = {"chance": (0.0, 1.0), "threshold": (-4.0, 4.0)}
"""The options that raise the level of a rule's rows, and their range in a search."""
FORMAT = 1
REPORT = "relufy.json"


@dataclass(frozen=True)
class StageReport:
    """The student after one stage, on texts that were held out."""

    agreement: dict[str, float]
    """The agreement with the teacher: cosine of the mean state; for decoders also perplexity and others."""
    zero_share: dict[str, float]
    """The share of weights of visible slots that are exactly zero, by attention."""
    measures: dict[str, float] = field(default_factory=dict)
    """The results of the caller's own `measure`."""

    @property
    def mean_zero_share(self) -> float:
        """The mean over all attentions."""
        return sum(self.zero_share.values()) / max(1, len(self.zero_share))


@dataclass(frozen=True)
class LevelTrial:
    """One calibrated student of a search for a target, on texts that were held out."""

    option: str
    """The option of the rule that was varied, `chance` or `threshold`."""
    value: float
    zeros: float
    """The mean share of weights that are exactly zero."""
    loss: float
    """The rise of the loss over the teacher's, relative to it."""


@dataclass(frozen=True)
class RelufyReport:
    """What `relufy` did, and how close the student is to its teacher.

    `print(report)` shows it as tables.

    Example:
        >>> from reluformer import hub
        >>> stage = StageReport(agreement={"cosine": 0.99}, zero_share={"layer.0": 0.5, "layer.1": 0.7})
        >>> report = hub.RelufyReport(
        ...     rule="relu", model="BertModel", attentions=2, texts={"held_out": 10}, stages={"calibrated": stage},
        ...     read_error={"layer.0": 0.1, "layer.1": 0.2}, distillation={}, seconds={}, cpu_seconds={}, settings={},
        ... )
        >>> report.stages["calibrated"].mean_zero_share
        0.6
    """

    rule: str | dict[str, Any]
    """The rule of the student, as a recipe names it."""
    model: str
    """The class of the model."""
    attentions: int
    """The number of attentions that were converted."""
    texts: dict[str, int]
    """The numbers of texts for calibration, for distillation, and held out."""
    stages: dict[str, StageReport]
    """`swapped`, `calibrated` and `distilled`, in this order."""
    read_error: dict[str, float]
    """The squared error of the calibrated reads over their squares, by attention, mean over heads."""
    distillation: dict[str, PhaseLog]
    """The record of each phase of distillation, `layers` and `whole`."""
    seconds: dict[str, float]
    """The wall time of calibration and distillation, without the measurements."""
    cpu_seconds: dict[str, float]
    """The processor time of all threads together."""
    settings: dict[str, Any]
    """The length of texts, and the settings of distillation."""
    teacher: dict[str, float] = field(default_factory=dict)
    """The results of the caller's own `measure` for the teacher."""
    search: list[LevelTrial] = field(default_factory=list)
    """The students that were tried to reach a target, by their level."""
    target_reached: bool = True
    """Whether a level reached the target; True if there was none."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data for JSON."""
        content = asdict(self)
        for name, stage in self.stages.items():
            content["stages"][name]["mean_zero_share"] = stage.mean_zero_share
        return content

    def __str__(self) -> str:
        searched = ["", *self._curve()] if self.search else []
        return "\n".join([*self._head(), *searched, "", *self._table(), "", *self._layers()])

    def _curve(self) -> list[str]:
        lines = [f"{self.search[0].option:>10}{'zeros':>9}{'loss':>9}"]
        lines += [f"{trial.value:10.3f}{trial.zeros:9.3f}{trial.loss:+9.4f}" for trial in self.search]
        return lines if self.target_reached else [*lines, "no level reached the target; the nearest was taken"]

    def _head(self) -> list[str]:
        times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.seconds.items())
        texts = ", ".join(f"{count} {name}" for name, count in self.texts.items())
        return [f"{self.model}: {self.attentions} attentions, rule {self.rule}", f"texts: {texts}; time: {times}"]

    def _table(self) -> list[str]:
        columns: dict[str, Mapping[str, float]] = {"teacher": self.teacher} if self.teacher else {}
        for name, stage in self.stages.items():
            columns[name] = {**stage.agreement, "zeros": stage.mean_zero_share, **stage.measures}
        rows = dict.fromkeys(row for column in columns.values() for row in column)
        width = max(map(len, rows))
        lines = [" " * width + "".join(f"{name:>12}" for name in columns)]
        for row in rows:
            cells = (f"{column[row]:12.4f}" if row in column else f"{'-':>12}" for column in columns.values())
            lines.append(f"{row:<{width}}" + "".join(cells))
        return lines

    def _layers(self) -> list[str]:
        last = list(self.stages.values())[-1]
        width = max(map(len, self.read_error))
        lines = [f"{'attention':<{width}}  read error  zeros at the end"]
        for name, error in self.read_error.items():
            lines.append(f"{name:<{width}}  {error:10.4f}  {last.zero_share[name]:15.3f}")
        return lines


def relufy(
    model: Model,
    calibration_texts: CalibrationTexts,
    *,
    tokenizer: Any,
    rule: str | Rule = "relu",
    zeros: float | None = None,
    loss: float | None = None,
    calibrate_on: int = 256,
    distillation: Distillation | None = Distillation(),  # noqa: B008
    held_out: CalibrationTexts | None = None,
    measure: StudentMeasure | None = None,
    max_length: int = 128,
    progress: OnUpdate | None = None,
) -> tuple[Model, RelufyReport]:
    """Converts a pretrained softmax model into one that reads with `rule`.

    Args:
        model: The teacher, which stays unchanged: a ReLUFormer or a model of transformers.
        calibration_texts: Strings for an encoder, (source, target) pairs for an encoder-decoder.
        tokenizer: The tokenizer of the model.
        rule: A rule of the ReLU family or of centred scores, such as "relu" or "relu_exp".
        zeros: The share of zeros that the student should have on the held-out texts, such as 0.9. The level of a rule
            of centred scores is searched for it, with a calibrated student for each trial.
        loss: Instead, the most that the loss of a translator may rise over its teacher's, such as 0.01 for one
            percent. The level with the most zeros within it is taken.
        calibrate_on: The number of texts that fit scales and offsets, spread over all texts.
        distillation: The settings of distillation, which uses all texts; None skips it.
        held_out: The texts of the report; default: every tenth of `calibration_texts`.
        measure: A function of a model, called for the teacher and after every stage.
        max_length: The number of tokens at which texts are cut.
        progress: A function that is called after every update of distillation.

    Returns:
        The student, which is a copy of the model, and a report.

    Raises:
        ArgumentError: The model, the rule, the target, the tokenizer or the texts do not fit.

    Example:
        >>> import reluformer as rf
        >>> from reluformer import hub
        >>> tokenizer = rf.load("runs/demo").tokenizer
        >>> sizes = {"width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "slots": 32}
        >>> softmax = dict.fromkeys(["encoder_attention", "decoder_attention", "cross_attention"], "softmax")
        >>> teacher = rf.ReLUFormer(rf.ModelConfig(vocab_size=tokenizer.vocab_size, **sizes, **softmax))
        >>> pairs = [("The lamp is new.", "Die Lampe ist neu."), ("It is big.", "Sie ist groß.")]
        >>> student, report = hub.relufy(teacher, pairs, tokenizer=tokenizer, rule="relu_exp", distillation=None)
        >>> student.config.cross_attention.name, list(report.stages)
        ('relu_exp', ['swapped', 'calibrated'])
    """
    chosen = relu_rule(rule)
    option = _searched_option(model, chosen, zeros, loss)
    family = _family(model, tokenizer, chosen, max_length)
    batch_tokens = max(max_length, distillation.batch_tokens if distillation else max_length * 16)
    used, kept = _split(calibration_texts, held_out)
    examples, apart = family.examples(used, batch_tokens), family.examples(kept, batch_tokens)
    fitted = family.examples(_spread(used, calibrate_on), batch_tokens)
    watch = _Stopwatch()
    stages: dict[str, StageReport] = {}
    logs: dict[str, PhaseLog] = {}
    trials: list[LevelTrial] = []
    reached = True

    def fit() -> dict[str, HeadFit]:
        return calibrate(
            lambda: (family.reads(family.teacher, batch) for batch in fitted.in_order()), family.rule, family.can_centre
        )

    def trial(value: float) -> LevelTrial:
        assert option is not None
        family.rule = replace(chosen, **{option: value})
        candidate = family.student()
        family.install(candidate, fit())
        shares = family.zero_shares(candidate, apart.in_order())
        rise = _rise(family.compare(candidate, apart.in_order()))
        return LevelTrial(option, value, sum(shares.values()) / max(1, len(shares)), rise)

    def stage(name: str) -> None:
        stages[name] = StageReport(
            family.compare(student, apart.in_order()),
            family.zero_shares(student, apart.in_order()),
            dict(measure(student)) if measure is not None else {},
        )

    with family.teaching():
        if option is not None:
            with watch.over("search"):
                trials, best, reached = search_level(trial, LEVELS[option], zeros, loss)
            family.rule = replace(chosen, **{option: best.value})
        student = family.student()
        about_teacher = dict(measure(family.teacher)) if measure is not None else {}
        stage("swapped")
        with watch.over("calibration"):
            fits = fit()
            family.install(student, fits)
        stage("calibrated")
        if distillation is not None:
            with watch.over("distillation"):
                found = distil(family, student, examples, distillation, progress)
            logs = {str(phase): log for phase, log in found.items()}
            stage("distilled")
    counts = {"calibration": len(fitted.examples), "distillation": len(examples.examples) if distillation else 0}
    report = RelufyReport(
        rule=rules.spec(family.rule),
        model=type(model).__name__,
        attentions=len(fits),
        texts={**counts, "held_out": len(apart.examples)},
        stages=stages,
        read_error={name: float(fit.error.mean()) for name, fit in fits.items()},
        distillation=logs,
        seconds=watch.seconds,
        cpu_seconds=watch.cpu_seconds,
        settings={"max_length": max_length, **(asdict(distillation) if distillation else {})},
        teacher=about_teacher,
        search=trials,
        target_reached=reached,
    )
    return cast(Model, student), report


def _searched_option(model: nn.Module, rule: Rule, zeros: float | None, loss: float | None) -> str | None:
    """Returns the option of the rule that a search for the target varies, or None if there is no target."""
    if zeros is None and loss is None:
        return None
    if zeros is not None and loss is not None:
        raise ArgumentError("zeros and loss are two targets; give one of them")
    for name, target in (("zeros", zeros), ("loss", loss)):
        if target is not None and not 0 < target < 1:
            raise ArgumentError(f"{name} must lie between 0 and 1, got {target}")
    if not isinstance(model, ReLUFormer):
        raise ArgumentError(
            "a target of zeros or loss sets options of the rule, and a model of transformers knows its rule by the "
            "name alone; leave the target out"
        )
    formula = rules.formula_of(rule)
    if formula is None or formula.level is None or not formula.centred:
        raise ArgumentError(f"rule '{rule.name}' has no level to search; use relu_exp, relu_chance or relu_rest")
    option = "chance" if formula.level.chance else "threshold"
    if option not in {known.name for known in fields(rule)}:
        raise ArgumentError(f"rule '{rule.name}' has no option '{option}' that moves its level; add one to its class")
    return option


def _rise(agreement: Mapping[str, float]) -> float:
    """Returns how much the loss is above the teacher's, relative to it."""
    return math.log(agreement["perplexity"]) / math.log(agreement["teacher_perplexity"]) - 1


def search_level(
    trial: Callable[[float], LevelTrial], between: tuple[float, float], zeros: float | None, loss: float | None
) -> tuple[list[LevelTrial], LevelTrial, bool]:
    """Halves a range of levels until the target is met closely; zeros and loss both rise with the level.

    Args:
        trial: Builds and measures the student of one level.
        between: The lowest and the highest level.
        zeros: The share of zeros to reach; or
        loss: the rise of the loss to stay within.

    Returns:
        All trials by level, the one to take, and whether it meets the target: of those that do, the one with the least
        loss for a target of zeros, and the one with the most zeros for a target of loss.
    """
    low, high = between
    tried: list[LevelTrial] = []
    for _ in range(TRIALS):
        found = trial((low + high) / 2)
        tried.append(found)
        too_low = found.zeros < zeros if zeros is not None else found.loss <= (loss or 0.0)
        low, high = (found.value, high) if too_low else (low, found.value)
    meeting = [t for t in tried if (t.zeros >= zeros if zeros is not None else t.loss <= (loss or 0.0))]
    lowest, highest = min(tried, key=lambda t: t.value), max(tried, key=lambda t: t.value)
    if zeros is not None:
        best = min(meeting, key=lambda t: t.loss) if meeting else highest
    else:
        best = max(meeting, key=lambda t: t.zeros) if meeting else lowest
    return sorted(tried, key=lambda t: t.value), best, bool(meeting)


class _Stopwatch:
    """The wall time and the processor time of each part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}

    @contextmanager
    def over(self, part: str) -> Iterator[None]:
        clock, processor = time.monotonic(), time.process_time()
        yield
        self.seconds[part], self.cpu_seconds[part] = time.monotonic() - clock, time.process_time() - processor


def _split(texts: CalibrationTexts, held_out: CalibrationTexts | None) -> tuple[CalibrationTexts, CalibrationTexts]:
    """Returns the texts to use and the texts held out; fewer than ten texts serve as both."""
    if held_out is not None:
        return texts, held_out
    if isinstance(texts, str) or len(texts) < HELD_OUT:
        return texts, texts
    used = [text for number, text in enumerate(texts) if number % HELD_OUT]
    return used, texts[::HELD_OUT]  # type: ignore[return-value]


def _spread(texts: CalibrationTexts, count: int) -> CalibrationTexts:
    """Returns `count` of the texts, spread over all of them."""
    if count < 1:
        raise ArgumentError(f"calibrate_on must be at least 1, got {count}")
    return texts[:: max(1, len(texts) // count)][:count]


def _family(model: nn.Module, tokenizer: Any, rule: Rule, max_length: int) -> Family:
    if max_length < 2:
        raise ArgumentError(f"max_length must be at least 2, got {max_length}")
    if isinstance(model, ReLUFormer):
        from reluformer.integrations.transformers.relufy.family import ReLUFormerFamily

        if not isinstance(tokenizer, Tokenizer):
            raise ArgumentError(
                f"tokenizer: expected the reluformer Tokenizer of the run, got {type(tokenizer).__name__}; take "
                "reluformer.load(run).tokenizer"
            )
        return ReLUFormerFamily(model, tokenizer, rule, max_length)
    from transformers import PreTrainedModel

    from reluformer.integrations.transformers.relufy.pretrained_family import PretrainedFamily

    if not isinstance(model, PreTrainedModel):
        raise ArgumentError(
            f"relufy takes a ReLUFormer or a model of transformers, got {type(model).__name__}; for a run pass "
            "reluformer.load(run).model"
        )
    return PretrainedFamily(model, tokenizer, rule, max_length)


def save_relufied(
    student: PreTrainedModel, directory: str | Path, tokenizer: Any = None, report: RelufyReport | None = None
) -> None:
    """Saves a converted model of transformers.

    config.json is transformers' own, with a section `relufied` that names the rule and the
    attentions. model.safetensors holds every weight, those of `HeadScores` as `...relufied.*`.

    Args:
        student: The model that `relufy` returned.
        directory: The directory to write.
        tokenizer: A tokenizer that is saved along.
        report: A report that is saved along as relufy.json.

    Raises:
        ArgumentError: The model was not converted.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from reluformer import hub
        >>> tokenizer = hub.ReLUFormerTokenizer.from_pretrained("exported")
        >>> sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32}
        >>> teacher = BertModel(BertConfig(vocab_size=len(tokenizer), **sizes))
        >>> texts = ["The lamp is new.", "It is big."]
        >>> student, report = hub.relufy(teacher, texts, tokenizer=tokenizer, rule="relu_exp", distillation=None)
        >>> hub.save_relufied(student, "student", tokenizer, report)
        >>> student.config.relufied["rule"]
        'relu_exp'
    """
    from reluformer.integrations.transformers.attention_interface import PREFIX

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


def load_relufied(directory: str | Path) -> PreTrainedModel:
    """Loads the model that `save_relufied` wrote.

    transformers alone would load the softmax model and ignore the weights of `relufied`.

    Args:
        directory: The directory that `save_relufied` wrote.

    Returns:
        The converted model, which computes the same outputs as the saved one.

    Raises:
        StorageError: The directory holds no converted model, or it is damaged.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from reluformer import hub
        >>> tokenizer = hub.ReLUFormerTokenizer.from_pretrained("exported")
        >>> sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32}
        >>> teacher = BertModel(BertConfig(vocab_size=len(tokenizer), **sizes))
        >>> texts = ["The lamp is new.", "It is big."]
        >>> student, report = hub.relufy(teacher, texts, tokenizer=tokenizer, rule="relu_exp", distillation=None)
        >>> hub.save_relufied(student, "student")
        >>> type(hub.load_relufied("student")).__name__
        'BertModel'
    """
    import transformers

    from reluformer.integrations.transformers.attention_interface import PREFIX
    from reluformer.integrations.transformers.registration import register
    from reluformer.integrations.transformers.relufy.pretrained_family import RELUFIED

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
    """Returns a constructor that adds `HeadScores`, so that transformers loads them like other weights."""

    def construct(self: Any, config: Any, *args: Any, **options: Any) -> None:
        from reluformer.integrations.transformers.relufy.pretrained_family import attach

        kind.__init__(self, config, *args, **options)
        section = config.relufied
        attentions = {name: (heads, width) for name, (heads, width) in section["attentions"].items()}
        attach(self, attentions, rules.get(section["rule"]))

    return construct


def save_relufied_run(
    student: ReLUFormer, directory: str | Path, like: str | Path, report: RelufyReport | None = None
) -> None:
    """Saves a converted ReLUFormer as an ordinary run.

    The recipe names the student's rules, so `translate`, `evaluate` and `serve` take the
    run like any other.

    Args:
        student: The model that `relufy` returned.
        directory: The directory of the new run.
        like: The run of the teacher, whose recipe and tokenizer are copied.
        report: A report that is saved along as relufy.json.

    Raises:
        ArgumentError: `directory` is the run of the teacher.

    Example:
        >>> import reluformer as rf
        >>> from reluformer import hub
        >>> tokenizer = rf.load("runs/demo").tokenizer
        >>> sizes = {"width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "slots": 32}
        >>> softmax = dict.fromkeys(["encoder_attention", "decoder_attention", "cross_attention"], "softmax")
        >>> teacher = rf.ReLUFormer(rf.ModelConfig(vocab_size=tokenizer.vocab_size, **sizes, **softmax))
        >>> pairs = [("The lamp is new.", "Die Lampe ist neu."), ("It is big.", "Sie ist groß.")]
        >>> student, report = hub.relufy(teacher, pairs, tokenizer=tokenizer, rule="relu_exp", distillation=None)
        >>> hub.save_relufied_run(student, "runs/relu_exp", like="runs/demo/reluformer", report=report)
        >>> rf.load("runs/relu_exp").model.config.cross_attention.name
        'relu_exp'
    """
    teacher, run = RunDirectory(like), RunDirectory(directory)
    if run.path.resolve() == teacher.path.resolve():
        raise ArgumentError(f"{run.path}: is the run of the teacher, which would be lost; choose another directory")
    recipe = teacher.recipe(Recipe)
    tokenizer = Tokenizer.load(teacher.tokenizer)
    changes = {
        key: value
        for key, value in student.config.model_dump(mode="json").items()
        if key != "vocab_size" and value is not None
    }
    model = ModelRecipe(size=recipe.model.size, architecture="reluformer", **changes)
    run.begin(recipe.replace(model=model))
    tokenizer.save(run.path)
    storage.save(run.path, student.config, student.state_dict(), tokenizer.fingerprint)
    if report is not None:
        write_json(run.path / REPORT, report.to_dict())
    run.set_status("finished", relufied=str(rules.spec(student.config.encoder_attention)))
