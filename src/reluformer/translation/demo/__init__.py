"""`reluformer demo`: the main job on the embedded corpus, from nothing to a report.

systems   two models of the same size, trained side by side and scored
report    what came out, as one HTML page
"""
