"""Translation over HTTP: the API of LibreTranslate, streams, and what a translation read.

From the bottom to the top:

limits          limits of a request, the API key, errors for clients
workers         threads for what takes time in proportion to a text
monitoring      log and metrics for operators
model_registry  the served models, and how a request selects one
schemas         requests and responses, for clients and for the OpenAPI document
payloads        texts and files of a request as documents; storage of translated files
engine          decodes the requests of all clients in shared batches
read_maps       what `/inspect` shows
middleware      what every request passes: limits, log, metrics, headers, errors
handlers        what each route does
application     the routes, the page at `/`, and the server process
"""
