"""The socket over which sessions report their evaluations and learn whether their trial is stopped."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener

from labrl.errors import InputError
from labrl.processes import SOCKET_FOLDER_BYTES, find_place_for_sockets
from labrl.session.callbacks.search import channel


class Hub:
    """Listens on this machine while entered; answers each session from a thread of its own."""

    def __init__(self, answer: Callable[[int], bool]) -> None:
        """answer: from the number of a trial, one of whose sessions has evaluated, to whether it stops."""
        self._answer = answer
        self._key = secrets.token_bytes(16)
        self._listener: Listener | None = None
        self._closed = False

    def __enter__(self) -> Hub:
        if not find_place_for_sockets():
            raise InputError(
                f"TMPDIR={os.environ.get('TMPDIR', '')}: a search makes a socket, for which it needs a "
                f"writable folder whose path has at most {SOCKET_FOLDER_BYTES} bytes. Neither this folder "
                "nor /tmp is one. Set TMPDIR to another folder.",
                code="resources",
                key="TMPDIR",
            )
        self._listener = Listener(authkey=self._key, backlog=64)
        threading.Thread(target=self._accept, args=(self._listener,), name="search", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._listener is not None
        self._closed = True
        self._listener.close()

    def channel(self, trial: int) -> str:
        """What the sessions of a trial need to know, for their environment."""
        assert self._listener is not None, "a channel leads to a hub that listens"
        return channel(os.fsdecode(self._listener.address), self._key, trial)

    def _accept(self, listener: Listener) -> None:
        while True:
            try:
                session = listener.accept()
            except Exception:  # a stranger without the key, or a session that was killed while it called
                if self._closed:
                    return
                continue
            threading.Thread(target=self._serve, args=(session,), name="session", daemon=True).start()

    def _serve(self, session: Connection) -> None:
        # Whatever ends this thread, the session must not wait for an answer that nobody gives.
        with session, contextlib.suppress(OSError, EOFError):
            trial = session.recv()
            while True:
                session.recv()  # the frame; what was reached there lies in the run folder
                session.send(self._answer(trial))
