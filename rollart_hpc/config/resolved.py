"""The resolved configuration in the run directory: written once by the launcher, read by every role.

Owns its form on disk. Merging, checking and defaults are done before (`config.load`); reading it
back needs neither OmegaConf nor the packaged files, so that a role starts fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import msgspec

from rollart_hpc.config.key_names import as_fields, as_keys
from rollart_hpc.config.moved import moved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.files import write_atomic

Config = TypeVar("Config", RunConfig, SiteConfig)
_HEADER = b"# Resolved by rollart-hpc: the run reads this file and no other configuration.\n"


def write_resolved(path: Path, config: RunConfig | SiteConfig) -> None:
    plain = as_keys(type(config), asdict(config))  # msgspec would leave out some defaults
    write_atomic(path, _HEADER + msgspec.yaml.encode(plain))


def read_resolved(path: Path) -> RunConfig:
    return _read(path, RunConfig)


def read_site(path: Path) -> SiteConfig:
    return _read(path, SiteConfig)


def _read(path: Path, schema: type[Config]) -> Config:
    try:
        raw = msgspec.yaml.decode(path.read_bytes())
        raw = moved(raw, is_resolved=True) if isinstance(raw, dict) else raw
        config = msgspec.convert(as_fields(schema, raw), schema)
    except FileNotFoundError:
        raise UserError(f"{path.parent} is not a run directory: it has no {path.name}", "correct the path") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SiteError(f"{path} is damaged: {error}", "restore it from a backup, or start a new run") from None
    unknown = list(_unknown(raw, as_keys(schema, msgspec.to_builtins(config))))
    if unknown:
        what = f"{path} has keys that this version does not know: {', '.join(unknown)}"
        raise UserError(what, "resume with the version that created the run, or rename the keys (`rollart-hpc keys`)")
    return config


def _unknown(raw: object, known: object, prefix: str = "") -> Iterator[str]:
    """Keys in the file that were not read: a setting must not be dropped silently."""
    if isinstance(raw, dict) and isinstance(known, dict):
        for key, value in raw.items():
            if key not in known:
                yield f"{prefix}{key}"
            else:
                yield from _unknown(value, known[key], f"{prefix}{key}.")
