"""The marked sentences that later ones depend on: who reads the document, and what it is about."""

from __future__ import annotations

from reluformer.translation.embedded import lexicon as lex
from reluformer.translation.embedded.scene import Scene
from reluformer.translation.embedded.words import Case, Noun, Phrase, Variety, noun_phrase

_AUDIENCE_PATTERNS = (
    Phrase("This story is for readers in {}.", "Diese Geschichte ist für Leser in {}."),
    Phrase("We write for readers in {}.", "Wir schreiben für Leser in {}."),
    Phrase("Our readers live in {}.", "Unsere Leser leben in {}."),
)
_FIRST_TOPIC_PATTERNS = (
    (Phrase("This is the story of {}.", "Dies ist die Geschichte von {}."), Case.DATIVE),
    (Phrase("Our story begins with {}.", "Unsere Geschichte beginnt mit {}."), Case.DATIVE),
    (Phrase("This chapter is about {}.", "Dieses Kapitel handelt von {}."), Case.DATIVE),
)
_NEXT_TOPIC_PATTERNS = (
    (Phrase("The next chapter is about {}.", "Das nächste Kapitel handelt von {}."), Case.DATIVE),
    (Phrase("Now the story turns to {}.", "Nun wendet sich die Geschichte {} zu."), Case.DATIVE),
    (Phrase("Now we talk about {}.", "Jetzt sprechen wir über {}."), Case.ACCUSATIVE),
)


def audience(scene: Scene, variety: Variety) -> Phrase:
    """The sentence that settles the variety for the whole document."""
    country = lex.AUDIENCES[variety]
    pattern = scene.draws.pick(_AUDIENCE_PATTERNS)
    return Phrase(pattern.en.format(country.en), pattern.de.format(country.de))


def introduction(scene: Scene, topic: Noun, *, first: bool) -> Phrase:
    """The sentence that makes `topic` what 'it' refers to from here on."""
    pattern, case = scene.draws.pick(_FIRST_TOPIC_PATTERNS if first else _NEXT_TOPIC_PATTERNS)
    adjective = None
    if scene.draws.chance(0.5):
        adjective = scene.draws.combine("adjective", topic.en, lex.THING_ADJECTIVES)
    phrase = noun_phrase("a", topic, case, adjective)
    return Phrase(pattern.en.format(phrase.en), pattern.de.format(phrase.de))
