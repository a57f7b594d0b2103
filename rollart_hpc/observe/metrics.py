"""The metrics of a run. Owns the format of metrics.jsonl and its TensorBoard copy.

A line is a step, a validation or an event, as its `kind` says. It is written by one system call, so a reader sees
complete lines, except perhaps a last one that a crash tore. `read` skips that one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.files import disk_errors, mend
from rollart_hpc.observe.tensorboard import EventFile
from rollart_hpc.vocabulary import EventKind, LineKind

log = logging.getLogger(__name__)


def _plain(value: Any) -> Any:
    """numpy scalars become numbers."""
    if hasattr(value, "item"):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} can't be a metric")


class MetricsLog:
    """Appends to metrics.jsonl. A full or failing disk raises a SiteError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)
        with disk_errors(path):
            mend(path)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def step(self, line: dict[str, Any]) -> None:
        self._append({"kind": LineKind.STEP, **line})

    def validation(self, line: dict[str, Any]) -> None:
        self._append({"kind": LineKind.VALIDATION, **line})

    def event(self, what: EventKind, *, time_s: float, name: str = "", detail: str = "", **more: Any) -> None:
        self._append({"kind": LineKind.EVENT, "time_s": time_s, "what": what, "name": name, "detail": detail, **more})

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, line: dict[str, Any]) -> None:
        data = self._encoder.encode(line) + b"\n"
        with disk_errors(self._path):
            written = os.write(self._fd, data)
            if written < len(data):  # the disk filled up in the middle of the line and left it torn
                os.write(self._fd, data[written:])


def read(path: Path) -> list[dict[str, Any]]:
    """All complete lines; none if there is no file. Torn lines are skipped, and a warning gives their number."""
    try:
        lines, num_torn = parse(path.read_bytes())
    except FileNotFoundError:
        return []
    if num_torn:
        log.warning("%s: skipped %d torn lines", path, num_torn)
    return lines


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines, one at a time; none if there is no file."""
    try:
        with path.open("rb") as file:
            for row in file:
                yield from parse(row)[0]
    except FileNotFoundError:
        return


def parse(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """The complete lines, and the number of torn ones."""
    lines: list[dict[str, Any]] = []
    num_torn = 0
    for row in filter(None, data.split(b"\n")):
        try:
            line = msgspec.json.decode(row)
        except (msgspec.DecodeError, UnicodeDecodeError):
            line = None
        if isinstance(line, dict):
            lines.append(line)
        else:
            num_torn += 1
    return lines, num_torn


def of_kind(lines: Iterable[dict[str, Any]], kind: LineKind) -> list[dict[str, Any]]:
    return [line for line in lines if line.get("kind") == kind]


def surviving_steps(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps in order, without those that a restore rolled back: a later line of a version voids all earlier lines of
    that version and newer ones."""
    chain: list[dict[str, Any]] = []
    for line in of_kind(lines, LineKind.STEP):
        while chain and chain[-1].get("version", 0) >= line.get("version", 0):
            chain.pop()
        chain.append(line)
    return chain


def surviving_validations(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without those of versions that a restore rolled back. If a version was validated twice, the later one counts."""
    kept: dict[tuple[int, str], dict[str, Any]] = {}
    for line in lines:
        version = line.get("version", 0)
        if line.get("kind") == LineKind.STEP:
            kept = {key: other for key, other in kept.items() if key[0] < version}
        elif line.get("kind") == LineKind.VALIDATION:
            kept[version, line.get("task", "")] = line
    return list(kept.values())


class Board:
    """A copy of the metrics for TensorBoard. If it can't be written, the run continues without it."""

    def __init__(self, directory: Path) -> None:
        self._file: EventFile | None = None
        try:
            self._file = EventFile(directory)
        except OSError as error:
            log.warning("can't write TensorBoard files, continuing without them: %s", error)

    def step(self, line: dict[str, Any]) -> None:
        self._add("train", line, line.get("version", 0))

    def validation(self, line: dict[str, Any]) -> None:
        figures: dict[str, Any] = {key: line[key] for key in ("success", "reward", "turns") if key in line}
        self._add(f"validation/{line.get('task', '')}", figures, line.get("version", 0))

    def _add(self, prefix: str, figures: dict[str, Any], version: int) -> None:
        if self._file is None:
            return
        try:
            self._file.add(version, dict(_scalars(prefix, figures)))
        except OSError as error:
            log.warning("can't write TensorBoard files any longer, continuing without them: %s", error)
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _scalars(prefix: str, figures: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in figures.items():
        if isinstance(value, dict):
            yield from _scalars(f"{prefix}/{key}", value)
        elif isinstance(value, int | float) and key not in ("step", "version", "attempt"):
            yield f"{prefix}/{key}", float(value)
