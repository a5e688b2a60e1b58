"""The server as a process: an address, signals, and a shutdown that finishes what it took."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from reluformer.errors import ArgumentError
from reluformer.integrations.server.app import create_app
from reluformer.integrations.server.gate import Draining
from reluformer.integrations.server.limits import Limits
from reluformer.integrations.server.logs import write_log
from reluformer.integrations.server.served import ServedModels


class _Server(uvicorn.Server):
    """Tells the application as soon as a signal asks it to end; a second Ctrl-C does not wait any more.

    uvicorn itself raises the signal again at the end, which would make a good end look like a bad one.
    """

    def __init__(self, config: uvicorn.Config, draining: Draining) -> None:
        super().__init__(config)
        self._draining = draining

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = self._draining.now = True


def serve(
    models: ServedModels,
    *,
    host: str,
    port: int,
    limits: Limits,
    key: str | None = None,
    log_level: str = "info",
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until SIGTERM or SIGINT; `ready` gets the address once connections are taken.

    Port 0 takes a free one.
    """
    write_log(log_level)
    draining = Draining()
    app = create_app(models, limits, key, draining)
    bound = _bind(host, port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.request_seconds) + 1,
        lifespan="on",
    )
    shown = f"[{host}]" if ":" in host else host
    ready(f"http://{shown}:{bound.getsockname()[1]}/")
    server = _Server(config, draining)
    try:
        server.run(sockets=[bound])
    finally:
        bound.close()


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket: clients may connect from now on, and are answered as soon as the server runs."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except UnicodeError:  # an empty label, or one of more than 63 letters
        raise ArgumentError(f"--host {host}: is no name of a host; choose another one, e.g. 127.0.0.1") from None
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise ArgumentError(f"--host {host} --port {port}: {reason}; choose another one, 0 takes a free port") from None
