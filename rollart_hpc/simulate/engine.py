"""An engine in virtual time: continuous batching, chunked prefill, KV with eviction. Owns its requests and its KV.

An iteration gives every decoding sequence one token, and may prefill a chunk of prompts beside. Nobody looks at single
iterations while all sequences only decode: the engine counts them on a clock of its own, `_token`, and knows at which
count each request ends. An event therefore costs O(log n) however many tokens lie between two events.

A trajectory whose turn has ended keeps its KV until room is needed; the least recently used goes first.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, auto
from math import sqrt

from rollart_hpc.estimate.roofline import Pace
from rollart_hpc.simulate.clock import Clock

_ROUNDING = 1e-6
_BLOCK = 64  # tokens of room that a prompt needs beside itself to be admitted
_LEAST_CHUNK = 64


class Phase(IntEnum):
    AWAY = auto()  # not at the engine yet
    WAITING = auto()
    PREFILLING = auto()
    DECODING = auto()
    OVER = auto()


@dataclass(slots=True, eq=False)
class Request:
    """One turn, or one half of a split turn."""

    id: int
    trajectory: str
    prompt: int  # tokens, with those of earlier turns
    answer: int
    reuse: float = 1.0  # share of the cached prefix that this turn can use
    prefill_only: bool = False
    asked_s: float = 0.0
    phase: Phase = Phase.AWAY
    left: float = 0.0  # tokens to prefill
    prefilled: float = 0.0  # tokens, with those that were computed again
    made: float = 0.0  # tokens sampled before the current stretch of decoding
    since: float = 0.0  # token count of the engine when that stretch began
    first_version: int = -1

    @property
    def held(self) -> float:
        """Tokens of KV when it does not decode."""
        return self.prompt + self.made


@dataclass(slots=True)
class Spent:
    """Seconds and tokens of an engine since it started."""

    prefill_s: float = 0.0
    decode_s: float = 0.0
    install_s: float = 0.0
    prefill_tokens: float = 0.0
    decode_tokens: float = 0.0
    cached_tokens: float = 0.0
    rebuilt_tokens: float = 0.0
    preempted: int = 0
    evicted: int = 0


class SimEngine:
    def __init__(
        self,
        clock: Clock,
        pace: Pace,
        *,
        kv_tokens: int,
        max_running: int,
        max_prefill: int,
        on_done: Callable[[Request], None],
        keeps_prefix: bool = True,
        on_span: Callable[[str, float, float, float, float], None] | None = None,
    ) -> None:
        """`on_span` gets what was done, from when to when, in how many iterations, and for how many tokens."""
        self.spent = Spent()
        self.version = -1  # of the weights
        self._clock, self._pace, self._on_done, self._on_span = clock, pace, on_done, on_span
        self._capacity, self._max_running, self._max_prefill = float(kv_tokens), max_running, max_prefill
        self._keeps_prefix = keeps_prefix
        self._waiting: deque[Request] = deque()
        self._prefilling: deque[Request] = deque()
        self._ends: list[tuple[float, int, Request]] = []  # by the token count at which they end
        self._num_decoding = 0
        self._kv = 0.0  # tokens held by admitted requests
        self._cached: OrderedDict[str, float] = OrderedDict()  # trajectories between turns, least recent first
        self._cached_kv = 0.0
        self._token = 0.0
        self._since_s = 0.0  # of the current stretch
        self._plan = 0  # numbers the plans: what an older one announced is void
        self._chunk = 0.0  # prompt tokens of the iteration that runs; 0 = none does
        self._stretch = 0.0  # planned iterations of pure decoding; 0 = none
        self._is_suspended = False
        self._serial = 0

    # --- what the cluster asks for -----------------------------------------------------------

    def add(self, request: Request) -> None:
        self._catch_up()
        request.asked_s, request.phase = self._clock.now, Phase.WAITING
        request.left = float(max(1, request.prompt))
        if self._keeps_prefix:
            cached = self._cached.pop(request.trajectory, 0.0)
            self._cached_kv -= cached
            usable = float(int(min(cached, request.prompt) * request.reuse))
            request.left = max(1.0, request.prompt - usable)
            self.spent.cached_tokens += usable
        self._waiting.append(request)
        self._go_on()

    def abort(self, request: Request) -> None:
        self._catch_up()
        if request.phase is Phase.WAITING:
            self._waiting.remove(request)
        elif request.phase is Phase.PREFILLING:
            self._prefilling.remove(request)
            self._kv -= request.held
        elif request.phase is Phase.DECODING:
            self._num_decoding -= 1
            self._kv -= request.held + self._token - request.since
        request.phase = Phase.OVER
        self._go_on()

    def forget(self, trajectory: str) -> None:
        self._cached_kv -= self._cached.pop(trajectory, 0.0)

    def take_kv(self, trajectory: str, tokens: int) -> None:
        """KV of another engine arrived."""
        self._cached_kv += tokens - self._cached.pop(trajectory, 0.0)
        self._cached[trajectory] = float(tokens)

    def suspend(self) -> None:
        self._catch_up()
        self._is_suspended = True
        self._go_on()

    def resume(self, version: int) -> None:
        """New weights are in: all KV is void, and running requests compute theirs again."""
        self._catch_up()
        self._is_suspended, self.version = False, version
        self._cached.clear()
        self._cached_kv = 0.0
        for _, _, request in sorted(self._ends):
            if request.phase is Phase.DECODING:
                request.made += self._token - request.since
                request.phase, request.left = Phase.PREFILLING, 0.0
                self._prefilling.append(request)
        self._ends, self._num_decoding = [], 0
        for request in (*self._waiting, *self._prefilling):
            self.spent.rebuilt_tokens += max(0.0, request.held - request.left)
            request.left = max(1.0, request.held)
        self._go_on()

    def die(self) -> None:
        """Everything is lost; what was planned does not happen."""
        self._catch_up()
        self._plan += 1
        self._waiting, self._prefilling, self._ends = deque(), deque(), []
        self._num_decoding, self._kv, self._cached_kv, self._chunk, self._stretch = 0, 0.0, 0.0, 0.0, 0.0
        self._cached.clear()
        self._is_suspended = False

    @property
    def kv_used(self) -> float:
        return self._kv + self._cached_kv

    # --- time --------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Count the tokens decoded until now. An iteration with a chunk of prefill is atomic."""
        if not self._stretch:
            return
        passed_s = self._clock.now - self._since_s
        done = min(self._iterations_in(passed_s), self._stretch)
        self._stretch -= done
        self._decoded(done, passed_s)

    def _decoded(self, iterations: float, seconds: float) -> None:
        tokens = self._num_decoding * iterations
        self._token += iterations
        self._kv += tokens
        self.spent.decode_tokens += tokens
        self.spent.decode_s += seconds
        if self._on_span is not None and seconds > 0:
            self._on_span("decode", self._since_s, self._clock.now, iterations, tokens)
        self._since_s = self._clock.now

    def _seconds_of(self, iterations: float) -> float:
        num = self._num_decoding
        return iterations * self._pace.iteration_s(num, self._kv + num * iterations / 2)

    def _iterations_in(self, seconds: float) -> float:
        """The inverse of `_seconds_of`: KV grows while sequences decode, so time is quadratic where memory decides."""
        num, pace = self._num_decoding, self._pace
        if seconds <= 0 or not num:
            return 0.0
        compute, fixed = num * pace.decode_s, pace.fixed_s + num * pace.exchange_s
        count = seconds / (compute + fixed)
        if pace.weights_s + pace.kv_s * (self._kv + num * count / 2) <= compute:
            return count
        slope, start = pace.kv_s * num / 2, pace.weights_s + pace.kv_s * self._kv + fixed
        if slope * seconds < _ROUNDING * start * start:
            return seconds / start
        return (sqrt(start * start + 4 * slope * seconds) - start) / (2 * slope)

    def _go_on(self) -> None:
        """Plan the next iteration with prefill, or the next stretch of pure decoding."""
        if self._chunk:
            return  # it ends first
        self._plan += 1
        self._stretch = 0.0
        self._since_s = self._clock.now
        if self._is_suspended:
            return
        if self._waiting:
            self._admit()
        if self._prefilling:
            self._begin_chunk()
        elif self._num_decoding:
            self._begin_stretch()

    def _admit(self) -> None:
        while self._waiting and self._num_decoding + len(self._prefilling) < self._max_running:
            request = self._waiting[0]
            is_alone = not self._num_decoding and not self._prefilling
            if request.held + _BLOCK > self._capacity - self._kv and not is_alone:
                return
            self._waiting.popleft()
            self._kv += request.held
            request.phase = Phase.PREFILLING
            self._prefilling.append(request)
            self._evict()

    def _evict(self) -> None:
        while self._cached and self._kv + self._cached_kv > self._capacity:
            self._cached_kv -= self._cached.popitem(last=False)[1]
            self.spent.evicted += 1

    # --- an iteration with prefill -----------------------------------------------------------

    def _begin_chunk(self) -> None:
        budget = max(_LEAST_CHUNK, self._max_prefill - self._num_decoding)
        chunk = context = 0.0
        for request in self._prefilling:
            take = min(request.left, budget - chunk)
            chunk += take
            context += take * (request.held - request.left + take / 2)
            if chunk >= budget:
                break
        self._chunk = chunk
        seconds = self._pace.iteration_s(self._num_decoding, self._kv, chunk, context / chunk)
        self._clock.after(seconds, self._end_chunk, self._plan, seconds)

    def _end_chunk(self, plan: int, seconds: float) -> None:
        if plan != self._plan:
            return
        chunk, self._chunk = self._chunk, 0.0
        self.spent.prefill_s += seconds
        self.spent.prefill_tokens += chunk
        self.spent.decode_tokens += self._num_decoding
        if self._on_span is not None:
            self._on_span("prefill", self._since_s, self._clock.now, 1, chunk)
        self._token += 1
        self._kv += self._num_decoding
        done = [request for request in self._prefilled(chunk) if not self._begin_decoding(request)]
        self._finish(done)

    def _prefilled(self, chunk: float) -> list[Request]:
        """Requests whose prompts are computed now."""
        ready: list[Request] = []
        while self._prefilling and chunk > _ROUNDING:
            request = self._prefilling[0]
            take = min(request.left, chunk)
            request.left -= take
            request.prefilled += take
            chunk -= take
            if request.left > _ROUNDING:
                break
            ready.append(self._prefilling.popleft())
        return ready

    def _begin_decoding(self, request: Request) -> bool:
        """False if only its prefill was wanted. A prefill samples a token."""
        if request.prefill_only:
            return False
        if request.first_version < 0:
            request.first_version = self.version
        if request.made < request.answer:
            request.made += 1
            self._kv += 1
        request.phase, request.since = Phase.DECODING, self._token
        self._serial += 1
        heapq.heappush(self._ends, (self._token + request.answer - request.made, self._serial, request))
        self._num_decoding += 1
        return True

    # --- pure decoding -----------------------------------------------------------------------

    def _begin_stretch(self) -> None:
        while self._ends[0][2].phase is not Phase.DECODING:
            heapq.heappop(self._ends)
        iterations = max(0.0, self._ends[0][0] - self._token)
        room = (self._capacity - self._kv) / self._num_decoding
        if room < iterations and self._num_decoding > 1:
            iterations = max(0.0, room)
        self._stretch = iterations
        self._clock.after(self._seconds_of(iterations), self._end_stretch, self._plan)

    def _end_stretch(self, plan: int) -> None:
        if plan != self._plan:
            return
        iterations, self._stretch = self._stretch, 0.0
        self._decoded(iterations, self._clock.now - self._since_s)
        if self._ends and self._ends[0][0] > self._token + _ROUNDING:
            self._evict()
            if self._kv >= self._capacity - self._num_decoding - 1:
                self._preempt()
        self._finish([])

    def _preempt(self) -> None:
        """No room for the next tokens: the request that began last waits, and is computed again."""
        last = max((each for each in self._ends if each[2].phase is Phase.DECODING), key=lambda each: each[1])
        request = last[2]
        request.made += self._token - request.since
        request.phase, request.left = Phase.WAITING, request.held
        self._kv -= request.held
        self._num_decoding -= 1
        self._ends.remove(last)
        heapq.heapify(self._ends)
        self._waiting.appendleft(request)
        self.spent.preempted += 1

    def _finish(self, done: list[Request]) -> None:
        """Take out what has ended, tell the cluster, go on."""
        ends, limit = self._ends, self._token + _ROUNDING
        while ends and (ends[0][2].phase is not Phase.DECODING or ends[0][0] <= limit):
            request = heapq.heappop(ends)[2]
            if request.phase is Phase.DECODING:
                request.made += self._token - request.since
                self._num_decoding -= 1
                done.append(request)
        for request in done:
            request.phase = Phase.OVER
            self._kv -= request.held
            if self._keeps_prefix:
                self._cached[request.trajectory] = request.held
                self._cached_kv += request.held
        if self._cached_kv + self._kv > self._capacity:
            self._evict()
        plan = self._plan
        for request in done:
            self._on_done(request)
        if plan == self._plan:
            self._go_on()
