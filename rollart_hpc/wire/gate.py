"""The door of a hub: a listening socket that takes no new connection while descriptors are short. Speaks no ZeroMQ.

libzmq accepts whatever comes, and when it has no descriptor left it tries again without a pause, which costs a core. It
can't be told to stop without losing the connections it has. So the gate holds the socket itself, and a filter in the
kernel drops the packets that would open a connection; their senders try again after a second or more. What waits in
the socket's queue is still accepted: the reserve has room for all of it, and for the files of this process.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time
from contextlib import suppress

from rollart_hpc import descriptors

LONGEST_QUEUE = 1024  # connections that wait to be accepted: a whole cluster connects at once
OWN_FILES = 64  # descriptors that this process needs besides connections
MARGIN = 16
LOOK_S = 0.5  # interval of checking whether there is room again
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0, keep no byte


class Gate:
    def __init__(self, host: str, port: int) -> None:
        """Raises OSError if nobody can listen there."""
        hard = descriptors.hard_limit()
        queue = max(16, min(LONGEST_QUEUE, hard // 8))
        self._most = hard - min(hard // 4, queue + OWN_FILES)  # descriptors in use before the reserve is touched
        self._socket = socket.create_server((host, port), backlog=queue)
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])
        self.is_shut = False
        self._lock = threading.Lock()
        self._look_s = 0.0
        descriptors.set_soft_limit(self._most)
        descriptors.add_relief(self.shut)

    def listener(self) -> int:
        """A descriptor of the socket, for whoever accepts: its own, to be closed by it."""
        return os.dup(self._socket.fileno())

    def shut(self) -> None:
        """Let nobody in and use the reserve, until there is room again. Any thread may call it."""
        with self._lock:
            if not self.is_shut:
                self.is_shut = True
                self._look_s = time.monotonic() + LOOK_S
                program = struct.pack("HL", 1, ctypes.addressof(_DROP_ALL))
                with suppress(OSError):  # a kernel without filters: the reserve still helps
                    self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
                descriptors.set_soft_limit(descriptors.hard_limit())

    def open_if_room(self) -> None:
        """Called often; looks rarely, and only while it is shut."""
        now = time.monotonic()
        if not self.is_shut or now < self._look_s:
            return
        self._look_s = now + LOOK_S
        with self._lock:
            if descriptors.num_open() <= self._most - MARGIN:
                descriptors.set_soft_limit(self._most)
                with suppress(OSError):
                    self._socket.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
                self.is_shut = False

    def close(self) -> None:
        with suppress(ValueError):
            descriptors.remove_relief(self.shut)
        self._socket.close()
