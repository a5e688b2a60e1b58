"""Public parallel corpora: downloaded, checked and converted to JSON lines of documents.

catalogue    what there is: addresses, checksums, licences
fetch        one file over HTTP(S): resumed, verified
archives     tar files without surprises
marked_text  documents in the markups of the sources
convert      from the sources to train, valid and test
obtain       all of the above for one set
"""
