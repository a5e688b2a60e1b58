"""Translation of documents: corpora, decoding, scores, and the demo.

document    documents, how sentence pairs become documents, and what was skipped
splitters   sentence splitters
formats     one codec a text format, for documents to translate and corpora to train on
embedded    a generated corpus of documents, and the scorer of its discourse
downloads   public sets, fetched and converted
tokenizer   one joint vocabulary for both languages
segments    documents cut at sentence borders to at most N tokens, and their Arrow store
corpus      reads a corpus, prepares it once, and opens the result
corpus_summary      the figures of a corpus, and its checks for odd sentence pairs
batches     which segments make up which step, as a pure function of (seed, step)
stepper             what beam search needs of a decoder: one more position for every beam
torch_stepper       the decoder's step in torch, for any rule and device
search              what a search is: outlines that constrain targets, and hypotheses
native_decoder      searches in the compiled library, in float32 or int8, and the choice between the two
beam_search         beam search with any decoder
windows             translation of documents of any length, window by window
translator          Translator, load_run, and scores of given translations (forced decoding)
inspection          read maps: what each output word read, and the slots that fired
scoring             BLEU, document BLEU and chrF with their signatures
significance        paired bootstrap resampling of two systems
recipe, task        the recipe of a translation model, and how the trainer trains it
demo                two systems side by side on the embedded corpus, and their page
"""
