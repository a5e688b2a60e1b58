"""Translation of documents: corpora, decoding, scores, and the demo.

document    documents, how sentence pairs become documents, and what was skipped
splitters   sentence splitters
formats     one codec a text format, for documents to translate and corpora to train on
embedded    a generated corpus of documents, and the scorer of its discourse
downloads   public sets, fetched and converted
tokenizer   one joint vocabulary for both languages
segments    documents cut at sentence borders to at most N tokens, and their Arrow store
corpus      reads a corpus, prepares it once, and opens the result
batches     which segments make up which step, as a pure function of (seed, step)
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
