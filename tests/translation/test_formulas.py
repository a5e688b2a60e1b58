"""Formulas: they are copied exactly, and prices are none."""

from __future__ import annotations

import pytest

from reluformer.translation import formats


@pytest.mark.parametrize(
    ("text", "sentences", "formulas"),
    [
        ("It costs $5 and $6.", ("It costs $5 and $6.",), []),
        ("From $5-$6 to $20, or US$7 for 6$ a day.", ("From $5-$6 to $20, or US$7 for 6$ a day.",), []),
        ("Earn $$$ now, $$$ later.", ("Earn $$$ now, $$$ later.",), []),
        ("So $E = mc^2$ holds.", ("So E = mc^2 holds.",), ["$E = mc^2$"]),
        ("Let $x$ and\n$a_1 + b*c*d$ be.", ("Let x and a_1 + b*c*d be.",), ["$x$", "$a_1 + b*c*d$"]),
        (
            "The law (E=mc^2), *x=1* and C:\\dir.",
            ("The law (E=mc^2), x=1 and C:\\dir.",),
            ["(E=mc^2)", "x=1", "C:\\dir"],
        ),
        ("See $$\\frac{a}{b}$$ there.", ("See \\frac{a}{b} there.",), ["$$\\frac{a}{b}$$"]),
        ("As `$x` and `$y` say.", ("As $x and $y say.",), ["`$x`", "`$y`"]),
        ("$$\n\\frac{a}{b} \\\\\n\\text{if so} c\n$$", (), []),
        ("$$\\frac{a}{b}$$", (), []),
        ("$E = mc^2$", (), []),
        ("E=mc^2", (), []),
        ("| $$a=b$$ | a dog |\n|---|---|", ("a dog",), []),
    ],
)
def test_formulas_are_code_and_prices_are_not(text: str, sentences: tuple[str, ...], formulas: list[str]) -> None:
    found, skeleton = formats.get("markdown").parse(text)
    assert found == sentences
    units = [part for part in skeleton.parts if isinstance(part, formats.TextUnit)]
    assert [mark.opening for unit in units for mark in unit.marks if mark.verbatim] == formulas
    assert skeleton.fill(found) == text
    written = skeleton.fill(["Unsinn"] * len(found))
    assert all(written.count(formula) == 1 for formula in formulas)


def test_formulas_stay_whole_beside_markup() -> None:
    sentences, skeleton = formats.get("html").parse(
        "<p>Law <b>E=mc<sup>2</sup></b>, a&lt;=b or <i>x={{ a b }}.</i></p>"
    )
    assert sentences == ("Law E=mc2, a<=b or x={{ a b }}.",)
    (unit,) = (part for part in skeleton.parts if isinstance(part, formats.TextUnit))
    assert [mark.opening for mark in unit.marks if mark.verbatim] == ["E=mc", "=b", "x={{ a b }}"]
