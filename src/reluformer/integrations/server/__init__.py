"""Translation over HTTP: the LibreTranslate API, streams, and what a translation read.

served        the models behind the server, and which of them a request means
limits        what a request may ask for
refusals      answers that say no: what is wrong, and what to do
jobs, engine  the work of all clients, decoded together by one thread that owns the models
texts         texts and files as documents, and their translations put back
inspections   source words that each word of a translation read, slots that fired
shapes        what requests and answers look like, for clients and for the OpenAPI document
bodies        what clients send, as JSON or as a form
api, streams  what each route does; app says under which paths
gate          what every request passes: limits, log, metrics, headers, errors
logs, metrics for operators
pages         the page at /
kept_files    translated files that wait to be fetched
process       the server as a process: signals, and a shutdown that finishes what it took
"""
