"""Public parallel corpora are downloaded, checked and converted to JSON lines of documents.

convert     from the files of a set to the documents of train, valid and test
catalogue   what there is: addresses, checksums, licences; and `obtain`, which does all of it for one set
"""
