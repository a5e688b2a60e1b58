"""From a parallel corpus of documents to batches of token ids.

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
"""
