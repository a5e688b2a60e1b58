"""Marks: inline markup and placeholders of a sentence, and their places in its translation.

A model translates the plain sentence. Its marks are then placed with the alignment: which source
tokens each word of the translation read in cross-attention.

pair      `**bold**`, `<b>`, a link: goes around the words that mostly read what it was around
verbatim  code, `%s`, an address: the model reads it as a word; its copy in the translation, or what
          mostly read it, is replaced by the exact original
point     an image, `<x/>`, a footnote mark: goes before the word that follows it, or behind the one before

Pairs nest as in the source, and no mark is lost or repeated. A mark that nothing read is placed by its
position in the sentence and counted, as is every mark if the model cannot tell what it read.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from reluformer.translation.document import Alignment, Range

MOST_MARKS = 200
"""A sentence with more marks is not translated, so that the time stays linear in the length of a document."""
MOST_COPIES = 1000
"""So many copies of a verbatim mark in a translation are compared."""
NEARNESS = 3.0
"""How much words at the same part of both sentences are preferred: a word a third of a sentence away counts 1/e."""
BALANCE_STEPS = 3
"""In the demo's documents the share of words with the right mark no longer grew after three steps."""
_PUNCTUATION = re.escape(string.punctuation + "“”„‚‘’«»‹›…–—¿¡·。、！？，")
_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # scripts without spaces: a word for each character
_LETTERS = rf"[^\s{_PUNCTUATION}{_ALONE}]++"
_WORD = re.compile(rf"[{_ALONE}]|{_LETTERS}(?:['’_.-]{_LETTERS})*+")


_Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mark:
    """A mark covers `source[start:end]` of a plain sentence; a point covers nothing."""

    start: int
    end: int
    opening: str
    """What is written before the covered text, or in place of it if the mark is verbatim."""
    closing: str = ""
    verbatim: bool = False
    open_at: Literal["start", "end"] | None = None
    """The end of the sentence that the mark reaches beyond, because it began or ends in another one."""
    spaced: bool = False
    """Whether a point stood between two spaces, one of which the plain sentence lost."""
    depth: int = 0
    """The number of marks that this one stands inside of."""

    @property
    def is_point(self) -> bool:
        """Whether the mark covers no text."""
        return self.start == self.end

    def moved(self, start: int, end: int) -> Mark:
        """Returns the mark at another place."""
        return replace(self, start=start, end=end)


@dataclass
class _Node:
    """A mark with the marks inside of it, and its place in the translation."""

    mark: Mark
    children: list[_Node] = field(default_factory=list)
    place: Range = (0, 0)
    appended: bool = False


def place_marks(
    source: str, text: str, marks: Sequence[Mark], alignment: Alignment | None, escape: Callable[[str], str]
) -> tuple[str, int]:
    """Writes a translation with the marks of its source.

    Args:
        source: The plain sentence.
        text: Its translation.
        marks: The marks of the sentence, properly nested, in the order of their openings.
        alignment: What the translation read; None if that is not known.
        escape: Writes plain text in the format of the document.

    Returns:
        The translation with every mark exactly once, and the number of marks that were placed by position alone.

    Example:
        >>> place_marks("a big dog", "a big dog", [Mark(2, 5, "<b>", "</b>")], Alignment.identity("a big dog"), str)
        ('a <b>big</b> dog', 0)
    """
    placing = _Placing(source, text, alignment)
    roots = _tree(marks)
    placing.place(roots, (0, len(text)), (0, len(source)))
    return _written(roots, (0, len(text)), source, text, escape), placing.by_position


def words_of(text: str) -> list[Range]:
    """Returns where the words of a text stand, without punctuation around them."""
    return [match.span() for match in _WORD.finditer(text)]


def _tree(marks: Sequence[Mark]) -> list[_Node]:
    roots: list[_Node] = []
    stack: list[_Node] = []
    for mark in marks:
        del stack[mark.depth :]
        node = _Node(mark)
        (stack[-1].children if stack else roots).append(node)
        stack.append(node)
    return roots


class _Placing:
    """The words of both sides, and what each word of the translation read."""

    def __init__(self, source: str, text: str, alignment: Alignment | None) -> None:
        self.source = source
        self.text = text
        self.source_words = _ranges(words_of(source))
        self.words = _ranges(words_of(text))
        self.alignment = alignment
        self.by_position = 0
        self._reads: npt.NDArray[np.float32] | None = None
        self._word_reads: npt.NDArray[np.float64] = np.zeros((0, 0))
        if alignment is not None:
            self._source_tokens, self._target_tokens = _ranges(alignment.source), _ranges(alignment.target)
        if alignment is not None and len(self.words):
            rows = [_overlapping(self._target_tokens, word) for word in self.words]
            columns = [_overlapping(self._source_tokens, word) for word in self.source_words]
            self._reads = np.stack([alignment.weights[row].sum(0) for row in rows])
            by_word = [self._reads[:, column].sum(1) for column in columns]
            self._word_reads = _balanced(np.stack(by_word, 1)) if by_word else np.zeros((len(self.words), 0))

    # ------------------------------------------------------------------ pairs and verbatim marks

    def place(self, nodes: Sequence[_Node], room: Range, covered: Range) -> None:
        """Places the marks `nodes`, which stand in `covered` of the source, inside of `room` of the translation."""
        taken: list[Range] = []
        ranges = [node for node in nodes if not node.mark.is_point]
        first = {"start": 0, "end": 1, None: 2}
        for node in sorted(ranges, key=lambda node: (first[node.mark.open_at], not node.mark.verbatim)):
            self._place_range(node, room, covered, taken)
            if not node.appended:
                taken.append(node.place)
                self.place(node.children, node.place, (node.mark.start, node.mark.end))
        for node in nodes:
            if node.mark.is_point:
                node.place = self._point(node.mark, room, covered, taken)

    def _place_range(self, node: _Node, room: Range, covered: Range, taken: Sequence[Range]) -> None:
        mark = node.mark
        if not mark.verbatim and not taken and (mark.start, mark.end) == covered and room[0] < room[1]:
            node.place = room
            return
        if mark.verbatim and (copy := self._copy(mark, room, taken)) is not None:
            node.place = copy
            return
        free = self._free(room, taken)
        found = self._best(mark, free)
        if found is None:
            self.by_position += 1
            found = None if mark.verbatim else self._by_proportion(mark, free)
        if found is None and mark.open_at is not None:
            node.place = (room[0] if mark.open_at == "start" else room[1],) * 2
            return
        if found is None:
            gap = self._gap(self._proportional(mark.start, room), taken)
            node.place, node.appended = (gap, gap), True
            return
        place = int(self.words[found[0], 0]), int(self.words[found[1], 1])
        if mark.open_at == "start":
            place = room[0], place[1]
        elif mark.open_at == "end":
            place = place[0], room[1]
        node.place = place if mark.verbatim else self._with_punctuation(mark, place, room, taken)

    def _free(self, room: Range, taken: Sequence[Range]) -> _Indexes:
        """Returns the words inside of `room` that share no character with what is taken."""
        first, stop = _between(self.words, room)
        free = np.ones(max(0, stop - first), bool)
        for place in taken:
            low, high = _meeting(self.words, place)
            free[max(0, low - first) : max(0, high - first)] = False
        return first + np.flatnonzero(free)

    def _copy(self, mark: Mark, room: Range, taken: Sequence[Range]) -> Range | None:
        """Returns the copy of a verbatim mark in the translation that read it most, or the first."""
        wanted = self.source[mark.start : mark.end]
        best, most, start = None, -1.0, self.text.find(wanted, *room)
        for _ in range(MOST_COPIES):
            if not wanted or start < 0:
                break
            place = start, start + len(wanted)
            inside_word = _joins(self.text, place[0]) or _joins(self.text, place[1])
            if not inside_word and not _meets(place, taken) and (read := self._share(mark, place)) > most:
                best, most = place, read
            start = self.text.find(wanted, place[1], room[1])
        return best

    def _share(self, mark: Mark, place: Range) -> float:
        """Returns how much the tokens of `place` read what the mark covers."""
        if self.alignment is None:
            return 0.0
        rows, columns = _overlapping(self._target_tokens, place), _overlapping(self._source_tokens, _of(mark))
        return float(self.alignment.weights[np.ix_(rows, columns)].sum())

    def _best(self, mark: Mark, free: _Indexes) -> tuple[int, int] | None:
        """Returns the first and last of the neighbouring words that read what the mark covers more than other words."""
        if self._reads is None or self.alignment is None or not len(free):
            return None
        own = np.zeros(len(self.source_words), bool)
        own[slice(*_meeting(self.source_words, _of(mark)))] = True
        outside = self._word_reads[:, ~own].max(1, initial=0.0)
        if own.any():
            inside = self._word_reads[:, own].max(1)
        else:
            inside = self._reads[:, _overlapping(self._source_tokens, _of(mark))].sum(1)
        if mark.open_at is not None:
            return self._cut(mark, inside - outside, free)
        best: tuple[float, int, int] | None = None
        total, start, previous = 0.0, -1, -2
        margins = (inside - outside)[free]
        for index, margin in zip(free.tolist(), margins.tolist(), strict=True):
            if previous != index - 1 or total <= 0:
                total, start = 0.0, index
            total, previous = total + margin, index
            if margin > 0 and (best is None or total > best[0]):
                best = total, start, index
        if best is not None:
            return best[1], best[2]
        strongest = int(free[np.argmax(inside[free])])
        return (strongest, strongest) if inside[strongest] > 0 else None

    def _cut(self, mark: Mark, margins: npt.NDArray[np.float32], free: _Indexes) -> tuple[int, int]:
        """Returns the words of a mark that is open at one end of the sentence; at least one."""
        values = margins[free]
        if mark.open_at == "start":
            return int(free[0]), int(free[np.argmax(np.cumsum(values))])
        return int(free[len(free) - 1 - int(np.argmax(np.cumsum(values[::-1])))]), int(free[-1])

    def _by_proportion(self, mark: Mark, free: _Indexes) -> tuple[int, int] | None:
        """Returns the words that stand where the mark stood, in proportion; None if no word is free there."""
        if not len(free):
            return None
        before = _ended(self.source_words, mark.start)
        low, high = _meeting(self.source_words, _of(mark))
        inside = max(1, high - low)
        ratio = len(self.words) / max(1, len(self.source_words))
        first, last = round(before * ratio), max(round((before + inside) * ratio), round(before * ratio) + 1) - 1
        place = int(np.argmin(np.abs(free - first)))
        nearest = stop = int(free[place])
        while stop < last and place + 1 < len(free) and free[place + 1] == stop + 1:
            stop, place = stop + 1, place + 1
        if mark.open_at is not None:
            return (int(free[0]), stop) if mark.open_at == "start" else (nearest, int(free[-1]))
        return nearest, stop

    def _with_punctuation(self, mark: Mark, place: Range, room: Range, taken: Sequence[Range]) -> Range:
        """Extends a place by a character of punctuation at each end where the source has one there, too."""
        low, high = place
        first, last = self.source[mark.start], self.source[mark.end - 1]
        if low > room[0] and not first.isalnum() and self.text[low - 1] == first and not _joins(self.text, low - 1):
            low -= 0 if _meets((low - 1, low), taken) else 1
        if high < room[1] and not last.isalnum() and self.text[high] == last and not _joins(self.text, high + 1):
            high += 0 if _meets((high, high + 1), taken) else 1
        return low, high

    # ------------------------------------------------------------------ points

    def _point(self, mark: Mark, room: Range, covered: Range, taken: Sequence[Range]) -> Range:
        """Returns the place of a point: at the word before or behind it that it belongs to."""
        low, stop = _between(self.source_words, (covered[0], mark.start))
        start, high = _between(self.source_words, (mark.start, covered[1]))
        before, after = (stop - 1 if low < stop else None), (start if start < high else None)
        if before is None and not self.source[covered[0] : mark.start].strip():
            return (room[0],) * 2
        if after is None and not self.source[mark.start : covered[1]].strip():
            return (room[1],) * 2
        touches = mark.start > 0 and not self.source[mark.start - 1].isspace()
        sides = [(before, 1), (after, 0)] if touches else [(after, 0), (before, 1)]
        for word, edge in sides:
            index = None if word is None else self._reader(word, room)
            if index is not None:
                return (self._gap(int(self.words[index, edge]), taken),) * 2
        self.by_position += 1
        return (self._gap(self._proportional(mark.start, room), taken),) * 2

    def _reader(self, word: int, room: Range) -> int | None:
        """Returns the word of the translation inside of `room` that read a word of the source most."""
        first, stop = _between(self.words, room)
        if self._reads is None or self.alignment is None or first >= stop:
            return None
        shares = self._word_reads[first:stop, word]
        strongest = int(np.argmax(shares))
        return first + strongest if shares[strongest] > 0 else None

    def _proportional(self, place: int, room: Range) -> int:
        """Returns the edge of a word inside of `room` that corresponds to a place in the source."""
        before = _ended(self.source_words, place)
        index = round(before * len(self.words) / max(1, len(self.source_words)))
        edge = int(self.words[index, 0]) if index < len(self.words) else len(self.text.rstrip())
        return min(max(edge, room[0]), room[1])

    def _gap(self, place: int, taken: Sequence[Range]) -> int:
        """Returns the nearest place behind `place` that is not inside of a place that is taken."""
        return next((high for low, high in taken if low < place < high), place)


def _balanced(reads: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Turns what words read into what they translate.

    An article reads its noun, too, for the gender; the noun reads it more. So every word of the source
    gives as much to all words that read it as every other one, as far as the zeros allow it (the
    iteration of Sinkhorn and Knopp). Words at similar places in both sentences have an advantage.

    Args:
        reads: What each word of the translation read of each word of the source, (words, source words).
    """
    places = [(np.arange(size) + 0.5) / size for size in reads.shape]
    balanced: npt.NDArray[np.float64] = reads * np.exp(-NEARNESS * np.abs(places[0][:, None] - places[1]))
    tiny = np.finfo(balanced.dtype).tiny
    for _ in range(BALANCE_STEPS):
        balanced = balanced / np.maximum(balanced.sum(0, keepdims=True), tiny)
        balanced = balanced / np.maximum(balanced.sum(1, keepdims=True), tiny)
    return balanced


def _written(nodes: Sequence[_Node], room: Range, source: str, text: str, escape: Callable[[str], str]) -> str:
    """Writes `room` of the translation with the marks in it."""
    pieces: list[str] = []
    cursor = room[0]
    order = sorted(nodes, key=lambda node: (node.place, not node.appended and not node.mark.is_point))
    for node in order:
        mark, (low, high) = node.mark, node.place
        pieces.append(escape(text[cursor:low]))
        last = next((piece[-1] for piece in reversed(pieces) if piece), "")
        following = text[low : min(low + 1, room[1])]
        if node.appended:
            pieces.append(_spaced(_as_in_source(node, source, escape), last, following))
        elif mark.is_point:
            pieces.append(_spaced(_whole(node), last, following) if mark.spaced else _whole(node))
        elif mark.verbatim:
            pieces.append(mark.opening)
        else:
            pieces += [mark.opening, _written(node.children, node.place, source, text, escape), mark.closing]
        cursor = high
    return "".join([*pieces, escape(text[cursor : room[1]])])


def _whole(node: _Node) -> str:
    """Writes a mark that covers no text, with those inside of it."""
    return node.mark.opening + "".join(map(_whole, node.children)) + node.mark.closing


def _as_in_source(node: _Node, source: str, escape: Callable[[str], str]) -> str:
    """Writes a mark, the marks inside of it and the text that it covers, as they stand in the source."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        one.place, one.appended = _of(one.mark), False
        waiting += one.children
    return _written([node], node.place, source, source, escape)


def _spaced(piece: str, before: str, after: str) -> str:
    """Puts spaces between a piece and the characters that it would touch."""
    return " " * (before.strip() != "") + piece + " " * (after.strip() != "")


def _of(mark: Mark) -> Range:
    return mark.start, mark.end


def _ranges(places: Sequence[Range]) -> _Indexes:
    """Returns ranges as rows, (N, 2)."""
    return np.array(places, np.int64).reshape(-1, 2)


def _overlapping(places: _Indexes, wanted: Sequence[int] | _Indexes) -> _Indexes:
    """Returns the numbers of the tokens that share a character with `wanted`."""
    return np.flatnonzero((places[:, 0] < wanted[1]) & (wanted[0] < places[:, 1]))


def _between(words: _Indexes, room: Range) -> Range:
    """Returns the number of the first word inside of `room`, and the one behind the last."""
    return int(np.searchsorted(words[:, 0], room[0])), int(np.searchsorted(words[:, 1], room[1], "right"))


def _meeting(words: _Indexes, place: Range) -> Range:
    """Returns the number of the first word that shares a character with `place`, and the one behind the last."""
    first, stop = np.searchsorted(words[:, 1], place[0], "right"), np.searchsorted(words[:, 0], place[1])
    return int(first), max(int(first), int(stop))


def _ended(words: _Indexes, place: int) -> int:
    """Returns how many words end before `place`."""
    return int(np.searchsorted(words[:, 1], place, "right"))


def _meets(place: Range, taken: Sequence[Range]) -> bool:
    return any(low < place[1] and place[0] < high for low, high in taken)


def _joins(text: str, place: int) -> bool:
    """Returns whether letters or digits stand on both sides of a place."""
    return 0 < place < len(text) and text[place - 1].isalnum() and text[place].isalnum()
