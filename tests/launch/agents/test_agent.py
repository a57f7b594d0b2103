"""A real agent process and the supervisor's side of it, on this machine."""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.launch import failures
from rollart_hpc.launch.agents.address import write_over
from rollart_hpc.launch.agents.child import RemoteChild
from rollart_hpc.launch.agents.server import AgentServer, Arrived, Departed, Warning
from rollart_hpc.launch.command import role_command
from rollart_hpc.launch.ownership import start_ticks
from rollart_hpc.launch.packing import Needs
from rollart_hpc.launch.plan import Proc
from rollart_hpc.launch.process import Order, wait_for
from rollart_hpc.rundir import RunDir
from rollart_hpc.wire.keys import make_keys

LIMIT_S = 60.0
SLEEPER = """
import time
from rollart_hpc.processes.lifetime import end_with_parent
end_with_parent()
print('up', flush=True)
time.sleep(1000)
"""
MEMORY_LIMIT = 400 << 20
HOG = "taken = []\nwhile True: taken.append(b'x' * (8 << 20))"


def until(condition: Callable[[], Any]) -> Any:
    deadline_s = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "waited too long"
        time.sleep(0.02)
    return found


class Nodes:
    """A supervisor's server and its agents, each a process with its own host name."""

    def __init__(self, run: RunDir, silence_s: float) -> None:
        self.run, self.silence_s = run, silence_s
        self.processes: list[subprocess.Popen[bytes]] = []
        self.news: list[Any] = []
        self.serve()

    def serve(self) -> None:
        self.server = AgentServer(self.run, "127.0.0.1", heartbeat_s=0.1, silence_s=self.silence_s)

    def add(self, host: str, *options: str, within: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[bytes]:
        """`within`: a command that executes the rest of its arguments."""
        command = [
            *within,
            sys.executable,
            "-m",
            "rollart_hpc.launch.agents.agent",
            f"--run-dir={self.run.path}",
            "--job=7",
        ]
        command += options
        full = {**os.environ, "SLURMD_NODENAME": host, **variables}
        self.processes.append(subprocess.Popen(command, env=full))
        self.until(Arrived, f"agent-{host}-7")
        return self.processes[-1]

    def until(self, kind: type, agent: str) -> Any:
        def found() -> Any:
            self.news += self.server.take()
            hits = [news for news in self.news if isinstance(news, kind) and news.agent == agent]
            self.news = [news for news in self.news if news not in hits]
            return hits

        return until(found)[0]

    def start(self, host: str, name: str, code: str, **proc: Any) -> RemoteChild:
        order = Order(Proc(name, "env", "cpu", host, **proc), 1, self.run.path / f"{name}.log")
        return self.server.start(f"agent-{host}-7", order, ["-c", code], {"COLOUR": "blue"})

    def printed(self, child: RemoteChild, text: str = "up") -> str:
        return str(until(lambda: child.log.exists() and text in child.log.read_text() and child.log.read_text()))

    def close(self) -> None:
        self.server.close()
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def make_nodes(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def make(silence_s: float = LIMIT_S) -> Nodes:
        run = RunDir(tmp_path / "a run").create()
        run.job_logs.mkdir()
        write_resolved(run.config, RunConfig())
        made.append(Nodes(run, silence_s))
        return made[-1]

    yield make
    for nodes in made:
        nodes.close()


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A memory cgroup (v1) of its own below that of this process, so that no limit around it is evaded."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = next((inner for _, controllers, inner in lines if "memory" in controllers.split(",")), "")
    group = Path(f"/sys/fs/cgroup/memory{own}") / f"rollart-test-{secrets.token_hex(6)}"
    try:
        if not own:
            raise OSError("this machine has no cgroup v1 controller for memory")
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(MEMORY_LIMIT))
    except OSError as error:
        pytest.skip(f"no process can be made to run out of memory here: {error}")
    yield group
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def is_running(pid: int, ticks: int) -> bool:
    return bool(ticks) and start_ticks(pid) == ticks


def test_an_agent_starts_signals_and_ends_what_it_is_told(make_nodes: Callable[..., Nodes]) -> None:
    nodes = make_nodes()
    here = socket.gethostname().partition(".")[0]  # workers are pinned on a node that is named like its machine
    cpus = str(len(os.sched_getaffinity(0)))
    nodes.add(here, CUDA_VISIBLE_DEVICES="4,5,6", SLURM_PROCID="3", SLURM_CPUS_ON_NODE=cpus)
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['COLOUR'], 'SLURM_PROCID' in os.environ)"
    pinned = "import os; print('on', len(os.sched_getaffinity(0)), flush=True); import time; time.sleep(1000)"
    seeing = nodes.start(here, "seeing", show, gpus=(0, 2))
    blind = nodes.start(here, "blind", show)
    stays = nodes.start(here, "stays", pinned, needs=Needs(cpus=1))
    wait_for([seeing, blind], LIMIT_S)
    assert (seeing.reap(), seeing.log.read_text()) == (0, "4,6 blue False\n")
    assert (blind.reap(), blind.log.read_text()) == (0, " blue False\n")

    assert int(nodes.printed(stays, "on").split()[1]) in (1, os.cpu_count()), "pinned before or after it looked"
    assert len(os.sched_getaffinity(until(lambda: stays.pid))) == 1
    assert int(Path(f"/proc/{stays.pid}/oom_score_adj").read_text()) > 0
    assert (stays.host, stays.has_ended()) == (here, False)
    stays.signal(signal.SIGINT)
    wait_for([stays], LIMIT_S)
    assert stays.reap() == -signal.SIGINT and not stays.is_orphan

    bad = nodes.start(here, "greedy", show, gpus=(3,))
    wait_for([bad], LIMIT_S)
    assert bad.reap() == 3, "the plan wants a GPU that the node does not have"


def test_a_pid_that_becomes_known_wakes_the_supervisor(make_nodes: Callable[..., Nodes]) -> None:
    """It is written to supervisor.json then, also that of a process which was started again later."""
    nodes = make_nodes()
    nodes.add("n1")
    nodes.server.take()
    child = nodes.start("n1", "env-0", SLEEPER)
    assert select.select([nodes.server], [], [], LIMIT_S)[0] and child.pid
    assert nodes.server.take() == []


def test_ending_gives_the_process_its_time(make_nodes: Callable[..., Nodes]) -> None:
    nodes = make_nodes()
    nodes.add("n1")
    polite = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n{SLEEPER}"
    asked, killed = nodes.start("n1", "asked", polite), nodes.start("n1", "killed", polite)
    for child in (asked, killed):
        nodes.printed(child)
    asked.end(0.0, LIMIT_S)
    killed.end(0.0, 0.0)
    wait_for([asked, killed], LIMIT_S)
    assert (asked.reap(), killed.reap()) == (5, -signal.SIGKILL)


def test_a_killed_agent_costs_the_processes_of_its_node_and_nothing_else(make_nodes: Callable[..., Nodes]) -> None:
    nodes = make_nodes()
    victim = nodes.add("n1")
    nodes.add("n2")
    here, there = nodes.start("n1", "here", SLEEPER), nodes.start("n2", "there", SLEEPER)
    for child in (here, there):
        nodes.printed(child)
        until(lambda child=child: child.pid)
    ticks = start_ticks(here.pid)
    victim.kill()
    victim.wait()
    until(lambda: not is_running(here.pid, ticks))
    nodes.server._members._silence_s = 1.0  # the only thing here that waits for a time
    nodes.until(Departed, "agent-n1-7")
    assert here.has_ended() and here.is_orphan and not there.has_ended()
    assert here.reap() == -signal.SIGKILL
    late = nodes.start("n1", "late", SLEEPER)
    assert late.has_ended() and late.is_orphan
    nodes.server._members._silence_s = LIMIT_S
    nodes.add("n1")  # a new agent takes over
    again = nodes.start("n1", "again", SLEEPER)
    nodes.printed(again)


def test_without_a_supervisor_nothing_is_left(make_nodes: Callable[..., Nodes]) -> None:
    """It ends in good order, or its keys are of no use anymore."""
    nodes = make_nodes()
    agent = nodes.add("n1")
    child = nodes.start("n1", "child", SLEEPER)
    nodes.printed(child)
    pid, ticks = until(lambda: child.pid), start_ticks(child.pid)
    nodes.server.close()
    assert agent.wait(LIMIT_S) == 0
    until(lambda: not is_running(pid, ticks))


def test_slurm_s_warning_is_passed_on_and_ends_nothing(make_nodes: Callable[..., Nodes]) -> None:
    nodes = make_nodes()
    agent = nodes.add("n1")
    child = nodes.start("n1", "child", SLEEPER)
    nodes.printed(child)
    agent.send_signal(signal.SIGTERM)
    nodes.until(Warning, "agent-n1-7")
    assert agent.poll() is None and not child.has_ended()


def test_an_agent_that_may_wait_goes_over_to_the_next_supervisor(make_nodes: Callable[..., Nodes]) -> None:
    """The first one ends in good order, the second one is killed, the third one says that the run is over."""
    nodes = make_nodes()
    agent = nodes.add("n1", "--nodes=h20-0,h20-1", f"--wait-s={LIMIT_S}", SLURM_PROCID="1")
    child = nodes.start("n1", "child", SLEEPER)
    nodes.printed(child)
    pid, ticks = until(lambda: child.pid), start_ticks(child.pid)
    nodes.server.close()
    until(lambda: not is_running(pid, ticks))
    nodes.serve()
    arrived = nodes.until(Arrived, "agent-n1-7")
    assert arrived.offer.nodes == ["h20-1"] and agent.poll() is None

    again = nodes.start("n1", "again", SLEEPER)
    nodes.printed(again)
    pid, ticks = until(lambda: again.pid), start_ticks(again.pid)
    abandoned = nodes.server
    nodes.serve()  # while the other still answers: a newer one counts
    nodes.until(Arrived, "agent-n1-7")
    until(lambda: not is_running(pid, ticks))
    abandoned.close()
    nodes.server.close()
    write_over(nodes.run)
    assert agent.wait(LIMIT_S) == 0


def test_an_agent_whose_supervisor_does_not_come_back_leaves(make_nodes: Callable[..., Nodes]) -> None:
    nodes = make_nodes()
    agent = nodes.add("n1", "--nodes=h20-0", "--wait-s=0.5", SLURM_PROCID="0")
    nodes.server.close()
    assert agent.wait(LIMIT_S) == 3


def test_a_relay_that_was_killed_leaves_no_weights(make_nodes: Callable[..., Nodes]) -> None:
    nodes = make_nodes()
    nodes.add("n1")
    order = Order(Proc("relay-n1", "relay", "cpu", "n1"), 1, nodes.run.path / "relay.log")
    child = nodes.server.start("agent-n1-7", order, ["-c", SLEEPER, "--node", "n1"], {})
    nodes.printed(child)
    store = nodes.run.store_root / "n1"
    store.mkdir(parents=True)
    (store / "owner").write_text(order.incarnation)
    nodes.server.close()
    until(lambda: not nodes.run.store_root.exists())


def test_an_agent_that_was_killed_leaves_no_weights(make_nodes: Callable[..., Nodes]) -> None:
    """The process from which it forked a real relay, which has claimed its memory and looks for a controller."""
    nodes = make_nodes()
    make_keys(nodes.run.keys(1))
    agent = nodes.add("n1", "--preload", "relay")
    order = Order(Proc("relay-n1", "relay", "cpu", "n1"), 1, nodes.run.path / "relay.log")
    arguments = role_command(order, nodes.run, address="tcp://127.0.0.1:9")
    child = nodes.server.start("agent-n1-7", order, arguments[arguments.index("-m") :], {})
    owner = nodes.run.store_root / "n1" / "owner"
    until(lambda: child.has_ended() or (owner.exists() and owner.read_text() == order.incarnation))
    assert not child.has_ended(), child.log.read_text()
    pid, ticks = until(lambda: child.pid), start_ticks(child.pid)
    agent.kill()
    until(lambda: not nodes.run.store_root.exists())
    assert not is_running(pid, ticks)


def test_an_agent_that_is_dismissed_leaves_although_it_could_wait(make_nodes: Callable[..., Nodes]) -> None:
    nodes = make_nodes()
    agent = nodes.add("n1", "--nodes=h20-0", f"--wait-s={LIMIT_S}", SLURM_PROCID="0")
    nodes.server.dismiss("agent-n1-7", "its node is no longer needed")
    assert agent.wait(LIMIT_S) == 0
    nodes.until(Departed, "agent-n1-7")


def test_a_process_that_runs_out_of_memory_ends_alone(small_memory: Path, make_nodes: Callable[..., Nodes]) -> None:
    nodes = make_nodes()
    enter = f'echo $$ > "{small_memory}/cgroup.procs" && exec "$@"'
    agent = nodes.add("n1", within=("/bin/sh", "-c", enter, "sh"))
    stays = nodes.start("n1", "stays", SLEEPER)
    nodes.printed(stays)
    killed = nodes.start("n1", "killed", SLEEPER)
    nodes.printed(killed)
    killed.end(0.0, 0.0)
    wait_for([killed], LIMIT_S)
    hog = nodes.start("n1", "hog", HOG)
    wait_for([hog], LIMIT_S)
    assert failures.describe_end(hog, hog.reap()) == "killed by SIGKILL (out of memory)"
    assert failures.describe_end(killed, killed.reap()) == "killed by SIGKILL", "only the kernel's doing counts"
    assert agent.poll() is None and not stays.has_ended()
    again = nodes.start("n1", "again", SLEEPER)
    nodes.printed(again)
