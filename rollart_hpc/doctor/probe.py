"""Checks one node of a class for what the processes of a run need. Prints one line of JSON per finding.

Runs as a step of the doctor's job: `python -m rollart_hpc.doctor.probe DIRECTORY CANARY CLASS ADDRESS PORT`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from rollart_hpc import __version__
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.doctor.exchange import Caller, dial, echo
from rollart_hpc.doctor.files import Folder
from rollart_hpc.doctor.scope import VERSIONS
from rollart_hpc.errors import SiteError
from rollart_hpc.extras import install
from rollart_hpc.launch.finding import Finding, fail, good, warn
from rollart_hpc.wire.interfaces import address_of
from rollart_hpc.wire.ports import listen_tcp

LIMIT_S = 90.0
_FEW_FILES = 4096
_LITTLE_SHM_GB = 1.0
_LITTLE_SCRATCH_GB = 1.0
_LOOPBACK = ("lo", "127.")


def look_at_node(site: SiteConfig, name: str, shm_bytes: int = 0) -> Iterator[Finding]:
    """`shm_bytes`: what the weights of a run would take of shared memory; 0 = unknown."""
    yield from _python(site, name)
    yield from _limits(site, name)
    yield from _gpus(site, name)
    yield from _space(name, shm_bytes if site.classes[name].gpus else 0)
    yield from _caches(name)


def _python(site: SiteConfig, name: str) -> Iterator[Finding]:
    check = f"{name}: python"
    yield good(check, f"{sys.executable} ({platform.python_version()}), rollart-hpc {__version__}, on {_host()}")
    if site.classes[name].gpus and importlib.util.find_spec("torch") is None:
        fix = f"{install('train')} with it, or set another interpreter (python) or load one (prologue)"
        yield fail(check, "torch is not installed, but engines and trainers need it", fix)


def shared_finding(folder: Folder, name: str, canary: str) -> Finding:
    check = f"{name}: shared file system"
    if not folder.has_canary(canary):
        where = f"{folder.path} on {_host()} is not the directory that the login node sees"
        return fail(check, where, "set run_root to a directory that all nodes share")
    folder.mark_seen(name, canary)
    return good(check, f"{folder.path.parent} is visible and writable on {_host()}")


def _limits(site: SiteConfig, name: str) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    check = f"{name}: nofile"
    if soft < _FEW_FILES:
        add = f"add `ulimit -n {min(hard, 65536)}` to the site's prologue"
        fix = add if hard > soft else "ask the administrators to raise it"
        yield warn(check, f"a process may have only {soft} open files", fix)
    else:
        yield good(check, f"{soft} files")
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if memlock == resource.RLIM_INFINITY or not site.classes[name].gpus:
        text = "unlimited" if memlock == resource.RLIM_INFINITY else f"{memlock >> 20} MB (no process pins memory here)"
        yield good(f"{name}: memlock", text)
    else:
        fix = "InfiniBand needs no limit: ask the administrators to set LimitMEMLOCK=infinity for slurmd"
        yield warn(f"{name}: memlock", f"a process may pin only {memlock >> 20} MB", fix)


def _gpus(site: SiteConfig, name: str) -> Iterator[Finding]:
    own = site.classes[name]
    if not own.gpus:
        return
    check = f"{name}: gres"
    given = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not given:
        yield fail(check, "Slurm gave no GPU to a step that asked for one", f"correct classes.{name}.gres and gpus")
        return
    smi = shutil.which("nvidia-smi")
    if smi is None:
        fix = "install the driver on this node, or ignore this if its GPUs are fake"
        yield warn(check, f"GPU {given} was given, but there is no nvidia-smi", fix)
        return
    said = subprocess.run([smi, "-L"], capture_output=True, text=True, check=False, timeout=LIMIT_S).stdout.strip()
    yield good(check, f"GPU {given}: {said.splitlines()[0] if said else 'nvidia-smi lists none'}")


def _space(name: str, shm_bytes: int) -> Iterator[Finding]:
    shm = Path("/dev/shm")
    if shm_bytes and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free < shm_bytes:
        found = f"{shm}: {shutil.disk_usage(shm).free / 1e9:.1f} GB free"
        what = f"{found}, {VERSIONS} versions of the weights need {shm_bytes / 1e9:.1f} GB"
        yield fail(f"{name}: shared memory", what, "ask the administrators to enlarge it, or use a smaller model")
    places = (
        ("shared memory", Path("/dev/shm"), _LITTLE_SHM_GB, "weights need it: ask the administrators to enlarge it"),
        ("scratch", Path(os.environ.get("TMPDIR", "/tmp")), _LITTLE_SCRATCH_GB, "set scratch in the site file"),
    )
    for what, path, least_gb, fix in places:
        check = f"{name}: {what}"
        if not os.access(path, os.W_OK):
            yield fail(check, f"{path} can't be written", fix)
            continue
        free_gb = shutil.disk_usage(path).free / 1e9
        found = f"{path}: {free_gb:.1f} GB free"
        yield good(check, found) if free_gb >= least_gb else warn(check, found, fix)


def _caches(name: str) -> Iterator[Finding]:
    """Compiler caches and downloaded models: both need a directory that the node can see."""
    check = f"{name}: caches"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache if cache.is_dir() else cache.parent
    if not os.access(place, os.W_OK):
        fix = "set XDG_CACHE_HOME to a writable directory in the site's prologue"
        yield warn(check, f"{cache} can't be written from here: every start compiles everything again", fix)
        return
    hub = Path(os.environ.get("HF_HOME") or cache / "huggingface")
    models = f"models are in {hub}" if hub.is_dir() else "no hub cache, so set model.path to a directory"
    yield good(check, f"{cache} can be written; jobs download nothing; {models}")


def meet_others(site: SiteConfig, name: str, token: str, hub: tuple[str, int]) -> Iterator[Finding]:
    """Check the control port, then the data interface of every other class."""
    address, listener = "", socket.socket()
    try:
        interface = site.network.data or site.network.control
        address = address_of(interface)
        listener = listen_tcp(address, site.network.ports)
        yield loopback_finding(f"{name}: data interface", "network.data", interface, address)
        echo(listener, token)
    except SiteError as error:
        yield fail(f"{name}: data interface", error.what, error.fix)
    with closing(listener):
        try:
            caller = Caller(socket.create_connection(hub, timeout=LIMIT_S))
        except OSError as error:
            fix = "set network.control to an interface that reaches it, or open network.ports in the firewall"
            yield fail(f"{name}: control port", f"{hub[0]}:{hub[1]} can't be reached: {error.strerror or error}", fix)
            return
        yield good(f"{name}: control port", f"{hub[0]}:{hub[1]} can be reached")
        caller.send(token=token, name=name, address=address, port=listener.getsockname()[1] if address else 0)
        peers = caller.receive().get("peers", {})
        for peer, (where, port) in peers.items():
            reason = dial(where, port, token) if where and peer != name else ""
            if reason:
                fix = "set network.data to an interface that reaches it, or open ports between the nodes"
                yield fail(f"{name}: data interface", f"{peer} at {where} can't be reached: {reason}", fix)
        caller.send(done=True)
        caller.receive()  # bye
        caller.close()


def loopback_finding(check: str, key: str, interface: str, address: str) -> Finding:
    if address.startswith("127.") and not interface.startswith(_LOOPBACK):
        return fail(check, f"the address is {address}: other nodes can't reach it", f"set {key} in the site file")
    return good(check, f"{address} ({interface or 'address of the host name'})")


def _host() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def main() -> int:
    directory, canary, name, address, port = sys.argv[1:6]
    folder = Folder(Path(directory))
    shared = shared_finding(folder, name, canary)
    _print(shared)
    if shared.level == "fail":
        return 0
    site = folder.read_site()
    checked = look_at_node(site, name, folder.read_need())
    for finding in (*checked, *meet_others(site, name, folder.read_token(), (address, int(port)))):
        _print(finding)
    return 0


def _print(finding: Finding) -> None:
    print(json.dumps(finding.as_dict()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
