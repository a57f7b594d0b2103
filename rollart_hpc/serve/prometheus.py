"""The figures of all runs in the text format of Prometheus. Owns their names."""

from __future__ import annotations

from collections.abc import Iterator

from rollart_hpc.launch.status import RunStatus
from rollart_hpc.serve.library import Library

_HELP = {
    "state": "1 for the state that the run is in",
    "step": "optimizer steps done",
    "steps": "optimizer steps asked for",
    "tokens_per_second": "generated in the newest step",
    "staleness_max": "versions between the first token and the training of a trajectory",
    "validation_success": "share of successes in the newest validation",
    "trajectories_total": "trained",
    "dropped_total": "trajectories that were not trained, by reason",
    "workers_alive": "living processes, by role",
    "workers_lost_total": "lost processes, by role",
    "trainer_wait_share": "share of its time that the trainer waits for batches",
}
Sample = tuple[str, dict[str, str], float]


def metrics(library: Library) -> str:
    found: dict[str, list[str]] = {name: [] for name in _HELP}
    for shelf in library.shelves():
        for name, labels, value in _samples(shelf.status()):
            listed = ",".join(f'{key}="{_escaped(text)}"' for key, text in {"run": shelf.name, **labels}.items())
            found[name].append(f"rollart_{name}{{{listed}}} {value:g}")
    lines = []
    for name, samples in found.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP rollart_{name} {_HELP[name]}", f"# TYPE rollart_{name} {kind}", *samples]
    return "\n".join(lines) + "\n"


def _samples(status: RunStatus) -> Iterator[Sample]:
    yield "state", {"state": status.state}, 1
    yield "step", {}, status.step
    yield "steps", {}, status.steps
    yield "tokens_per_second", {}, status.tokens_per_s
    yield "staleness_max", {}, status.staleness.max_trained
    yield "trainer_wait_share", {}, status.wait.get_batch_share
    for name, task in status.tasks.items():
        if task.score_last is not None:
            yield "validation_success", {"task": name}, task.score_last
        yield "trajectories_total", {"task": name}, task.trajectories
    for reason, count in status.dropped.items():
        yield "dropped_total", {"reason": reason}, count
    for role, workers in status.workers.items():
        yield "workers_alive", {"role": role}, workers.alive
        yield "workers_lost_total", {"role": role}, workers.lost


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
