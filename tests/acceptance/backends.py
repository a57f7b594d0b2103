"""The quickstart's tasks with the backends of a GPU cluster, on this machine and on the development cluster."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.drive import Trained, table, train, write_page
from tests.acceptance.slurm import cluster

RUNS = ("tiny-vllm", "tiny-megatron", "tiny-mpi", "tiny-split")
RISE = 0.3  # of success, by every task of a run


def backends(keep: Path, names: tuple[str, ...] = RUNS) -> bool:
    trained: dict[tuple[str, str], Trained] = {}
    with cluster(keep / "cluster"):
        for name in names:
            for site in ("", "dev"):
                trained[name, site or "local"] = train(name, keep / f"{name}-{site or 'local'}", site=site)
                write_page("backends", page(trained))
    return all(learned(run) for run in trained.values())


def learned(run: Trained) -> bool:
    if run.code:
        return False
    return all(task["score_last"] - task["score_first"] > RISE for task in run.status["tasks"].values())


def page(trained: dict[tuple[str, str], Trained]) -> list[str]:
    rows = []
    for (name, site), run in trained.items():
        if run.code:
            rows.append([name, site, f"failed (exit code {run.code})", *["-"] * 4])
            continue
        status = run.status
        for task, figures in status["tasks"].items():
            scores = [f"{figures['score_first']:.2f}", f"{figures['score_last']:.2f}"]
            rows.append([name, site, task, *scores, str(status["step"]), f"{run.seconds:.0f} s"])
    splits = [
        f"{name}, {site}: {run.status['split_requests']} turns were prefilled on one pool and decoded on the other; "
        f"{run.status['split_fallbacks']} were served by a single pool."
        for (name, site), run in trained.items()
        if not run.code and run.status["split_requests"]
    ]
    head = ["run file", "site", "task", "success first", "success last", "steps", "whole run"]
    return [
        "# The quickstart's tasks with other backends",
        "",
        "Greedy success on held-out seeds before the first and after the last step. `tiny-vllm` uses vLLM engines,",
        "`tiny-megatron` a megatron-core trainer with tensor parallel size 2, `tiny-mpi` MPI for weights between",
        "relays; `tiny-split` prefills on the compute pool and decodes on the bandwidth pool. `local` is",
        "`rollart-hpc run`, `dev` is `rollart-hpc submit --site dev --wait` on the development cluster. Measured on",
        "2 shared CPU cores by:",
        "",
        "```",
        "python tests/acceptance/run.py backends",
        "```",
        "",
        *table(head, rows),
        *(line for split in splits for line in ("", split)),
    ]
