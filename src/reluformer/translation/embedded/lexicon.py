"""The words of the embedded corpus.

Topics are the things that 'it' may refer to; they are named nowhere but where they are
introduced, and any predicate suits any of them, so a sentence with 'it' does not tell
the gender. Terms are words that Germany and Austria call differently.
"""

from __future__ import annotations

from reluformer.translation.embedded.grammar import (
    Adjective,
    Gender,
    Noun,
    Person,
    Phrase,
    Place,
    Pool,
    Tense,
    Term,
    Time,
    Variety,
    Verb,
)

NOW, HABIT, PAST, FUTURE, MODAL = Tense.NOW, Tense.HABIT, Tense.PAST, Tense.FUTURE, Tense.MODAL
_EVENT = (PAST, FUTURE, MODAL)
_ANY = (HABIT, PAST, FUTURE, MODAL)


def _nouns(gender: str, pairs: str) -> tuple[Noun, ...]:
    """Returns nouns of one gender from 'english German, english German'."""
    return tuple(Noun(en, de, Gender(gender)) for en, de in (pair.split() for pair in pairs.split(",")))


def _term(en: str, germany: str, austria: str) -> Term:
    """Returns a term from two German nouns, each as 'gender Word' or 'gender Word Oblique'."""

    def noun(text: str) -> Noun:
        gender, de, *oblique = text.split()
        return Noun(en, de, Gender(gender), *oblique)

    return Term(en, noun(germany), noun(austria))


TOPICS: Pool[Noun] = Pool(
    _nouns("m", "key Schlüssel,spoon Löffel,ball Ball,suitcase Koffer,hat Hut,basket Korb")
    + _nouns("m", "mirror Spiegel,hammer Hammer,coat Mantel,plate Teller,kettle Kessel,ring Ring")
    + _nouns("f", "lamp Lampe,bag Tasche,clock Uhr,bottle Flasche,fork Gabel,guitar Gitarre")
    + _nouns("f", "candle Kerze,doll Puppe,brush Bürste,vase Vase,camera Kamera,blanket Decke")
    + _nouns("n", "book Buch,picture Bild,knife Messer,shirt Hemd,radio Radio,rope Seil")
    + _nouns("n", "tent Zelt,telescope Fernrohr,towel Handtuch,dress Kleid,glass Glas,toy Spielzeug")
)

FOOD: Pool[Noun] = Pool(
    _nouns("m", "apple Apfel,cake Kuchen,fish Fisch")
    + _nouns("f", "pear Birne,orange Orange,carrot Karotte")
    + _nouns("n", "egg Ei")
)
FURNITURE: Pool[Noun] = Pool(
    _nouns("m", "table Tisch")
    + _nouns("f", "door Tür")
    + _nouns("n", "bed Bett,window Fenster,bicycle Fahrrad,car Auto")
)
WRITING: Pool[Noun] = Pool(_nouns("m", "letter Brief") + _nouns("f", "message Nachricht") + _nouns("n", "poem Gedicht"))
ANIMALS: Pool[Noun] = Pool(
    _nouns("m", "dog Hund,bird Vogel") + _nouns("f", "cat Katze,cow Kuh") + _nouns("n", "horse Pferd,sheep Schaf")
)

FOOD_TERMS: Pool[Term] = Pool(
    (
        _term("potato", "f Kartoffel", "m Erdapfel"),
        _term("tomato", "f Tomate", "m Paradeiser"),
        _term("apricot", "f Aprikose", "f Marille"),
        _term("roll", "n Brötchen", "f Semmel"),
        _term("pancake", "m Pfannkuchen", "f Palatschinke"),
        _term("cauliflower", "m Blumenkohl", "m Karfiol"),
    )
)
FURNITURE_TERMS: Pool[Term] = Pool(
    (
        _term("chair", "m Stuhl", "m Sessel"),
        _term("cupboard", "m Schrank", "m Kasten"),
        _term("dustbin", "m Mülleimer", "m Mistkübel"),
    )
)
BOY = _term("boy", "m Junge Jungen", "m Bub Buben")
JANUARY = _term("January", "m Januar", "m Jänner")
TERMS = (*FOOD_TERMS.items, *FURNITURE_TERMS.items, BOY, JANUARY)

AUDIENCES = {Variety.GERMANY: Phrase("Germany", "Deutschland"), Variety.AUSTRIA: Phrase("Austria", "Österreich")}

OLD, NEW = Adjective("old", "alt"), Adjective("new", "neu")
SMALL, BIG = Adjective("small", "klein"), Adjective("big", "groß")
BEAUTIFUL, DIRTY = Adjective("beautiful", "schön"), Adjective("dirty", "schmutzig")
RED, GREEN, WHITE = Adjective("red", "rot"), Adjective("green", "grün"), Adjective("white", "weiß")
HEAVY, BROKEN = Adjective("heavy", "schwer"), Adjective("broken", "kaputt")
EXPENSIVE = Adjective("expensive", "teuer", "teur")
THING_ADJECTIVES: Pool[Adjective] = Pool(
    (OLD, NEW, SMALL, BIG, BEAUTIFUL, DIRTY, RED, GREEN, WHITE, HEAVY, BROKEN, EXPENSIVE)
)
FOOD_ADJECTIVES: Pool[Adjective] = Pool((OLD, SMALL, BIG, BEAUTIFUL, RED, GREEN, EXPENSIVE))
WRITING_ADJECTIVES: Pool[Adjective] = Pool((OLD, NEW, SMALL, BEAUTIFUL))
ANIMAL_ADJECTIVES: Pool[Adjective] = Pool((OLD, SMALL, BIG, BEAUTIFUL, DIRTY, WHITE))
PLACE_ADJECTIVES: Pool[Adjective] = Pool((OLD, NEW, SMALL, BIG, BEAUTIFUL, DIRTY))
MOODS = (Phrase("tired", "müde"), Phrase("happy", "froh"), Phrase("sad", "traurig"))
FEELINGS = MOODS[1:]

NAMES = tuple(Person(name, name, name) for name in ("Anna", "Peter", "Maria", "Paul", "Clara", "Jonas"))
ACQUAINTANCES = (
    Person("my brother", "mein Bruder", "meinem Bruder"),
    Person("my sister", "meine Schwester", "meiner Schwester"),
    Person("my grandmother", "meine Großmutter", "meiner Großmutter"),
    Person("the man", "der Mann", "dem Mann"),
    Person("the woman", "die Frau", "der Frau"),
    Person("the girl", "das Mädchen", "dem Mädchen"),
    Person("the children", "die Kinder", "den Kindern", plural=True),
    Person("my parents", "meine Eltern", "meinen Eltern", plural=True),
)
WE = Person("we", "wir", "uns", plural=True)
WHO = Person("who", "wer", "wem")
RECIPIENTS = NAMES + ACQUAINTANCES
PEOPLE = (*RECIPIENTS, WE)


def _place(preposition: str, de_preposition: str, pair: str, gender: str) -> Place:
    noun = _nouns(gender, pair)[0]
    return Place(noun.en, preposition, de_preposition, noun)


PLACES: Pool[Place] = Pool(
    (
        _place("in", "in", "kitchen Küche", "f"),
        _place("in", "in", "garden Garten", "m"),
        _place("in", "in", "cellar Keller", "m"),
        _place("in", "in", "yard Hof", "m"),
        _place("in", "in", "room Zimmer", "n"),
        _place("in", "in", "school Schule", "f"),
        _place("at", "auf", "market Markt", "m"),
        _place("at", "an", "station Bahnhof", "m"),
        _place("on", "auf", "balcony Balkon", "m"),
        _place("behind", "hinter", "house Haus", "n"),
        _place("under", "unter", "bridge Brücke", "f"),
    )
)

TODAY, NOW_ADVERB, OFTEN = Time("today", "heute"), Time("now", "jetzt"), Time("often", "oft", mid=True)
HABIT_TIMES = (
    Time("every day", "jeden Tag"),
    Time("every morning", "jeden Morgen"),
    Time("on Sundays", "sonntags"),
    Time("in winter", "im Winter"),
    OFTEN,
    Time("sometimes", "manchmal", mid=True),
    Time("never", "nie", mid=True),
)
STATE_TIMES = (TODAY, NOW_ADVERB, OFTEN)
PAST_TIMES = (
    Time("yesterday", "gestern"),
    Time("last week", "letzte Woche"),
    Time("on Monday", "am Montag"),
    Time("this morning", "heute Morgen"),
)
FUTURE_TIMES = (Time("tomorrow", "morgen"), Time("next week", "nächste Woche"), Time("soon", "bald"))

BE = Verb("be", "is", "was", "sein", "ist", "gewesen", (NOW, PAST), with_sein=True, de_past="war")
HAVE = Verb("have", "has", "had", "haben", "hat", "gehabt", (NOW,))
BUY = Verb("buy", "buys", "bought", "kaufen", "kauft", "gekauft", _EVENT)
SELL = Verb("sell", "sells", "sold", "verkaufen", "verkauft", "verkauft", _EVENT)
FIND = Verb("find", "finds", "found", "finden", "findet", "gefunden", (PAST, MODAL))
LOSE = Verb("lose", "loses", "lost", "verlieren", "verliert", "verloren", (PAST,))
HIDE = Verb("hide", "hides", "hid", "verstecken", "versteckt", "versteckt", _EVENT)
CLEAN = Verb("clean", "cleans", "cleaned", "putzen", "putzt", "geputzt", _ANY)
NEED = Verb("need", "needs", "needed", "brauchen", "braucht", "gebraucht", (NOW, PAST))
SEE = Verb("see", "sees", "saw", "sehen", "sieht", "gesehen", (HABIT, PAST))
LOVE = Verb("love", "loves", "loved", "lieben", "liebt", "geliebt", (NOW,))
REPAIR = Verb("repair", "repairs", "repaired", "reparieren", "repariert", "repariert", _EVENT)
SEEK = Verb("look", "looks", "looked", "suchen", "sucht", "gesucht", (HABIT, PAST, MODAL), before="for")
TAKE = Verb("take", "takes", "took", "nehmen", "nimmt", "mitgenommen", _ANY, after="along", particle="mit")
SHOW = Verb("show", "shows", "showed", "zeigen", "zeigt", "gezeigt", _ANY)
GIVE = Verb("give", "gives", "gave", "geben", "gibt", "gegeben", _EVENT)
EAT = Verb("eat", "eats", "ate", "essen", "isst", "gegessen", _ANY)
FEED = Verb("feed", "feeds", "fed", "füttern", "füttert", "gefüttert", _ANY)
READ = Verb("read", "reads", "read", "lesen", "liest", "gelesen", _EVENT)
WRITE = Verb("write", "writes", "wrote", "schreiben", "schreibt", "geschrieben", _EVENT)
SLEEP = Verb("sleep", "sleeps", "slept", "schlafen", "schläft", "geschlafen", _ANY)
WORK = Verb("work", "works", "worked", "arbeiten", "arbeitet", "gearbeitet", _ANY)
WAIT = Verb("wait", "waits", "waited", "warten", "wartet", "gewartet", _ANY)
SING = Verb("sing", "sings", "sang", "singen", "singt", "gesungen", _ANY)
DANCE = Verb("dance", "dances", "danced", "tanzen", "tanzt", "getanzt", _ANY)
PLAY = Verb("play", "plays", "played", "spielen", "spielt", "gespielt", _ANY)
SAY = Verb("say", "says", "said", "sagen", "sagt", "gesagt", (NOW,))
KNOW = Verb("know", "knows", "knew", "wissen", "weiß", "gewusst", (NOW,))
HOPE = Verb("hope", "hopes", "hoped", "hoffen", "hofft", "gehofft", (NOW,))
LOOK = Verb("look", "looks", "looked", "sehen", "sieht", "ausgesehen", (NOW,), particle="aus")
LIE = Verb("lie", "lies", "lay", "liegen", "liegt", "gelegen", (HABIT, PAST), de_past="lag")
BELONG = Verb("belong", "belongs", "belonged", "gehören", "gehört", "gehört", (NOW, PAST), de_past="gehörte")
FALL = Verb("fall", "falls", "fell", "fallen", "fällt", "gefallen", (PAST,), with_sein=True)
VANISH = Verb(
    "disappear", "disappears", "disappeared", "verschwinden", "verschwindet", "verschwunden", (PAST,), with_sein=True
)
COST = Verb("cost", "costs", "cost", "kosten", "kostet", "gekostet", (NOW, PAST))

FALLS = (
    Phrase("into the water", "ins Wasser"),
    Phrase("from the roof", "vom Dach"),
    Phrase("to the floor", "auf den Boden"),
)
PRICES = (Phrase("five euros", "fünf Euro"), Phrase("a lot", "viel"))
