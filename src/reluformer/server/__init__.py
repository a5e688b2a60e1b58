"""Translation over HTTP: the LibreTranslate API, streams, and what a translation read.

served       the models behind the server, and which of them a request means
limits       what a request may ask for
refusals     answers that say no: what is wrong, and what to do
jobs         a request's documents as one piece of work
engine       one thread that owns the models and decodes the work of all clients together
works        texts and files as documents, and their translations put back
inspections  source words that each word of a translation read, slots that fired
bodies       what clients send, as JSON or as a form
shapes       what requests and answers look like, for clients and for the OpenAPI document
gate         what every request passes: limits, log, metrics, headers, errors
metrics      figures for Prometheus
app          the routes
pages        the page at /
process      the server as a process: signals, and a shutdown that finishes what it took
"""
