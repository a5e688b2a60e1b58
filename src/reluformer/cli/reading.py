"""What each word of a translation read of its source: subwords put together, zeros left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from reluformer.translation.inspection import ReadMap, Word
    from reluformer.translation.translator import Translator

_NAMES = 16
_MUCH, _LITTLE = 0.3, 0.1


@dataclass(frozen=True)
class Window:
    """Sentences that were read together, their translations, and who read whom."""

    source: tuple[Word, ...]
    target: tuple[Word, ...]
    reads: tuple[dict[int, float], ...]
    """Of each target word: the weight on each source word that it read."""
    zero_fraction: float
    weights: int
    """How many there were, of which that share is zero."""


def read_windows(translator: Translator, sentences: Sequence[str], layer: int | None, head: int | None) -> list[Window]:
    """Translate a document and follow its reads.

    A document longer than the model's window is cut at sentence borders, and each part is
    translated alone, so that what is shown is all that the model saw.
    """
    from reluformer.translation.inspection import laid_out, parts_of, read_map

    tokenizer = translator.tokenizer
    sentences = [" ".join(sentence.split()) for sentence in sentences]
    parts = list(parts_of(tokenizer, sentences, translator.config.window_tokens))
    translations = translator.translate_documents(parts)
    windows, first = [], 0
    for part, translation in zip(parts, translations, strict=True):
        source, source_words = laid_out(tokenizer, part, first)
        target, target_words = laid_out(tokenizer, translation, first)
        found = read_map(translator.model, [token for token, _ in source], [token for token, _ in target], layer, head)
        reads = _by_word(found, [word for _, word in source], [word for _, word in target], len(target_words))
        weights = len(found.heads) * len(source) * len(target)
        windows.append(Window(tuple(source_words), tuple(target_words), reads, found.zero_fraction, weights))
        first += len(part)
    return windows


def _by_word(found: ReadMap, source: Sequence[int], target: Sequence[int], words: int) -> tuple[dict[int, float], ...]:
    """Weights added up over heads, and over the tokens of each word on both sides."""
    reads: tuple[dict[int, float], ...] = tuple({} for _ in range(words))
    for one in found.heads:
        for place, row in enumerate(one.rows):
            into = reads[target[place]]
            for slot, weight in row:
                into[source[slot]] = into.get(source[slot], 0.0) + weight
    return reads


def zero_fraction(windows: Sequence[Window]) -> float:
    """Share of all weights that are exactly zero."""
    return sum(window.zero_fraction * window.weights for window in windows) / sum(window.weights for window in windows)


def to_dict(windows: Sequence[Window]) -> dict[str, Any]:
    """Plain data for JSON; a read is [place in the window's source, weight]."""
    return {
        "zero_fraction": zero_fraction(windows),
        "windows": [
            {
                "source": [asdict(word) for word in window.source],
                "target": [
                    {**asdict(word), "reads": sorted(reads.items(), key=lambda read: -read[1])}
                    for word, reads in zip(window.target, window.reads, strict=True)
                ],
                "zero_fraction": window.zero_fraction,
            }
            for window in windows
        ],
    }


def show(windows: Sequence[Window], top: int, console: Console) -> None:
    """Sentence by sentence: source, translation, and what each word of it read most."""
    from reluformer.translation.inspection import DOCUMENT_END, SENTENCE_END

    for number, window in enumerate(windows, 1):
        if len(windows) > 1:
            console.rule(f"window {number} of {len(windows)}")
        for sentence in dict.fromkeys(word.sentence for word in window.source):
            _show_sentence(window, sentence, top, console)
    console.print(
        f"{zero_fraction(windows):.1%} of the weights are exactly zero. Shares are of all that a word read; "
        f"[n] marks a word of another sentence, {SENTENCE_END} and {DOCUMENT_END} the ends of sentences and window.",
        style="dim",
        highlight=False,
        markup=False,
    )


def _show_sentence(window: Window, sentence: int, top: int, console: Console) -> None:
    def text(words: Sequence[Word]) -> str:
        return " ".join(word.text for word in words if word.sentence == sentence and not word.is_mark)

    console.print(Text.assemble((f"{sentence + 1:>3}  ", "dim"), (text(window.source), "bold")))
    console.print(Text.assemble("     ", (text(window.target), "bold cyan")))
    table = Table(box=box.SIMPLE, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1))
    table.add_column(justify="right", style="cyan", width=_NAMES)
    table.add_column(no_wrap=True)
    width = max(20, console.width - _NAMES - 4)
    for word, reads in zip(window.target, window.reads, strict=True):
        if word.sentence == sentence and not word.is_mark:
            table.add_row(Text(word.text), _most_read(window, word, reads, top, width))
    console.print(table)


def _most_read(window: Window, word: Word, reads: dict[int, float], top: int, width: int) -> Text:
    """The words that were read most with their shares, broken only between them."""
    total = sum(reads.values())
    if not total:
        return Text("nothing", style="dim")
    ranked = sorted(reads.items(), key=lambda read: -read[1])
    items = [_item(window.source[place], word.sentence, weight / total) for place, weight in ranked[:top]]
    if len(ranked) > top:
        items.append(Text(f"+{len(ranked) - top}", style="dim"))
    lines = [items[0]]
    for item in items[1:]:
        if lines[-1].cell_len + 2 + item.cell_len <= width:
            lines[-1] = lines[-1] + "  " + item
        else:
            lines.append(item)
    return Text("\n").join(lines)


def _item(read: Word, sentence: int, share: float) -> Text:
    elsewhere = "" if read.sentence == sentence else f" [{read.sentence + 1}]"
    style = "bold" if share >= _MUCH else "dim" if share < _LITTLE else ""
    return Text(f"{read.text}{elsewhere} {share:.0%}", style=style)
