"""Environments inside the worker (`isolation: shared`), for trusted environments in pure Python.

Owns a pool of threads that grows with the number of turns in progress. A hanging thread can't be killed: its turn
times out and the thread stays behind. A crash ends the worker; use `isolation: process` to prevent that.
"""

from __future__ import annotations

import queue
import selectors
import threading
from collections import defaultdict, deque
from collections.abc import Mapping

from rollart_hpc.envs import talk
from rollart_hpc.envs.child import Player
from rollart_hpc.envs.handle import EnvHandle, Listener
from rollart_hpc.wire.wakeup import Wakeup


class Room:
    """One environment object; at most one thread uses it at a time."""

    def __init__(self, task: str, player: Player, jobs: Threads) -> None:
        self.task = task
        self.player = player
        self.left = False
        self._jobs = jobs

    def ask(self, request: talk.Request) -> None:
        self._jobs.submit(self, request)


class Threads:
    def __init__(self, selector: selectors.BaseSelector, listener: Listener, setups: Mapping[str, talk.Setup]) -> None:
        self._selector = selector
        self._listener = listener
        self._setups = setups
        self._idle: defaultdict[str, list[Room]] = defaultdict(list)
        self._jobs: queue.SimpleQueue[tuple[Room, talk.Request] | None] = queue.SimpleQueue()
        self._answers: deque[tuple[Room, talk.Answer]] = deque()
        self._lock = threading.Lock()
        self._num_free = 0  # idle threads minus queued jobs
        self._num_threads = 0
        self._wakeup = Wakeup()
        selector.register(self._wakeup.fd, selectors.EVENT_READ, self._collect)

    def take(self, task: str) -> EnvHandle:
        if self._idle[task]:
            return self._idle[task].pop()
        return Room(task, Player(self._setups[task]), self)

    def give_back(self, handle: EnvHandle) -> None:
        assert isinstance(handle, Room)
        self._idle[handle.task].append(handle)

    def remove(self, handle: EnvHandle) -> None:
        assert isinstance(handle, Room)
        handle.left = True

    def submit(self, room: Room, request: talk.Request) -> None:
        with self._lock:
            self._num_free -= 1
            if self._num_free < 0:
                self._num_free += 1
                self._num_threads += 1
                threading.Thread(target=self._work, name="environment", daemon=True).start()
        self._jobs.put((room, request))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            room, request = job
            answer = room.player.do(request)
            with self._lock:
                self._num_free += 1
            self._answers.append((room, answer))
            self._wakeup.set()

    def _collect(self) -> None:
        self._wakeup.clear()
        while self._answers:
            room, answer = self._answers.popleft()
            if not room.left:
                self._listener.answered(room, answer)

    def close(self) -> None:
        self._selector.unregister(self._wakeup.fd)
        for _ in range(self._num_threads):
            self._jobs.put(None)
        for room in (room for rooms in self._idle.values() for room in rooms):
            room.player.close()
