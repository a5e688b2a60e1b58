"""The report of the demo: one HTML page with scores, curves and an example, without external requests."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from reluformer.report_page import FONTS, inline_svg, page
from reluformer.translation.demo import Outcome
from reluformer.translation.embedded import EmbeddedDocument

# Okabe and Ito's colours, told apart by everyone; markers tell them apart in black and white.
COLOURS = {"reluformer": "#D55E00", "transformer": "#0072B2"}
MARKERS = {"reluformer": "o", "transformer": "s"}


def write(
    path: Path, outcomes: Sequence[Outcome], documents: Sequence[EmbeddedDocument], seconds: float, corpus: str
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
            _table(outcomes),
            f"<div class=figures>{''.join(figures)}</div>",
            _example(outcomes, documents),
            _small_print(outcomes),
        )
    )
    path.write_text(page("reluformer demo", body), encoding="utf-8")


def _lead(outcomes: Sequence[Outcome], seconds: float, corpus: str) -> str:
    updates = " and ".join(f"{o.training['step']:,}" for o in outcomes)
    return (
        f"Two encoder-decoders of the same size ({outcomes[0].training['parameters']:,} parameters) were trained for "
        f"{updates} updates on {html.escape(corpus)}, and translated documents that hold combinations of words which "
        f"training never shows. One reads every memory with ReLU, the other uses softmax in all attention. "
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
)


def _table(outcomes: Sequence[Outcome]) -> str:
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


def _learning(axis: Any, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        name = outcome.system.name
        per_update = outcome.training["tokens"] / max(outcome.training["step"], 1)
        tokens = [point["step"] * per_update / 1e6 for point in outcome.history]
        losses = [point["loss"] for point in outcome.history]
        axis.plot(tokens, losses, marker=MARKERS[name], color=COLOURS[name], label=outcome.system.title, markersize=4)
    axis.set(xlabel="million target tokens", ylabel="nats a token", yscale="log")


def _pronouns(axis: Any, outcomes: Sequence[Outcome]) -> None:
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
    axis.axhline(100 / 3, color="0.6", linewidth=1)
    axis.annotate("chance", (0.99, 100 / 3), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="0.4")
    axis.set(xlabel="sentences to the antecedent", ylabel="% correct", ylim=(0, 105))


def _lengths(axis: Any, outcomes: Sequence[Outcome]) -> None:
    for i, outcome in enumerate(outcomes):
        buckets = [bucket for bucket in outcome.scores.buckets if bucket.d_bleu is not None]
        places = [place + 0.38 * (i - 0.5) for place in range(len(buckets))]
        heights = [bucket.d_bleu for bucket in buckets]
        name = outcome.system.name
        hatch = None if i == 0 else "///"
        axis.bar(places, heights, 0.36, color=COLOURS[name], hatch=hatch, edgecolor="white", label=outcome.system.title)
        axis.set_xticks(range(len(buckets)), [bucket.label for bucket in buckets])
    axis.set(xlabel="words", ylabel="d-BLEU", ylim=(0, 105))


def _example(outcomes: Sequence[Outcome], documents: Sequence[EmbeddedDocument]) -> str:
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


def _small_print(outcomes: Sequence[Outcome]) -> str:
    signatures = "".join(f"<li><code>{html.escape(str(score))}</code></li>" for score in outcomes[0].scores.figures)
    return (
        "<h2>How this was measured</h2><p>One seed, a generated corpus and a few minutes of training: a demonstration "
        "that the software works, not a comparison of the rules. The study is for that. Scores are cased and "
        f"sacreBLEU's:</p><ul>{signatures}</ul><p>All figures are in <code>results.json</code> beside this page.</p>"
    )
