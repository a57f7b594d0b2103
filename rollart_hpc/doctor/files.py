"""The doctor's directory on the shared file system: the input of its job, and the results."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from rollart_hpc.config.site import SiteConfig
from rollart_hpc.files import read_json, write_atomic, write_json
from rollart_hpc.launch.finding import Finding


@dataclass(frozen=True)
class Folder:
    path: Path

    @property
    def log(self) -> Path:
        return self.path / "job.log"

    @property
    def started(self) -> Path:
        """Written by the shell of the job, before Python starts."""
        return self.path / "started"

    def write_site(self, site: SiteConfig) -> None:
        write_json(self.path / "site.json", asdict(site))

    def read_site(self) -> SiteConfig:
        return msgspec.json.decode((self.path / "site.json").read_bytes(), type=SiteConfig)

    def write_need(self, shm_bytes: int) -> None:
        """What the weights take of a node's shared memory; 0 = unknown."""
        write_json(self.path / "need.json", {"shm_bytes": shm_bytes})

    def read_need(self) -> int:
        found = read_json(self.path / "need.json")
        return int(found["shm_bytes"]) if found else 0

    def write_secrets(self, token: str, canary: str) -> None:
        """The token authenticates probes. The canary shows that another node sees the same file."""
        write_atomic(self.path / "token", token)
        write_atomic(self.path / "canary", canary)

    def read_token(self) -> str:
        return (self.path / "token").read_text()

    def has_canary(self, canary: str) -> bool:
        return self._says("canary", canary)

    def mark_seen(self, name: str, canary: str) -> None:
        write_atomic(self.path / f"seen-{name}", canary)

    def was_seen(self, name: str, canary: str) -> bool:
        """Is the file visible here that a node of this class wrote?"""
        return self._says(f"seen-{name}", canary)

    def _says(self, file: str, text: str) -> bool:
        try:
            return (self.path / file).read_text() == text
        except OSError:
            return False

    def write_findings(self, findings: list[Finding]) -> None:
        write_json(self.path / "findings.json", [finding.as_dict() for finding in findings])

    def read_findings(self) -> list[Finding] | None:
        found = read_json(self.path / "findings.json")
        return None if found is None else [Finding(**one) for one in found]
