"""Fork servers of multiprocessing that have already imported PyTorch."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from multiprocessing import util
from types import ModuleType


def keep_server() -> None:
    """Fork a process that becomes the fork server of this one when it needs one, and ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (pid := os.fork()) == 0:
        ours.close()
        try:
            request, files, *_ = socket.recv_fds(theirs, 1 << 20, 2)
            program, environment, blocked = json.loads(request)  # fails if the other process has ended
            os.environ.update(environment)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            with open("/proc/self/comm", "w") as name:
                name.write("forkserver")
            sys.modules["__main__"] = ModuleType("__main__")
            exec(re.sub(r"main\(\d+, \d+", f"main({files[0]}, {files[1]}", program))
        finally:
            os._exit(0)
    theirs.close()
    start_anew = util.spawnv_passfds

    def start(path: bytes, arguments: list[str], files: list[int]) -> int:
        if "multiprocessing.forkserver" not in arguments[-1]:
            return start_anew(path, arguments, files)
        util.spawnv_passfds = start_anew
        blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
        try:
            request = json.dumps([arguments[-1], dict(os.environ), blocked])
            socket.send_fds(ours, [request.encode()], files)
        except BrokenPipeError:  # a signal to the process group has ended the waiting process
            return start_anew(path, arguments, files)
        return pid

    util.spawnv_passfds = start
