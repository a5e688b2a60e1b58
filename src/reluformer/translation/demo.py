"""The demo: systems of the same size and data, ReLU in every memory against softmax in all attention.

They are trained at the same time, each in a process of its own with half of the cores,
because models this small use one core well and two cores badly. A finished system is not
trained again, and an interrupted one resumes. `demo.yaml` is their recipe. `write_report`
writes one HTML page with scores, curves and an example, without external requests.
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice, zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluformer import memory
from reluformer.benchmarking import interleaved
from reluformer.errors import ArgumentError, ReluformerError
from reluformer.layers import TokenRead
from reluformer.report_page import FONTS, inline_svg, page
from reluformer.training.run import RunDirectory
from reluformer.translation.corpus import PreparedCorpus, prepare
from reluformer.translation.corpus_summary import CorpusSummary
from reluformer.translation.embedded import DiscourseScores, EmbeddedDocument, document_from_id, score_discourse
from reluformer.translation.recipe import Recipe
from reluformer.translation.scoring import Scores, score
from reluformer.translation.tokenizer import SEPARATOR
from reluformer.translation.translator import Translator, load_run

LENGTH_BORDERS = (50, 100, 200)
"""The borders count words of the reference; test documents have 2 to 48 sentences."""
LONG_TEXT = 1024
"""Tokens of the text on which the reads of a trained encoder are timed."""
# Okabe and Ito's colours, told apart by everyone; markers tell them apart in black and white.
COLOURS = {"reluformer": "#D55E00", "transformer": "#0072B2", "paper": "#009E73"}
MARKERS = {"reluformer": "o", "transformer": "s", "paper": "^"}
HATCHES = {"reluformer": None, "transformer": "///", "paper": "..."}


@dataclass(frozen=True)
class System:
    """One of the systems: its name, and its changes to the common recipe."""

    name: str
    title: str
    changes: tuple[str, ...] = ()


def _attention(rule: str) -> tuple[str, ...]:
    """Returns the changes that give every attention of a recipe this rule."""
    return tuple(f"model.{place}={rule}" for place in ("encoder_attention", "decoder_attention", "cross_attention"))


SYSTEMS = (
    System("reluformer", "ReLUFormer"),
    System("transformer", "Transformer", ("model.architecture=transformer", *_attention("softmax"))),
)
PAPER = System("paper", "paper's rule", (*_attention("{name: relu, gamma: 4}"), "training.regularizer={}"))
"""The third system, on request: the paper's own rule with its regulariser. γ is unknown in the paper; with 4 row sums
start near the 1 that the regulariser wants (0.56 sqrt(n) / γ for n = 50)."""


@dataclass(frozen=True)
class LongReads:
    """What zeros save in the reads of a trained encoder: forward and backward pass on one long text."""

    tokens: int
    zeros: float
    """Percent of the weights that are exactly zero."""
    milliseconds: float
    faster_than_dense: float
    """How many times as fast as the same kernel without skipping."""
    faster_than_softmax: float
    """How many times as fast as PyTorch's fused softmax on the same queries, keys and values."""


@dataclass(frozen=True)
class DemoOutcome:
    """A trained system, and its results on unseen documents."""

    system: System
    training: dict[str, Any]
    translations: list[list[str]]
    scores: Scores
    retranslated: int
    """The sentences that had read another sentence and were translated anew by themselves."""
    discourse: DiscourseScores
    without_context: DiscourseScores
    """The results of the same model when it reads sentence by sentence."""
    history: list[dict[str, Any]]
    telemetry: dict[str, Any]
    long_reads: LongReads | None
    """The reads of its encoder on a long text; None without the compiled library, or if it does not know the rule."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures as plain data, accuracies in percent."""
        far, far_alone = self.discourse.pronoun_far, self.without_context.pronoun_far
        return {
            "bleu": round(self.scores.bleu.value, 2),
            "d_bleu": round(self.scores.d_bleu.value, 2),
            "chrf": round(self.scores.chrf.value, 2),
            "retranslated_sentences": self.retranslated,
            "pronoun_accuracy": _percent(self.discourse.pronoun.accuracy),
            "pronoun_accuracy_without_context": _percent(self.without_context.pronoun.accuracy),
            "pronoun_accuracy_far": _percent(far.accuracy),
            "pronoun_accuracy_far_without_context": _percent(far_alone.accuracy),
            "term_accuracy": _percent(self.discourse.term.accuracy),
            "term_accuracy_without_context": _percent(self.without_context.term.accuracy),
            "zero_fraction": _percent(zero_fraction(self.telemetry)),
            "long_reads": None if self.long_reads is None else asdict(self.long_reads),
            "zeros_long": None if self.long_reads is None else self.long_reads.zeros,
            "faster_than_dense": None if self.long_reads is None else self.long_reads.faster_than_dense,
            "faster_than_softmax": None if self.long_reads is None else self.long_reads.faster_than_softmax,
            "scores": self.scores.to_dict(),
            "discourse": self.discourse.to_dict(),
            "discourse_without_context": self.without_context.to_dict(),
            "training": self.training,
        }


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)


def zero_fraction(telemetry: dict[str, Any]) -> float | None:
    """Returns the mean share of exact zeros over all attention heads of a telemetry snapshot."""
    heads = [value for name, read in telemetry.items() if not name.endswith("ffn") for value in read["zero_fraction"]]
    return sum(heads) / len(heads) if heads else None


def prepare_corpus(recipe: Recipe, directory: Path) -> CorpusSummary:
    """Prepares the corpus, once for both systems."""
    return prepare(recipe.data, directory / "data")


def train_all(
    recipe_file: Path,
    directory: Path,
    report: Callable[[dict[str, RunDirectory]], None],
    overrides: Sequence[str] = (),
    systems: Sequence[System] = SYSTEMS,
) -> None:
    """Trains the systems, two at a time; `report` is called about twice a second."""
    threads = str(max(1, (os.cpu_count() or 1) // len(SYSTEMS)))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    runs = {system.name: RunDirectory(directory / system.name) for system in systems}
    waiting = list(systems)
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while waiting or _running(processes):
            while waiting and len(_running(processes)) < len(SYSTEMS):
                system = waiting.pop(0)
                command = [sys.executable, "-m", "reluformer", "train", str(recipe_file), "--json"]
                command += ["--run", str(directory / system.name), "--prepared", str(directory / "data")]
                for change in (*overrides, *system.changes):
                    command += ["--set", change]
                with (directory / f"{system.name}.log").open("w", encoding="utf-8") as log:
                    process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
                processes[system.name] = process
            report(runs)
            time.sleep(0.5)
        report(runs)
    finally:
        for process in _running(processes):
            process.terminate()
            process.wait()
    for name, process in processes.items():
        if process.returncode:
            last = (directory / f"{name}.log").read_text(encoding="utf-8").strip().splitlines()[-1:]
            raise ReluformerError(f"training '{name}' failed: {' '.join(last)}; see {directory / f'{name}.log'}")


def _running(processes: dict[str, subprocess.Popen[bytes]]) -> list[subprocess.Popen[bytes]]:
    return [process for process in processes.values() if process.poll() is None]


def evaluate_all(directory: Path, systems: Sequence[System] = SYSTEMS) -> Iterator[DemoOutcome]:
    """Translates the test documents with each system, as documents and sentence by sentence."""
    documents = [document_from_id(document.id) for document in PreparedCorpus(directory / "data").documents("test")]
    for system in systems:
        run = RunDirectory(directory / system.name)
        translator = load_run(run.path)
        found = [best for (best,) in translator.translate_n_best([document.document.src for document in documents], 1)]
        translations = [list(best.sentences) for best in found]
        alone = _sentence_by_sentence(translator, documents)
        snapshots = run.log.events("telemetry")
        yield DemoOutcome(
            system=system,
            training=run.status["result"],
            translations=translations,
            retranslated=sum(sentence.doubtful for best in found for sentence in best.translated),
            scores=score(translations, [d.document.tgt or () for d in documents], length_borders=LENGTH_BORDERS),
            discourse=score_discourse(documents, translations),
            without_context=score_discourse(documents, alone),
            history=run.log.events("valid"),
            telemetry=snapshots[-1]["reads"] if snapshots else {},
            long_reads=time_long_reads(translator, [s for document in documents for s in document.document.src]),
        )


def time_long_reads(translator: Translator, sentences: Sequence[str]) -> LongReads | None:
    """Times the encoder's reads on `LONG_TEXT` tokens of text: with zeros skipped, without, and with softmax.

    Args:
        translator: The trained system.
        sentences: The text, which is repeated if it is short.

    Returns:
        The timings, or None where the compiled library cannot read the rule.
    """
    rule = translator.model.config.encoder_attention
    reads = _encoder_reads(translator, sentences)
    try:
        with torch.no_grad():
            stats = [memory.read(q, k, v, rule, impl="cpu", return_stats=True)[1] for q, k, v in reads]
    except ArgumentError:
        return None

    def trained(read: Callable[..., Tensor]) -> Callable[[], object]:
        def call() -> None:
            for qkv in reads:
                out = read(*qkv)
                torch.autograd.grad(out, qkv, out.detach())

        return call

    contestants = {
        "skipping": trained(lambda q, k, v: memory.read(q, k, v, rule, impl="cpu")),
        "dense": trained(lambda q, k, v: memory.read(q, k, v, rule, impl="cpu_dense")),
        "softmax": trained(F.scaled_dot_product_attention),
    }
    times = {name: timing.median for name, timing in interleaved(contestants, repeats=9, seconds=3.0).items()}
    return LongReads(
        tokens=reads[0][0].size(2),
        zeros=round(100 * float(torch.stack([s.zero_fraction.mean() for s in stats]).mean()), 2),
        milliseconds=round(1e3 * times["skipping"], 2),
        faster_than_dense=round(times["dense"] / times["skipping"], 2),
        faster_than_softmax=round(times["softmax"] / times["skipping"], 2),
    )


def _encoder_reads(translator: Translator, sentences: Sequence[str]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Returns queries, keys and values of every encoder layer for a text, (1, H, LONG_TEXT, d) each."""
    encoded = translator.tokenizer.encode_batch(list(sentences))
    tokens = list(islice(cycle(token for ids in encoded for token in (*ids, SEPARATOR)), LONG_TEXT))
    reads: list[tuple[Tensor, Tensor, Tensor]] = []

    def keep(module: nn.Module, given: tuple[Any, ...]) -> None:
        q, slots = given[:2]
        q, k, v = (part.detach().clone().requires_grad_() for part in (q, slots.keys, slots.values))
        reads.append((q, k, v))

    handles = [
        m.register_forward_pre_hook(keep) for m in translator.model.encoder.modules() if isinstance(m, TokenRead)
    ]
    try:
        with torch.no_grad():
            translator.model.encode(torch.tensor([tokens]))
    finally:
        for handle in handles:
            handle.remove()
    return reads


def _sentence_by_sentence(translator: Translator, documents: Sequence[EmbeddedDocument]) -> list[list[str]]:
    """Translates every sentence as a document of its own."""
    flat = translator.translate_documents([[s] for document in documents for s in document.document.src])
    sentences = iter(sentence for (sentence,) in flat)
    return [[next(sentences) for _ in document.document.src] for document in documents]


# ------------------------------------------------------------------ the report


def write_report(
    path: Path, outcomes: Sequence[DemoOutcome], documents: Sequence[EmbeddedDocument], seconds: float, corpus: str
) -> None:
    """Writes the page to `path`."""
    figures = [
        _figure("Learning", "Validation loss against target tokens seen.", lambda axis: _learning(axis, outcomes)),
        _figure(
            "Pronouns by distance",
            "Share of correct er / sie / es / ihn by sentences to the antecedent. Hollow: the same model reading "
            "sentence by sentence; a tenth of the training documents were shown that way.",
            lambda axis: _pronouns(axis, outcomes),
        ),
        _figure("Scores by length", "d-BLEU by words of the document.", lambda axis: _lengths(axis, outcomes)),
    ]
    body = "".join(
        (
            "<h1>ReLU and softmax, side by side</h1>",
            f"<p class=lead>{_lead(outcomes, seconds, corpus)}</p>",
            _score_table(outcomes),
            f"<div class=figures>{''.join(figures)}</div>",
            _example(outcomes, documents),
            _small_print(outcomes),
        )
    )
    path.write_text(page("reluformer demo", body), encoding="utf-8")


def _lead(outcomes: Sequence[DemoOutcome], seconds: float, corpus: str) -> str:
    updates = " and ".join(f"{o.training['step']:,}" for o in outcomes)
    return (
        f"Encoder-decoders of the same size ({outcomes[0].training['parameters']:,} parameters) were trained for "
        f"{updates} updates on {html.escape(corpus)}, and translated documents that hold combinations of words which "
        "training never shows. The ReLUFormer reads every memory with ReLU: its attention uses the rule "
        "<code>relu_exp</code>. The Transformer uses softmax in all attention. "
        f"Everything together took {seconds / 60:.1f} minutes."
    )


_ROWS: tuple[tuple[str, str, str], ...] = (
    ("d_bleu", "d-BLEU", "each document one line"),
    ("bleu", "BLEU", "each sentence one line"),
    ("chrf", "chrF", ""),
    ("pronoun_accuracy_far", "pronouns, antecedent 5 or more sentences back", "% correct"),
    ("pronoun_accuracy_far_without_context", "… the same model sentence by sentence", "% correct"),
    ("pronoun_accuracy", "all pronouns", "% correct"),
    ("pronoun_accuracy_without_context", "… sentence by sentence", "% correct"),
    ("term_accuracy", "terms kept", "% correct"),
    ("zero_fraction", "attention weights that are exactly zero", "%"),
    ("zeros_long", "… in the encoder, on a text of 1,024 tokens", "%"),
    ("faster_than_dense", "training read of that text, times as fast as without skipping zeros", ""),
    ("faster_than_softmax", "… times as fast as PyTorch's fused softmax", ""),
)


def _score_table(outcomes: Sequence[DemoOutcome]) -> str:
    head = "".join(f"<th>{outcome.system.title}</th>" for outcome in outcomes)
    figures = [outcome.to_dict() for outcome in outcomes]
    rows = "".join(
        f"<tr><td>{label} <small>{note}</small></td>{''.join(f'<td>{_cell(f[key])}</td>' for f in figures)}</tr>"
        for key, label, note in _ROWS
    )
    speed = "".join(f"<td>{o.training['tokens_per_second']:,.0f}</td>" for o in outcomes)
    rows += f"<tr><td>target tokens a second in training <small>half of the cores each</small></td>{speed}</tr>"
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _figure(title: str, caption: str, draw: Callable[[Any], None]) -> str:
    """Returns a figure as inline SVG with its text as text, so that it can be searched and scaled."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(FONTS):
        figure, axis = plt.subplots(figsize=(4.6, 3.3), layout="constrained")
        draw(axis)
        axis.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=2)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, color="0.92", linewidth=0.8)
        axis.set_axisbelow(True)
        svg = inline_svg(figure)
        plt.close(figure)
    return f"<figure><h2>{title}</h2>{svg}<figcaption>{caption}</figcaption></figure>"


def _learning(axis: Any, outcomes: Sequence[DemoOutcome]) -> None:
    for outcome in outcomes:
        name = outcome.system.name
        per_update = outcome.training["tokens"] / max(outcome.training["step"], 1)
        tokens = [point["step"] * per_update / 1e6 for point in outcome.history]
        losses = [point["loss"] for point in outcome.history]
        axis.plot(tokens, losses, marker=MARKERS[name], color=COLOURS[name], label=outcome.system.title, markersize=4)
    axis.set(xlabel="million target tokens", ylabel="nats a token", yscale="log")
    _plain_ticks(axis)


def _plain_ticks(axis: Any) -> None:
    """Gives both axes a few plain numbers, which do not touch each other; a logarithmic one would write 2.4 × 10⁰."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, ScalarFormatter

    low, high = axis.get_ylim()
    for one in (axis.xaxis, axis.yaxis):
        wide = one is axis.yaxis and high > 5 * low
        one.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)) if wide else MaxNLocator(4))
        one.set_major_formatter(ScalarFormatter(useOffset=False))
        one.set_minor_locator(NullLocator())


def _pronouns(axis: Any, outcomes: Sequence[DemoOutcome]) -> None:
    for outcome in outcomes:
        name = outcome.system.name
        for discourse, filled in ((outcome.discourse, True), (outcome.without_context, False)):
            tallies = {bucket: t for bucket, t in discourse.pronoun_by_distance.items() if t.count}
            heights = [100 * (tally.accuracy or 0.0) for tally in tallies.values()]
            axis.plot(
                list(tallies),
                heights,
                "-" if filled else ":",
                marker=MARKERS[name],
                color=COLOURS[name],
                markerfacecolor=COLOURS[name] if filled else "white",
                label=outcome.system.title if filled else None,
            )
    axis.axhline(100 / 3, color="0.6", linewidth=1, label="chance")  # in the legend, as curves cross the line
    axis.set(xlabel="sentences to the antecedent", ylabel="% correct", ylim=(0, 105))


def _lengths(axis: Any, outcomes: Sequence[DemoOutcome]) -> None:
    for i, outcome in enumerate(outcomes):
        buckets = [bucket for bucket in outcome.scores.buckets if bucket.d_bleu is not None]
        step = 0.76 / len(outcomes)
        places = [place + step * (i - (len(outcomes) - 1) / 2) for place in range(len(buckets))]
        heights = [bucket.d_bleu for bucket in buckets]
        name, title = outcome.system.name, outcome.system.title
        look = {"color": COLOURS[name], "hatch": HATCHES[name], "edgecolor": "white"}
        axis.bar(places, heights, step - 0.02, label=title, **look)
        axis.set_xticks(range(len(buckets)), [bucket.label for bucket in buckets])
    axis.set(xlabel="words", ylabel="d-BLEU", ylim=(0, 105))


def _example(outcomes: Sequence[DemoOutcome], documents: Sequence[EmbeddedDocument]) -> str:
    """Returns the longest document of at most twelve sentences as a table; words that differ are marked."""
    lengths = [len(document.document.src) for document in documents]
    chosen = max(range(len(documents)), key=lambda i: (lengths[i] <= 12, lengths[i]))
    document = documents[chosen].document
    head = "".join(f"<th>{o.system.title}</th>" for o in outcomes)
    rows = ""
    for i, (source, reference) in enumerate(zip(document.src, document.tgt or (), strict=True)):
        cells = "".join(f"<td>{_marked(o.translations[chosen][i], reference)}</td>" for o in outcomes)
        rows += f"<tr><td>{html.escape(source)}</td><td>{html.escape(reference)}</td>{cells}</tr>"
    return (
        "<h2>One of the test documents</h2><p>Words that differ from the reference are marked.</p>"
        f"<table class=text><tr><th>English</th><th>Reference</th>{head}</tr>{rows}</table>"
    )


def _marked(hypothesis: str, reference: str) -> str:
    words = []
    for ours, theirs in zip_longest(hypothesis.split(), reference.split()):
        if ours is not None:
            words.append(html.escape(ours) if ours == theirs else f"<mark>{html.escape(ours)}</mark>")
    return " ".join(words) or "<mark>(nothing)</mark>"


def _small_print(outcomes: Sequence[DemoOutcome]) -> str:
    signatures = "".join(f"<li><code>{html.escape(str(score))}</code></li>" for score in outcomes[0].scores.figures)
    return (
        "<h2>How this was measured</h2><p>One seed, a generated corpus and a few minutes of training: a demonstration "
        "that the software works, not a comparison of the rules. The study is for that. Scores are cased and "
        f"sacreBLEU's:</p><ul>{signatures}</ul><p>{_retranslated(outcomes)}</p>"
        "<p>All figures are in <code>results.json</code> beside this page.</p>"
    )


def _retranslated(outcomes: Sequence[DemoOutcome]) -> str:
    """Returns how many sentences of each system were translated anew."""
    counts = ", ".join(f"{o.system.title} {o.retranslated:,} of {o.scores.sentences:,}" for o in outcomes)
    return f"Sentences that were translated anew by themselves, because they had read another one: {counts}."
