"""The embedded corpus: English-German documents from a grammar of our own, with no end and no download.

    from reluformer.translation.embedded import generate, score_discourse

    documents = list(generate(100, split="test", sentences=(2, 16)))
    scores = score_discourse(documents, [document.document.tgt for document in documents])

'it' refers to the topic that was last introduced, and German needs its gender; some words
are called differently in Germany and Austria, and the document says for whom it is written.
"""

from reluformer.translation.embedded.annotation import Annotation, EmbeddedDocument
from reluformer.translation.embedded.discourse import DiscourseScores, Tally, score_discourse
from reluformer.translation.embedded.generator import document_at, document_from_id, generate
from reluformer.translation.embedded.splits import SPLITS, Split

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
