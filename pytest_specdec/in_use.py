"""While requests run on a server: it is ended once a part of it has died, so that no request waits for it in vain.

A launcher whose detokenizer died, or an old one whose scheduler did, keeps its connections open and answers nothing;
a request would be waited for until its own deadline, minutes later. Only the log is read, once a second: ``/health``
makes the server generate, which would be measured.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Final

from pytest_specdec.clock import Clock
from pytest_specdec.errors import HostError, ServerRequestError
from pytest_specdec.hosts import Process
from pytest_specdec.logwatch import LogWatch, last_lines

_TICK_S: Final = 1.0


class Sentinel:
    """Watches a log in a thread of its own; ``ended`` is whether it had to end the server."""

    def __init__(self, process: Process, watch: LogWatch, clock: Clock, *, patience_s: float) -> None:
        self.ended = False
        self._process = process
        self._watch = watch
        self._clock = clock
        self._patience_s = patience_s
        self._over = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the block is left; nothing else may read the log meanwhile.

        The error of a request that is raised in it gets the end of the log: the server's side of it.
        """
        self._over.clear()
        thread = threading.Thread(target=self._watch_log, name="pytest-specdec-sentinel", daemon=True)
        thread.start()
        try:
            yield
        except ServerRequestError as error:
            self._join(thread)
            raise ServerRequestError("\n".join([str(error), *self._told()])) from None
        finally:
            self._join(thread)

    def _join(self, thread: threading.Thread) -> None:
        self._over.set()
        thread.join()

    def _told(self) -> list[str]:
        with contextlib.suppress(HostError):  # the error of the request says what is the matter
            self._watch.poll()
        return [f"  log:       {self._watch.path}", *(f"  | {line}" for line in last_lines(self._watch.text))]

    def _watch_log(self) -> None:
        dying_since: float | None = None
        while not self._over.wait(_TICK_S):
            try:
                self._watch.poll()
                if self._watch.dying is None:
                    continue
                now = self._clock.monotonic()
                dying_since = now if dying_since is None else dying_since
                if now - dying_since >= self._patience_s and self._process.poll() is None:
                    self.ended = True
                    self._process.signal(signal.SIGKILL)
                    return
            except HostError:
                return  # a host that is away is noticed by the requests
