"""What tasks ask of a cluster: turns, tokens and seconds as laws, and the figures of machines that no file has.

Owns how a play is drawn. Everything about a play depends on its two seeds only: members of a group share a part of it,
and the same play has the same length, latencies and troubles in every mode, on every cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from random import Random

from rollart_hpc.config.schema import Latency, TaskConfig
from rollart_hpc.estimate.roofline import Efficiency, Pace
from rollart_hpc.simulate.laws import Law

_SHARED = 0.3  # of the log-variance of length: what members of a group have in common
_STEADY = 0.5  # of the deviation of an answer's length: what the turns of a trajectory have in common
_LEAST_ANSWER = 2
_INJECTED = 0x5EED  # latencies have numbers of their own, so that a play is the same with and without


@dataclass(frozen=True)
class TaskProfile:
    turns: Law
    prompt: Law  # tokens before the first answer
    observation: Law  # tokens between two answers
    answer: Law  # tokens
    reset: Law = Law(0.05, 0.5)
    step: Law = Law(0.05, 0.5)
    score: Law = Law(0.05, 0.5)
    reuse: float = 1.0  # share of the cached prefix that the next turn can use; templates may rewrite history
    shared: float = _SHARED
    straggles: float = 0.0  # share of resets that take `straggle_s` more on average
    straggle_s: float = 0.0
    reset_fails: float = 0.0  # share of resets
    turn_fails: float = 0.0  # share of turns
    success: float = 0.5  # share of plays, for filters of groups
    sources: dict[str, str] = field(default_factory=dict)  # of the figures above; those without one are assumed


@dataclass(frozen=True)
class Machines:
    """Seconds and rates that neither the run file nor the site file has. Assumed, unless a workload was fitted."""

    mfu: float = 0.35  # share of the trainer's FLOPS
    train_fixed_s: float = 5.0  # of a step: optimizer, digest, copying the weights out
    overhead_s: float = 0.004  # of an engine's iteration
    compute_share: float = 0.0  # reached in prefill; 0 = by the class (estimate.roofline)
    memory_share: float = 0.0  # reached in decoding; 0 = by the class
    push_gb_s: float = 2.5  # from the trainer's node to the other relays
    push_s: float = 0.0  # the whole push; 0 = from push_gb_s
    install_gb_s: float = 8.0  # of one GPU, from the memory of its node
    install_s: float = 0.0  # a whole install; 0 = from install_gb_s
    kv_gb_s: float = 20.0  # of split turns, between nodes
    hop_s: float = 0.001  # a message through the controller
    engine_mtbf_h: float = 0.0  # hours between failures of one engine; 0 = none fails
    engine_back_s: float = 180.0  # until a failed engine is back
    paces: dict[str, Pace] = field(default_factory=dict)  # of pools that were measured
    train_token_s: float = 0.0  # measured seconds of the trainer per token; 0 = from the figures of its class

    def efficiency(self, assumed: Efficiency) -> Efficiency:
        return Efficiency(self.compute_share or assumed.compute, self.memory_share or assumed.memory)


@dataclass(frozen=True)
class Workload:
    name: str
    tasks: dict[str, TaskProfile]
    machines: Machines = Machines()
    notes: tuple[str, ...] = ()  # where the figures are from, and what was assumed


@dataclass(frozen=True, slots=True)
class Script:
    """A play as it will go: what the environment says and how long it takes, what the model answers."""

    prompts: list[int]  # tokens that each turn adds before its answer
    answers: list[int]
    steps_s: list[float]
    reset_s: float
    score_s: float
    fails_at: int  # turn that raises an exception; -1: the reset; its own length: none
    tokens: int
    success: bool


def draw(profile: TaskProfile, limits: TaskConfig, seed: int, sample_seed: int, issue: int = 0) -> Script:
    """A play under the limits of the run file. `issue`: how often it was begun before, which only decides failures."""
    common, own = Random(seed).gauss, Random(sample_seed)
    gauss = own.gauss
    shared, rest = sqrt(profile.shared), sqrt(1 - profile.shared)
    turns = max(1, min(limits.max_turns, round(profile.turns.at(shared * common(0, 1) + rest * gauss(0, 1)))))
    length = shared * common(0, 1) + rest * gauss(0, 1)
    steady, loose = (1.0, 0.0) if turns <= 2 else (sqrt(_STEADY), sqrt(1 - _STEADY))
    injected, trouble = Random(sample_seed ^ _INJECTED), limits.trouble
    prompts: list[int] = []
    answers: list[int] = []
    steps_s: list[float] = []
    room = limits.max_tokens
    for turn in range(turns):
        prompt = max(1, int((profile.observation if turn else profile.prompt).at(gauss(0, 1))))
        answer = int(profile.answer.at(steady * length + loose * gauss(0, 1)))
        step_s = profile.step.at(gauss(0, 1)) + _latency_s(trouble.turn_latency, injected)
        answer = min(max(_LEAST_ANSWER, answer), limits.max_response_tokens, room - prompt)
        if answer < _LEAST_ANSWER and turn:
            break
        prompts.append(prompt)
        answers.append(max(1, answer))
        steps_s.append(step_s)
        room -= prompt + answer
    reset_s = profile.reset.at(gauss(0, 1)) + _latency_s(trouble.reset_latency, injected)
    if profile.straggles and own.random() < profile.straggles:
        reset_s += own.expovariate(1 / profile.straggle_s)
    score_s = profile.score.at(gauss(0, 1))
    fails_at = _failure(profile, limits, Random(sample_seed * 31 + issue), len(prompts))
    tokens, success = sum(prompts) + sum(answers), own.random() < profile.success
    return Script(prompts, answers, steps_s, reset_s, score_s, fails_at, tokens, success)


def _latency_s(latency: Latency, chance: Random) -> float:
    """What the run file injects."""
    return max(0.0, chance.gauss(latency.mean_s, latency.std_s)) if latency.mean_s or latency.std_s else 0.0


def _failure(profile: TaskProfile, limits: TaskConfig, chance: Random, turns: int) -> int:
    trouble = limits.trouble
    if chance.random() < max(profile.reset_fails, trouble.reset_failure_rate):
        return -1
    rate = max(profile.turn_fails, trouble.turn_error_rate, trouble.crash_rate)
    if not rate:
        return turns
    return next((turn for turn in range(turns) if chance.random() < rate), turns)
