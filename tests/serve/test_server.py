"""What the server shows, and what it refuses."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_hpc.cli.main import main
from rollart_hpc.observe.shards import shards
from rollart_hpc.rundir import RunDir
from rollart_hpc.serve import pages
from rollart_hpc.serve.server import MOST_PATH, Server
from tests.serve.scene import make_run, recorder, serving, write_play


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_run(root / "first run", created_s=1.8e9)
    make_run(root / "second", steps=4, created_s=1.9e9)
    (root / "no run").mkdir()
    (root / "damaged").mkdir()
    (root / "damaged" / "run.json").write_text("{")
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    with serving(root) as server:
        yield server


def get(server: Server, path: str, token: str | None = None) -> tuple[int, str, dict[str, str]]:
    url = server.url if token is None else server.url.replace(server.token, token)
    try:
        with urllib.request.urlopen(url + path, timeout=60) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def shown(server: Server, path: str) -> str:
    status, text, _ = get(server, path)
    assert status == 200, text
    return text


def test_all_runs_newest_first(server: Server) -> None:
    text = shown(server, "")
    assert text.index("run/second/") < text.index("run/first%20run/") and "no run" not in text and "damaged" not in text
    assert "4 / 4" in text


def test_a_run_has_the_sections_of_the_report_and_more(server: Server) -> None:
    text = shown(server, "run/first%20run/")
    for title in ("Score per task", "Timeline", "Staleness", "Dropped, by reason", "Lengths", "Warnings", "<progress"):
        assert title in text, title


def test_trajectories_are_listed_and_filtered(server: Server) -> None:
    def names(query: str) -> list[str]:
        return re.findall(r'href="play/([^"]+)"', shown(server, f"run/second/plays?{query}"))

    assert len(names("")) == 17 and names("")[0] == "a1.v4.countdown.0"
    assert names("task=countdown") == names("purpose=validate") == ["a1.v4.countdown.0"]
    assert names("outcome=success&sort=best") == [f"a1.g{step}.m{step}" for step in range(4)]
    assert set(names("from=1&to=2")) == {f"a1.g{step}.m{member}" for step in (1, 2) for member in range(4)}
    assert len(names("least=0.5&most=0.8&purpose=train")) == len([1 for s in range(4) for m in (2, 3) if m != s])
    assert names("task=nothing&from=x&least=y&page=-3") == []


def test_long_lists_have_pages(tmp_path: Path) -> None:
    make_run(tmp_path / "long", steps=20)
    with serving(tmp_path / "long") as server:
        first, second = (shown(server, f"run/long/plays?outcome=&page={page}") for page in (0, 1))
        assert 'rel="next" href="plays?page=1"' in first and 'rel="prev"' in second and 'rel="next"' not in second


def test_one_trajectory_beside_its_group(server: Server) -> None:
    text = shown(server, "run/second/play/a1.g2.m1")
    assert all(f"a1.g2.m{member}: reward" in text for member in range(4)) and "a1.g1.m" not in text
    assert "trained in step 2" in text and "reached False" in text and "row 0 column 3" in text
    assert text.count('class="tok"') == 4 and text.count('class="seen"') == 2
    assert "log-prob -6.000, version 3, advantage -0.500" in text and ">right</span>" in text


def test_logs(server: Server) -> None:
    text = shown(server, "run/first%20run/logs?process=controller")
    assert "the first line" in text and "&lt;script&gt;" in text and "<script>alert" not in text
    assert "the first line" in shown(server, "run/first%20run/logs?process=../../../config")


def test_comparison(server: Server) -> None:
    text = shown(server, "compare?run=first+run&run=second&run=nothing")
    assert "Paired validations" in text and "<td class=n>128</td>" in text and "nothing" not in text
    assert "choose runs" in shown(server, "compare")


def test_prometheus(server: Server) -> None:
    lines = shown(server, "metrics").splitlines()
    assert 'rollart_step{run="second"} 4' in lines
    pattern = re.compile(r'# (HELP|TYPE) rollart_\w+ .+|rollart_\w+\{\w+="[^"]*"(,\w+="[^"]*")*\} [-+.\de]+(inf|nan)?')
    assert all(pattern.fullmatch(line) for line in lines), [line for line in lines if not pattern.fullmatch(line)]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "wrong", "%00", "é".encode().hex()])
def test_nothing_without_the_token(server: Server, token: str) -> None:
    for path in ("", "run/second/", "assets/app.js", "metrics", "events?run=*"):
        assert get(server, path, token)[:2] == (404, "not found\n")
    assert get(server, "", "..")[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "run/..%2f..%2fetc/", "run/%2e%2e/",
        "run/../second/../", "run/second/../../etc", "run/no%20run/", "run/damaged/",
        "run/second/play/..%2f..%2fconfig.yaml", "run/second/play/", "run/second/config.yaml", "assets/..%2fserver.py",
        "assets/server.py", "run/second", "nothing", "run/second/play/a1.g99.m0", "run/%00/", "run/second/logs/x",
    ],
)  # fmt: skip
def test_what_is_not_a_page_is_not_found(server: Server, path: str) -> None:
    assert get(server, path)[0] == 404


def test_only_get_and_only_loopback(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    for method in ("POST", "PUT", "DELETE"):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.request(method, f"/{server.token}/")
        assert connection.getresponse().status == 501
        connection.close()
    assert get(server, "run/second/plays?x=" + "y" * MOST_PATH)[0] == 404


def test_pages_are_kept_nowhere_and_load_nothing_from_elsewhere(server: Server) -> None:
    for path in ("", "run/second/", "run/second/plays", "run/second/play/a1.g2.m1", "compare?run=second"):
        _, text, headers = get(server, path)
        assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert not re.search(r'(src|href)="(https?:)?//', text) and "<script>" not in text


def test_what_a_policy_or_a_task_wrote_is_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "<b>run", steps=1)
    plays = recorder(run, "reward-1-x")
    write_play(plays, "a1.g0.m0", 0.0, 0, "<i>task", "<script>alert(1)</script>")
    plays.close()
    with serving(tmp_path) as server:
        for path in ("", "run/%3Cb%3Erun/plays", "run/%3Cb%3Erun/play/a1.g0.m0", "compare?run=%3Cb%3Erun"):
            text = shown(server, path)
            assert "<script>alert" not in text and "<i>task" not in text and "<b>run" not in text


def test_corrupt_and_huge_files_are_skipped_with_a_note(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    good = shards(run.transcripts, "plays")[0]
    good.with_name("a0001.v0000000.plays.torn.0001.jsonl.gz").write_bytes(good.read_bytes()[:-30])
    for path in (run.status, run.cluster, run.supervisor, run.ledger):
        path.write_bytes(b"\0{[\xff")
    with run.metrics.open("ab") as file:
        file.write(b"\xff" * 100 + b"\n{}\n")
    with run.log(1, "controller").open("ab") as file:
        file.truncate(300 << 20)  # only its end is read
    with serving(tmp_path) as server:
        assert "run/run/" in shown(server, "")
        text = shown(server, "run/run/")
        assert "torn" in text and "damaged" in text
        assert "torn" in shown(server, "run/run/plays")
        assert len(shown(server, "run/run/logs?process=controller")) < 2 * pages.LOG_BYTES


# --- events --------------------------------------------------------------------------------------


def test_events_tell_of_changes_and_leave_room(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    with serving(tmp_path) as server, urllib.request.urlopen(server.url + "events?run=run", timeout=60) as events:
        assert events.headers["Content-Type"] == "text/event-stream" and events.readline() == b": hello\n"
        with run.metrics.open("a") as file:
            file.write("{}\n")
        assert events.readline() == b"\n" and events.readline() == b"data: changed\n"
        held = 0
        while server.watchers.acquire(blocking=False):
            held += 1
        assert get(server, "events?run=*")[0] == 503 and get(server, "events?run=other")[0] == 503
        server.watchers.release(held)


def test_runs_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollart_hpc.serve.library.LIST_S", 0.0)
    with serving(tmp_path) as server:
        assert "there are no runs here yet" in shown(server, "")
        make_run(tmp_path / "new", steps=1)
        assert "run/new/" in shown(server, "")
        RunDir(tmp_path / "new").identity.unlink()
        assert get(server, "run/new/")[0] == 404


def test_the_command_prints_the_address_and_the_way_through_ssh(root: Path) -> None:
    command = [sys.executable, "-m", "rollart_hpc.cli", "serve", str(root)]
    environment = os.environ | {"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        url, tunnel, warning = (process.stdout.readline().strip() for _ in range(3))
        port = url.split(":")[2].split("/")[0]
        assert f"ssh -N -L {port}:127.0.0.1:{port} " in tunnel and "can read" in warning
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert "run/second/" in answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_place_that_is_not_there() -> None:
    assert main(["serve", "/nowhere"]) == 2
