"""The embedded corpus generates English-German documents from a grammar of its own, without a download.

    from reluformer.translation.embedded import generate, score_discourse

    documents = list(generate(100, split="test", sentences=(2, 16)))
    scores = score_discourse(documents, [document.document.tgt for document in documents])

'it' refers to the topic that was last introduced, and German needs its gender; some words
are called differently in Germany and Austria, and the document says for whom it is written.

grammar     words with their German inflection, and clauses in both languages
lexicon     the words
scene       random draws, and the combinations that training never shows
sentences   openings, mentions of the topic, asides
generator   whole documents
discourse   annotations, and the scorer of translations
"""

from reluformer.translation.embedded.discourse import (
    Annotation,
    DiscourseScores,
    EmbeddedDocument,
    Tally,
    score_discourse,
)
from reluformer.translation.embedded.generator import document_at, document_from_id, generate
from reluformer.translation.embedded.scene import SPLITS
from reluformer.translation.recipe import Split

__all__ = [
    "SPLITS",
    "Annotation",
    "DiscourseScores",
    "EmbeddedDocument",
    "Split",
    "Tally",
    "document_at",
    "document_from_id",
    "generate",
    "score_discourse",
]
