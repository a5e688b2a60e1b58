"""Translation of documents: corpora, decoding, scores, and the demo.

document    what every reader yields
readers     aligned text, TSV, JSON lines: lazily, with file and line in every error; `exchange` adds TMX, XLIFF, PO
skipped     what was left out of a corpus, and why
tokenizer   one joint vocabulary for both languages
segments    documents cut at sentence borders to at most N tokens
store       segments in a memory-mapped Arrow file
prepare     all of the above, once; `prepared` opens the result
batches     which segments make up which step, as a pure function of (seed, step)
embedded    a generated corpus of documents, and the scorer of its discourse
downloads   public sets, fetched and converted
formats     documents in and out of translation with their structure; `splitters` finds sentences
reads, stepper        the decoder, one position at a time, for many beams of a source
candidates, outline   the best next tokens, and those that a target's outline forbids
search                beam search
forced                scores of translations that are given
documents             documents of any length
runs                  what makes a folder a run
translator            text in, text out
words                 the words of a window, and the tokens of each
inspection            which source words each output word read, and the slots that fired
scoring               BLEU, d-BLEU and chrF with their recipes
demo                  two systems side by side on the embedded corpus
"""
