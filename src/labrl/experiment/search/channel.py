"""The socket over which sessions report their evaluations and learn whether their trial is stopped."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener

from labrl.errors import InputError
from labrl.processes import SOCKET_FOLDER_BYTES, find_place_for_sockets
from labrl.session.callbacks.search import channel


class Hub:
    """Listens while entered; answers each session from a thread of its own."""

    def __init__(self, answer: Callable[[int], bool], elsewhere: bool = False) -> None:
        """answer: from the number of a trial, one of whose sessions has evaluated, to whether it stops.

        elsewhere: whether sessions run on other machines, which reach this one by its name in the network.
        """
        self._answer, self._elsewhere = answer, elsewhere
        self._key = secrets.token_bytes(16)
        self._listener: Listener | None = None
        self._closed = False

    def __enter__(self) -> Hub:
        if self._elsewhere:
            self._listener = Listener(("", 0), authkey=self._key, backlog=64)
        elif find_place_for_sockets():
            self._listener = Listener(authkey=self._key, backlog=64)
        else:
            raise InputError(
                f"TMPDIR={os.environ.get('TMPDIR', '')}: a search makes a socket, for which it needs a "
                f"writable folder whose path has at most {SOCKET_FOLDER_BYTES} bytes. Neither this folder "
                "nor /tmp is one. Set TMPDIR to another folder.",
                code="resources",
                key="TMPDIR",
            )
        threading.Thread(target=self._accept, args=(self._listener,), name="search", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._listener is not None
        self._closed = True
        self._listener.close()

    def channel(self, trial: int) -> str:
        """Return the address for the environment of a trial's sessions."""
        assert self._listener is not None, "a channel leads to a hub that listens"
        address = self._listener.address
        place = f"{_own_address()}:{address[1]}" if isinstance(address, tuple) else os.fsdecode(address)
        return channel(place, self._key, trial)

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


def _own_address() -> str:
    """Return the address of this machine in its network: of the interface that leads out of it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out, contextlib.suppress(OSError):
        out.connect(("192.0.2.1", 9))  # a datagram socket sends nothing when it connects
        address: str = out.getsockname()[0]
        return address
    return socket.gethostname()
