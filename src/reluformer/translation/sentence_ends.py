"""The rules of the `simple` splitter: which full stop ends an English or German sentence.

A sentence can end behind `.`, `!`, `?` or an ellipsis, with quotes and brackets that
close there, before white space; a blank line always ends one. It goes on where the next
word begins in lower case. After a lone full stop it also goes on behind

    Mr. Dr. z.B. d.h. bzw.      what never ends a sentence
    No. Nr. Art. S. + number    what counts something
    U.S. etc. usw. J.           unless a word follows that likes to begin sentences
    am 3. Mai, im XX. Jh.       German ordinals: before a month or behind an article
    1. Foo, a. Foo              the number of a list item
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_STOPS = ".!?…。！？"
_CLOSING = "\"'”’“‘»«›‹)]}"
_OPENING = "\"'“”„‚‘’«»‹›([{¿¡–—-"
_BLANK_LINE = r"[^\S\n]*\n[^\S\n]*\n"
_END = re.compile(rf"(?<![{_STOPS}])[{_STOPS}]++[{re.escape(_CLOSING)}]*+(?=\s)|(?<=\S)(?={_BLANK_LINE})")
_BREAK = re.compile(_BLANK_LINE)
_OPENED = re.compile(rf"[{re.escape(_OPENING)}]")
_NEXT_WORD = re.compile(rf"\s+[{re.escape(_OPENING)}]*\s*(\w*)")
_SINGLE_LETTERS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_ROMAN = re.compile(r"[IVXLC]+")
_LOOKBACK = 60


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER_LAST = _words(
    "mr mrs ms mx dr prof st messrs mme mlle hr hrn fr frl sen rep gen col maj lt capt cpt sgt rev hon gov pres "
    "vs cf viz approx ca vgl bzw bspw evtl ggf inkl exkl sog gem bes dipl ing geb hrsg hg jew resp "
    "e.g i.e z.b d.h u.a v.a i.d.r z.t m.e o.g s.o s.u i.a u.u z.zt z.hd u.z i.v i.d i.s"
)
_BEFORE_NUMBER = _words("no nos nr art abs s p pp fig figs abb bd bde kap vol ch sec eq tab ziff tel anm az")
_MAY_BE_LAST = _words(
    "etc usw usf inc ltd co corp bros jr sr dept univ assn ave blvd str mio mrd tsd jh jan feb aug sept sep oct okt "
    "nov dec dez al ph.d o.ä u.ä e.v"
)
_SENTENCE_STARTERS = _words(
    "the a an this that these those he she it they we you i his her its their our my there here in on at as if when "
    "while after before since for from by with but and or so yet however moreover therefore then thus also what who "
    "why how where which no not one some many most all "
    "der die das ein eine einer eines dieser diese dieses er sie es wir ihr ich man sein seine unser unsere mein meine "
    "im am um auf bei nach vor seit für von mit aber und oder denn doch jedoch daher deshalb dann danach damit auch "
    "was wer warum wie wo wenn als weil ob dass da nun so hier dort kein keine nicht alle viele einige"
)
_MONTHS = _words(
    "januar jänner februar märz april mai juni juli august september oktober november dezember "
    "jan feb mär apr jun jul aug sep sept okt nov dez"
)
_BEFORE_ORDINAL = _words(
    "am vom zum zur im der die das den dem des beim ins ab bis seit und oder sein seine seinen seinem seiner ihr ihre "
    "ihren ihrem ihrer mein meine meinen meinem meiner unser unsere unserem unseren unserer dieser diesem diesen jeder "
    "jedem jeden jede jedes kein keine ein eine einen einem einer erst zu"
)


def possible_ends(text: str) -> Iterator[int]:
    """Offsets behind which a sentence may end, in order."""
    for match in _END.finditer(text):
        yield match.end()


def is_sentence_end(text: str, end: int) -> bool:
    """Whether the possible end at offset `end` is one."""
    before = text[max(0, end - _LOOKBACK) : end].rstrip(_CLOSING)
    if not before.endswith(tuple(_STOPS)) or _BREAK.match(text, end):
        return True
    following = _NEXT_WORD.match(text, end)
    next_word = following[1] if following else ""
    if next_word[:1].islower():
        return False
    if not before.endswith(".") or before.endswith(("..", "!.", "?.", "….")):
        return True
    return not _goes_on(before[:-1], next_word)


def _goes_on(before: str, next_word: str) -> bool:
    """Whether the lone full stop behind `before` belongs to an abbreviation or ordinal."""
    previous, word = ["", "", *re.split(r"\s+", before)][-2:]
    word = _OPENED.split(word)[-1]
    key, next_key = word.lower(), next_word.lower()
    spaced = previous.lower() + key if re.fullmatch(r"(?:[^\W\d_]\.)+", previous) else ""
    if key in _NEVER_LAST or spaced in _NEVER_LAST:
        return True
    if key in _BEFORE_NUMBER:
        return next_word[:1].isdigit() or bool(_ROMAN.fullmatch(next_word))
    if _numbers_an_item(previous, word):
        return True
    if (word.isdigit() and len(word) <= 2) or _ROMAN.fullmatch(word):
        if next_key in _MONTHS or previous.lower() in _BEFORE_ORDINAL:
            return True
        return len(word) == 1 and word.isalpha() and next_key not in _SENTENCE_STARTERS
    if key in _MAY_BE_LAST or _SINGLE_LETTERS.fullmatch(word):
        return next_key not in _SENTENCE_STARTERS
    return False


def _numbers_an_item(previous: str, word: str) -> bool:
    """Whether a sentence begins with `word`, as in `1. Foo` or `a. Foo`."""
    if not ((word.isdigit() and len(word) <= 2) or (len(word) == 1 and word.isalpha())):
        return False
    abbreviated = previous[:-1].lower() in _NEVER_LAST | _BEFORE_NUMBER | _MAY_BE_LAST or len(previous) == 2
    return not previous or (previous.endswith(tuple(_STOPS)) and not abbreviated)
