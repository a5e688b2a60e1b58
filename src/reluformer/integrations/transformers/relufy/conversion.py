"""From a softmax model to a ReLU one: swap, calibrate, distil, and say how near it came."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar, cast

from torch import nn

from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.relufy.calibration import calibrate
from reluformer.integrations.transformers.relufy.distillation import Distillation, PhaseLog, distil
from reluformer.integrations.transformers.relufy.distillation import Report as Progress
from reluformer.integrations.transformers.relufy.examples import Texts
from reluformer.integrations.transformers.relufy.family import Family
from reluformer.integrations.transformers.relufy.heads import relu_rule
from reluformer.integrations.transformers.relufy.report import Report, Stage
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.rules import Rule

Model = TypeVar("Model", bound=nn.Module)
Measure = Callable[[nn.Module], Mapping[str, float]]
HELD_OUT = 10
"""Every tenth text is held out where none are given, if there are as many."""


def relufy(
    model: Model,
    calibration_texts: Texts,
    *,
    tokenizer: Any,
    rule: str | Rule = "relu",
    calibrate_on: int = 256,
    distillation: Distillation | None = Distillation(),  # noqa: B008
    held_out: Texts | None = None,
    measure: Measure | None = None,
    max_length: int = 128,
    progress: Progress | None = None,
) -> tuple[Model, Report]:
    """A copy of `model` that reads with `rule`, fitted to the original, and a report.

    `calibration_texts` are strings for an encoder and (source, target) pairs for an
    encoder-decoder; the first `calibrate_on` of them (spread over all) fit the scales and offsets, all
    of them serve distillation (None = none). The report compares on `held_out`, and calls
    `measure` with the teacher and after every stage. Texts are cut at `max_length` tokens.
    """
    chosen = relu_rule(rule)
    family = _family(model, tokenizer, chosen, max_length)
    batch_tokens = max(max_length, distillation.batch_tokens if distillation else max_length * 16)
    used, kept = _split(calibration_texts, held_out)
    examples, apart = family.examples(used, batch_tokens), family.examples(kept, batch_tokens)
    fitted = family.examples(_spread(used, calibrate_on), batch_tokens)
    watch = _Watch()
    stages: dict[str, Stage] = {}
    logs: dict[str, PhaseLog] = {}

    def stage(name: str) -> None:
        stages[name] = Stage(
            family.compare(student, apart.in_order()),
            family.zero_shares(student, apart.in_order()),
            dict(measure(student)) if measure is not None else {},
        )

    with family.teaching():
        student = family.student()
        about_teacher = dict(measure(family.teacher)) if measure is not None else {}
        stage("swapped")
        with watch.over("calibration"):
            fits = calibrate(
                lambda: (family.reads(family.teacher, batch) for batch in fitted.in_order()), chosen, family.can_centre
            )
            family.install(student, fits)
        stage("calibrated")
        if distillation is not None:
            with watch.over("distillation"):
                found = distil(family, student, examples, distillation, progress)
            logs = {str(phase): log for phase, log in found.items()}
            stage("distilled")
    counts = {"calibration": len(fitted.examples), "distillation": len(examples.examples) if distillation else 0}
    report = Report(
        rule=rules.spec(chosen),
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
    )
    return cast(Model, student), report


class _Watch:
    """How long each part took, by the clock and on the processor."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}

    @contextmanager
    def over(self, part: str) -> Iterator[None]:
        clock, processor = time.monotonic(), time.process_time()
        yield
        self.seconds[part], self.cpu_seconds[part] = time.monotonic() - clock, time.process_time() - processor


def _split(texts: Texts, held_out: Texts | None) -> tuple[Texts, Texts]:
    """What is trained on and what is not; too few texts to hold any out are both."""
    if held_out is not None:
        return texts, held_out
    if isinstance(texts, str) or len(texts) < HELD_OUT:
        return texts, texts
    used = [text for number, text in enumerate(texts) if number % HELD_OUT]
    return used, texts[::HELD_OUT]  # type: ignore[return-value]


def _spread(texts: Texts, count: int) -> Texts:
    """So many of the texts, from all over them."""
    if count < 1:
        raise ArgumentError(f"calibrate_on must be at least 1, got {count}")
    return texts[:: max(1, len(texts) // count)][:count]


def _family(model: nn.Module, tokenizer: Any, rule: Rule, max_length: int) -> Family:
    if max_length < 2:
        raise ArgumentError(f"max_length must be at least 2, got {max_length}")
    if isinstance(model, ReLUFormer):
        from reluformer.integrations.transformers.relufy.own import ReLUFormerFamily
        from reluformer.translation.tokenizer import Tokenizer

        if not isinstance(tokenizer, Tokenizer):
            raise ArgumentError(
                f"tokenizer: expected the reluformer Tokenizer of the run, got {type(tokenizer).__name__}; take "
                "reluformer.load(run).tokenizer"
            )
        return ReLUFormerFamily(model, tokenizer, rule, max_length)
    from transformers import PreTrainedModel

    from reluformer.integrations.transformers.relufy.pretrained import PretrainedFamily

    if not isinstance(model, PreTrainedModel):
        raise ArgumentError(
            f"relufy takes a ReLUFormer or a model of transformers, got {type(model).__name__}; for a run pass "
            "reluformer.load(run).model"
        )
    return PretrainedFamily(model, tokenizer, rule, max_length)
