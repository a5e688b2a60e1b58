"""Public parallel corpora are downloaded, checked and converted to JSON lines of documents.

catalogue   what there is: addresses, checksums, licences
fetch       one file over HTTP(S), resumed and verified
convert     from the files of a set to the documents of train, valid and test
obtain      all of the above for one set
"""
