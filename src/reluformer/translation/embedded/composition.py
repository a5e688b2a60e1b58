"""Clauses put together into sentences."""

from __future__ import annotations

from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.clause import Clause, Setting, statement, subordinate
from reluformer.translation.embedded.scene import Scene
from reluformer.translation.embedded.words import Phrase, Tense

_THAT, _BECAUSE = Phrase("that", "dass"), Phrase("because", "weil")
_REPORTING_VERBS = (lex.SAY, lex.KNOW)
_NOW = Setting(Tense.NOW)


def sentence(phrase: Phrase, mark: str = ".") -> Phrase:
    """The phrase with a capital letter and its final mark."""
    return Phrase(phrase.en[0].upper() + phrase.en[1:] + mark, phrase.de[0].upper() + phrase.de[1:] + mark)


def reported(scene: Scene, clause: Clause) -> Phrase:
    """'Anna knows that ...': what someone else says or knows, or hopes of the future."""
    verb = lex.HOPE if clause.setting.tense is Tense.FUTURE else scene.draws.pick(_REPORTING_VERBS)
    main = statement(Clause(scene.actor(*clause.people), verb, _NOW))
    return _with_subordinate(main, subordinate(clause, _THAT))


def felt(scene: Scene, clause: Clause) -> Phrase:
    """'Anna is happy because ...': the reason of someone else's feeling."""
    feeling = scene.draws.pick(lex.FEELINGS)
    main = statement(Clause(scene.actor(*clause.people), lex.BE, _NOW, complement=feeling))
    return _with_subordinate(main, subordinate(clause, _BECAUSE))


def _with_subordinate(main: Phrase, inner: Phrase) -> Phrase:
    return Phrase(f"{main.en} {inner.en}", f"{main.de}, {inner.de}")
