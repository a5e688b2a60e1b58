"""Translation over HTTP: the API of LibreTranslate, streams, and what a translation read.

From the bottom to the top:

limits          limits of a request, the API key, errors for clients, and the worker threads
model_registry  the served models, and how a request selects one
schemas         requests and responses, for clients and for the OpenAPI document; their texts and files
middleware      what every request passes: limits, log, metrics, headers, errors
engine          decodes the requests of all clients in shared batches
read_maps       what `/inspect` shows
handlers        what each route does
application     the routes, the page at `/`, and the server process
"""
