"""A run that is preempted and then reaches its time limit ends with the weights of one that nobody disturbed.

And a requeued job does not wait for ever for a node that was repaired.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rollart_hpc.config.load import load_site
from rollart_hpc.devcluster.cluster import Cluster
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.nodes import excluded, note_nodes
from rollart_hpc.launch.slurm.requeue import requeue
from rollart_hpc.observe import ledger
from rollart_hpc.rundir import RunDir
from tests.slurm.submitted import ALONE, DETERMINISTIC, VERY_SLOWLY, Submitted, until

# Slurm looks at time limits every 30 s: the run must not be over by then, however fast the machine.
STEPS = 12


def test_preempted_and_out_of_time_to_the_same_weights(own_cluster: Cluster, tmp_path: Path, raw_model: Path) -> None:
    """Both at once: the second run is not disturbed by what happens to the first."""
    slurm = own_cluster.slurm
    settings = (*DETERMINISTIC, VERY_SLOWLY, f"steps={STEPS}")
    disturbed = Submitted(own_cluster, tmp_path / "a run", raw_model).submit(*settings, ALONE, "job.signal_s=100")
    disturbed.until_begun(1)
    other = Submitted(own_cluster, tmp_path / "other", raw_model).submit(*settings)

    disturbed.until_steps(1)
    (host,) = disturbed.hosts("h800")
    slurm.run("sbatch", "--partition=urgent", f"--nodelist={host}", "--exclusive", "--output=/dev/null",
              "--time=1", "--wrap=true")  # fmt: skip
    disturbed.until_begun(2)
    disturbed.until_steps(len(disturbed.ledger()) + 1)
    slurm.run("scontrol", "update", f"JobId={disturbed.job}", "EndTime=now+115")
    disturbed.until_begun(3)
    slurm.run("scontrol", "update", f"JobId={disturbed.job}", "TimeLimit=60")

    status = disturbed.until_over()
    assert (status["state"], status["step"], status["attempt"]) == ("finished", STEPS, 3), disturbed.told()
    assert [start.restart for start in disturbed.begun()] == [0, 1, 2]
    assert set(status["gpu_hours"]) == {"h800", "h20"}
    disturbed.until(disturbed.run.report.exists, "the report")
    report = disturbed.run.report.read_text()
    assert "compute = partition h800; bandwidth = partition h20" in report and "GPU-hours on h800" in report
    check_ledger(disturbed)

    status = other.until_over()
    assert (status["state"], status["step"], status["attempt"]) == ("finished", STEPS, 1), other.told()
    check_ledger(other)
    assert disturbed.ledger()[-1]["digest"] == other.ledger()[-1]["digest"]
    disturbed.until(lambda: not disturbed.processes() and not other.processes(), "the end of all processes")


def test_a_requeued_job_uses_a_drained_node_once_it_is_repaired(
    own_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs every node of its partition, so it can only wait for the drained one."""
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process lives on
    slurm, run, hosts = own_cluster.slurm, RunDir(tmp_path / "run").create(), ["h800n1", "h800n2"]
    script = "#!/bin/sh\nexec sleep 600\n"
    job = int(slurm.run("sbatch", "--parsable", "-ph800", "-N2", "-n2", "--requeue", "-o/dev/null", stdin=script))

    def state() -> str:
        return slurm.table("squeue", {"state": "%T"}, f"--jobs={job}")[0]["state"]

    until(lambda: state() == "RUNNING", "the job")
    record.add(run, record.Began(job, 0, -1, [record.Part(job, "h800", "h800", hosts, 0)]))
    slurm.run("scontrol", "update", "NodeName=h800n2", "State=DRAIN", "Reason=test")
    assert note_nodes(run, slurm, hosts, print)
    requeue(slurm, job, excluded(run, load_site("dev")), print)
    until(lambda: state() == "PENDING", "the requeue")
    assert slurm.records("show", "job", str(job))[0].get("ExcNodeList", "(null)") in ("", "(null)")
    slurm.run("scontrol", "update", "NodeName=h800n2", "State=RESUME")
    until(lambda: state() == "RUNNING", "the second start", lambda: str(slurm.records("show", "job", str(job))))


def check_ledger(run: Submitted) -> None:
    """Each step once: what was in flight when the job was ended was saved, or had not begun to train."""
    lines = ledger.read(run.run.ledger)
    assert [line.version for line in lines] == list(range(1, STEPS + 1))
    assert not ledger.problems(lines, group_size=2, alpha=0)
