"""How good translations are: BLEU, document BLEU and chrF, each with its recipe.

    scores = score(hypotheses, references)      # documents: lists of lists of sentences
    print(scores)                               # every figure with its sacreBLEU signature
    compare(ours, theirs, references, metric="d_bleu").p_value

All figures come from sacreBLEU, cased, with tokenizer 13a, on detokenized text:

    bleu      corpus BLEU, every sentence a line
    d_bleu    corpus BLEU, every document a line: its sentences joined by a space
    chrf      corpus chrF2, every sentence a line

A flat file of sentences is a list of one-sentence documents.
"""

from reluformer.translation.scoring.figures import Bucket, Score, Scores, score
from reluformer.translation.scoring.hypotheses import read_hypotheses, read_references
from reluformer.translation.scoring.metrics import METRICS, Documents, MetricName
from reluformer.translation.scoring.significance import Comparison, Estimate, compare

__all__ = [
    "METRICS",
    "Bucket",
    "Comparison",
    "Documents",
    "Estimate",
    "MetricName",
    "Score",
    "Scores",
    "compare",
    "read_hypotheses",
    "read_references",
    "score",
]
