"""The socket through which sessions report evaluations and are told whether to stop."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge

from labrl.errors import InputError
from labrl.processes import SOCKET_FOLDER_BYTES, find_place_for_sockets
from labrl.session.callbacks.search import channel


class Hub:
    """A context manager that listens on a socket, and answers each session in a separate thread."""

    def __init__(self, answer: Callable[[int], bool], elsewhere: bool = False) -> None:
        """answer: returns whether to stop the trial with the given number, one of whose sessions has
        evaluated; elsewhere: whether sessions run on other machines, which reach this one through the
        network.
        """
        self._answer, self._elsewhere = answer, elsewhere
        self._key = secrets.token_bytes(16)
        self._listener: Listener | None = None
        self._closed = False

    def __enter__(self) -> Hub:
        if self._elsewhere:
            self._listener = Listener(("", 0), backlog=64)
        elif find_place_for_sockets():
            self._listener = Listener(backlog=64)
        else:
            raise InputError(
                f"TMPDIR={os.environ.get('TMPDIR', '')}: a search needs a socket in a writable folder "
                f"whose path has at most {SOCKET_FOLDER_BYTES} bytes. Neither this folder nor /tmp is one. "
                "Set TMPDIR to another folder.",
                code="resources",
                key="TMPDIR",
            )
        self._thread = threading.Thread(
            target=self._accept, args=(self._listener,), name="search", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._listener is not None
        self._closed = True
        # The thread must not wait on a closed socket: the next hub of this process may get a socket with the
        # same number, whose callers it would take.
        with contextlib.suppress(OSError):
            Client(self._listener.address).close()
            self._thread.join()
        self._listener.close()

    def channel(self, trial: int) -> str:
        """Return the address for the sessions of a trial, which an environment variable holds."""
        assert self._listener is not None, "the hub must be entered first"
        address = self._listener.address
        place = f"{_own_address()}:{address[1]}" if isinstance(address, tuple) else os.fsdecode(address)
        return channel(place, self._key, trial)

    def _accept(self, listener: Listener) -> None:
        while not self._closed:
            with contextlib.suppress(OSError):
                session = listener.accept()
                threading.Thread(target=self._serve, args=(session,), name="session", daemon=True).start()

    def _serve(self, session: Connection) -> None:
        """Check the key of a session and answer it, whatever others do that call meanwhile."""
        # Closes the connection in any case, so that the session does not wait for an answer.
        with session, contextlib.suppress(OSError, EOFError, AuthenticationError):
            deliver_challenge(session, self._key)
            answer_challenge(session, self._key)
            trial = session.recv()
            while True:
                session.recv()  # the frame; the run folder contains the evaluation
                session.send(self._answer(trial))


def _own_address() -> str:
    """Return the address of this machine in its network, that of the interface to other networks."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out, contextlib.suppress(OSError):
        out.connect(("192.0.2.1", 9))  # a datagram socket sends nothing when it connects
        address: str = out.getsockname()[0]
        return address
    return socket.gethostname()
