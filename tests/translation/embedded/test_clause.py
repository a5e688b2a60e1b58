"""Word order and verb forms, sentence by sentence, against translations written by hand."""

import pytest

from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.clause import Clause, Modal, ObjectKind, Setting, question, statement, subordinate
from reluformer.translation.embedded.words import Person, Phrase, Tense, Time

ANNA, CHILDREN = lex.NAMES[0], Person("the children", "die Kinder", "den Kindern", plural=True)
MAN = Person("the man", "der Mann", "dem Mann")
IT, THE_APPLE, AN_APPLE = Phrase("it", "ihn"), Phrase("the apple", "den Apfel"), Phrase("an apple", "einen Apfel")
YESTERDAY, OFTEN = Time("yesterday", "gestern"), Time("often", "oft", mid=True)
GARDEN = Phrase("in the garden", "im Garten")
PRONOUN, DEFINITE, INDEFINITE = ObjectKind
NOW, PAST, FUTURE = Setting(Tense.NOW), Setting(Tense.PAST), Setting(Tense.FUTURE)


def past(**adverbs: object) -> Setting:
    return Setting(Tense.PAST, **adverbs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("clause", "english", "german"),
    [
        (Clause(ANNA, lex.SEE, NOW, IT, PRONOUN), "Anna sees it", "Anna sieht ihn"),
        (Clause(CHILDREN, lex.SEE, NOW, IT, PRONOUN), "the children see it", "die Kinder sehen ihn"),
        (Clause(ANNA, lex.FIND, PAST, IT, PRONOUN), "Anna found it", "Anna hat ihn gefunden"),
        (Clause(CHILDREN, lex.FIND, PAST, IT, PRONOUN), "the children found it", "die Kinder haben ihn gefunden"),
        (Clause(ANNA, lex.BUY, FUTURE, IT, PRONOUN), "Anna will buy it", "Anna wird ihn kaufen"),
        (Clause(ANNA, lex.TAKE, NOW, IT, PRONOUN), "Anna takes it along", "Anna nimmt ihn mit"),
        (Clause(ANNA, lex.TAKE, FUTURE, IT, PRONOUN), "Anna will take it along", "Anna wird ihn mitnehmen"),
        (Clause(ANNA, lex.SEEK, PAST, IT, PRONOUN), "Anna looked for it", "Anna hat ihn gesucht"),
        (
            Clause(ANNA, lex.FIND, past(time=YESTERDAY, place=GARDEN, front=True), IT, PRONOUN),
            "yesterday Anna found it in the garden",
            "gestern hat Anna ihn im Garten gefunden",
        ),
        (
            Clause(ANNA, lex.FIND, past(place=GARDEN, front=True), IT, PRONOUN),
            "in the garden Anna found it",
            "im Garten hat Anna ihn gefunden",
        ),
        (
            Clause(ANNA, lex.EAT, past(time=YESTERDAY, place=GARDEN), AN_APPLE, INDEFINITE),
            "Anna ate an apple in the garden yesterday",
            "Anna hat gestern im Garten einen Apfel gegessen",
        ),
        (
            Clause(ANNA, lex.EAT, past(time=YESTERDAY, place=GARDEN), THE_APPLE, DEFINITE),
            "Anna ate the apple in the garden yesterday",
            "Anna hat gestern den Apfel im Garten gegessen",
        ),
        (
            Clause(ANNA, lex.EAT, past(time=YESTERDAY, negated=True), THE_APPLE, DEFINITE),
            "Anna did not eat the apple yesterday",
            "Anna hat den Apfel gestern nicht gegessen",
        ),
        (
            Clause(ANNA, lex.CLEAN, Setting(Tense.HABIT, time=OFTEN), THE_APPLE, DEFINITE),
            "Anna often cleans the apple",
            "Anna putzt den Apfel oft",
        ),
        (
            Clause(ANNA, lex.GIVE, past(time=YESTERDAY), IT, PRONOUN, MAN),
            "Anna gave it to the man yesterday",
            "Anna hat ihn gestern dem Mann gegeben",
        ),
        (
            Clause(ANNA, lex.GIVE, past(time=YESTERDAY, negated=True), IT, PRONOUN, MAN),
            "Anna did not give it to the man yesterday",
            "Anna hat ihn dem Mann gestern nicht gegeben",
        ),
        (
            Clause(ANNA, lex.GIVE, PAST, AN_APPLE, INDEFINITE, MAN),
            "Anna gave an apple to the man",
            "Anna hat dem Mann einen Apfel gegeben",
        ),
        (
            Clause(ANNA, lex.SELL, Setting(Tense.MODAL, Modal.WANT, negated=True), IT, PRONOUN),
            "Anna does not want to sell it",
            "Anna will ihn nicht verkaufen",
        ),
        (
            Clause(CHILDREN, lex.FIND, Setting(Tense.MODAL, Modal.CAN, negated=True), IT, PRONOUN),
            "the children cannot find it",
            "die Kinder können ihn nicht finden",
        ),
        (
            Clause(CHILDREN, lex.BE, past(negated=True), complement=Phrase("tired", "müde")),
            "the children were not tired",
            "die Kinder waren nicht müde",
        ),
        (
            Clause(
                Person("it", "er", ""), lex.BE, Setting(Tense.NOW, time=OFTEN), complement=Phrase("dirty", "schmutzig")
            ),
            "it is often dirty",
            "er ist oft schmutzig",
        ),
        (
            Clause(Person("it", "er", ""), lex.FALL, past(time=YESTERDAY), complement=lex.FALLS[0]),
            "it fell into the water yesterday",
            "er ist gestern ins Wasser gefallen",
        ),
        (Clause(Person("it", "er", ""), lex.BELONG, NOW, recipient=MAN), "it belongs to the man", "er gehört dem Mann"),
        (Clause(Person("it", "er", ""), lex.LIE, PAST, complement=GARDEN), "it lay in the garden", "er lag im Garten"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_statements(clause: Clause, english: str, german: str) -> None:
    assert statement(clause) == Phrase(english, german)


@pytest.mark.parametrize(
    ("clause", "german"),
    [
        (Clause(ANNA, lex.NEED, NOW, IT, PRONOUN), "dass Anna ihn braucht"),
        (Clause(ANNA, lex.TAKE, NOW, IT, PRONOUN), "dass Anna ihn mitnimmt"),
        (Clause(ANNA, lex.TAKE, PAST, IT, PRONOUN), "dass Anna ihn mitgenommen hat"),
        (Clause(ANNA, lex.BUY, FUTURE, IT, PRONOUN), "dass Anna ihn kaufen wird"),
        (Clause(ANNA, lex.BUY, Setting(Tense.MODAL, Modal.MUST), IT, PRONOUN), "dass Anna ihn kaufen muss"),
        (Clause(Person("it", "er", ""), lex.LOOK, NOW, complement=Phrase("old", "alt")), "dass er alt aussieht"),
        (Clause(CHILDREN, lex.SLEEP, PAST), "dass die Kinder geschlafen haben"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_subordinate_clauses_end_with_the_verb(clause: Clause, german: str) -> None:
    made = subordinate(clause, Phrase("that", "dass"))
    assert made.de == german
    assert made.en == "that " + statement(clause).en


@pytest.mark.parametrize(
    ("clause", "word", "english", "german"),
    [
        (Clause(ANNA, lex.NEED, NOW, IT, PRONOUN), None, "does Anna need it", "braucht Anna ihn"),
        (Clause(CHILDREN, lex.NEED, NOW, IT, PRONOUN), None, "do the children need it", "brauchen die Kinder ihn"),
        (Clause(ANNA, lex.FIND, PAST, IT, PRONOUN), "where wo", "where did Anna find it", "wo hat Anna ihn gefunden"),
        (Clause(ANNA, lex.BUY, FUTURE, IT, PRONOUN), None, "will Anna buy it", "wird Anna ihn kaufen"),
        (Clause(Person("it", "er", ""), lex.BE, NOW), "where wo", "where is it", "wo ist er"),
        (
            Clause(ANNA, lex.SELL, Setting(Tense.MODAL, Modal.WANT), IT, PRONOUN),
            None,
            "does Anna want to sell it",
            "will Anna ihn verkaufen",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_questions(clause: Clause, word: str | None, english: str, german: str) -> None:
    asked = Phrase(*word.split()) if word else None
    assert question(clause, asked) == Phrase(english, german)
