"""Translated files that wait to be fetched: in memory, for a while, under names that nobody can guess."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from reluformer.integrations.server.limits import Limits
from reluformer.integrations.server.refusals import Refusal


@dataclass(frozen=True)
class KeptFile:
    """A translated file."""

    name: str
    content: bytes
    until: float


class KeptFiles:
    """So many of them, the newest."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._files: OrderedDict[str, KeptFile] = OrderedDict()

    def keep(self, name: str, content: bytes) -> str:
        """The secret under which the file can be fetched."""
        self._forget()
        while len(self._files) >= self._limits.kept_files:
            self._files.popitem(last=False)
        secret = secrets.token_urlsafe(24)
        self._files[secret] = KeptFile(name, content, self._clock() + self._limits.kept_seconds)
        return secret

    def fetch(self, secret: str) -> KeptFile:
        """The file, as often as one likes until it is forgotten."""
        self._forget()
        if secret not in self._files:
            raise Refusal(404, "no_such_file", "there is no such file (any more)", "translate it again")
        return self._files[secret]

    def _forget(self) -> None:
        now = self._clock()
        for secret in [secret for secret, file in self._files.items() if file.until <= now]:
            del self._files[secret]
