"""The end of chaos: was every step trained exactly once? Owns the summary; reads the ledger and what was done."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollart_hpc.chaos.acts import Act
from rollart_hpc.chaos.crew import Sight
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.flow.rules import rules_of
from rollart_hpc.observe import ledger
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState


class Healing(msgspec.Struct, frozen=True):
    act: Act
    after_s: float | None  # None: it has not recovered


class Summary(msgspec.Struct, frozen=True):
    """The output of `chaos --json`."""

    run_dir: str
    seed: int
    lasted_s: float
    state: RunState
    acts: dict[str, dict[str, int]]  # by role and kind
    num_acts: int
    num_recovered: int
    longest_recovery_s: float
    refused: dict[str, int]  # acts that could not be done, by reason
    steps_before: int
    steps_after: int
    trajectories: int  # of the surviving chain
    is_interrupted: bool
    problems: list[str]  # of the ledger and of the run; empty: every step was trained exactly once

    @property
    def is_ok(self) -> bool:
        return not self.problems


def steps_of(run: RunDir) -> int:
    """Steps of the surviving chain."""
    return len(chain_of(run))


def chain_of(run: RunDir) -> list[ledger.Line]:
    return ledger.surviving(ledger.entries(run.ledger)) if run.ledger.exists() else []


def find_problems(run: RunDir, sight: Sight, healings: Sequence[Healing], *, is_interrupted: bool) -> list[str]:
    config = read_resolved(run.config)
    rules = rules_of(config)
    found = ledger.check(run.ledger, rules.group_size, rules.alpha) if run.ledger.exists() else []
    chain = [line.version for line in chain_of(run)]
    began = ledger.origin(run.ledger) if run.ledger.exists() else None
    first = began.forked + 1 if began else 1
    if chain != list(range(first, first + len(chain))):
        found.append(f"the ledger has versions {chain[0]} to {chain[-1]}, but not all of them once")
    state = sight.status.state
    if state is RunState.FINISHED and len(chain) + first - 1 != config.steps:
        found.append(f"the run has finished with {len(chain)} steps, expected {config.steps}")
    elif state.is_over and state is not RunState.FINISHED:
        found.append(f"the run is {state}: {sight.status.reason or 'no reason given'}")
    if not healings and not is_interrupted:
        found.append("nothing was hit")
    late = [str(healing.act) for healing in healings if healing.after_s is None]
    if late and state is not RunState.FINISHED and not is_interrupted:
        found.append(f"the run has not recovered from: {', '.join(late)}")
    return found


def summarize(
    run: RunDir,
    seed: int,
    lasted_s: float,
    sight: Sight,
    healings: Sequence[Healing],
    refused: dict[str, int],
    steps_before: int,
    *,
    is_interrupted: bool,
) -> Summary:
    acts: dict[str, dict[str, int]] = {}
    for healing in healings:
        kinds = acts.setdefault(healing.act.victim.role, {})
        kinds[healing.act.kind] = kinds.get(healing.act.kind, 0) + 1
    times = [healing.after_s for healing in healings if healing.after_s is not None]
    chain = chain_of(run)
    return Summary(
        run_dir=str(run.path),
        seed=seed,
        lasted_s=round(lasted_s, 1),
        state=sight.status.state,
        acts=acts,
        num_acts=len(healings),
        num_recovered=len(times),
        longest_recovery_s=round(max(times, default=0.0), 1),
        refused=refused,
        steps_before=steps_before,
        steps_after=len(chain),
        trajectories=sum(len(line.trajectories) for line in chain),
        is_interrupted=is_interrupted,
        problems=find_problems(run, sight, healings, is_interrupted=is_interrupted),
    )
