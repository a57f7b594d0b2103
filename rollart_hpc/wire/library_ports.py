"""Holds libraries that choose ports themselves (gloo, NCCL, UCX) to the range of the site. Does nothing without one.

They have no setting for it: they bind to port 0 and use what the kernel gives them. So the entry for `bind` in the
linkage table of every loaded library is pointed to a function of ours, which binds port 0 to a free port of the range
and passes every other call on. This needs glibc or musl on a 64-bit machine; elsewhere the ports stay as they are.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from rollart_hpc.wire.ports import PORTS_VARIABLE, in_range

log = logging.getLogger(__name__)

_PT_DYNAMIC = 2
_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL = 2, 5, 6, 7, 8, 23
_SYMBOL_BYTES = 24
_FUNCTION_SLOTS = {"x86_64": (6, 7), "aarch64": (1025, 1026)}  # relocations that hold the address of a function
_PROT_READ, _PROT_WRITE = 1, 2
_BIND = b"bind\0"

_libc = ctypes.CDLL(None, use_errno=True)
_Bind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, use_errno=True)
_seen: set[int] = set()  # base addresses of libraries that are held, or don't listen


class _Segment(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("offset", ctypes.c_uint64), ("vaddr", ctypes.c_uint64),
        ("paddr", ctypes.c_uint64), ("filesz", ctypes.c_uint64), ("memsz", ctypes.c_uint64), ("align", ctypes.c_uint64),
    )  # fmt: skip


class _Library(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_uint64), ("name", ctypes.c_char_p), ("segments", ctypes.POINTER(_Segment)),
        ("num_segments", ctypes.c_uint16),
    )  # fmt: skip


def hold_libraries() -> None:
    """Call before a library listens. Libraries that are loaded later need another call."""
    if not os.environ.get(PORTS_VARIABLE):
        return
    types = _FUNCTION_SLOTS.get(os.uname().machine)
    if types is None or sys.maxsize < 2**32:
        log.warning("network.ports does not hold for gloo, NCCL and UCX on a %s", os.uname().machine)
        return
    for base, dynamic in _libraries():
        if base not in _seen:
            _seen.add(base)
            for slot in _slots(base, dynamic, types):
                _redirect(slot)


def _redirect(slot: int) -> None:
    page = slot & ~(os.sysconf("SC_PAGE_SIZE") - 1)
    length = ctypes.c_size_t(slot + 8 - page)
    if _libc.mprotect(ctypes.c_void_p(page), length, _PROT_READ | _PROT_WRITE) == 0:
        ctypes.c_uint64.from_address(slot).value = ctypes.cast(_bind, ctypes.c_void_p).value or 0


def _bind_in_range(handle: int, address: int, length: int) -> int:
    """bind(2). An exception must not leave it: C code would take the call for a success."""
    try:
        family, port = struct.unpack_from("=HH", ctypes.string_at(address, 4))
        if family not in (socket.AF_INET, socket.AF_INET6) or port:
            return _call(handle, ctypes.string_at(address, length))
        for chosen in in_range(os.environ.get(PORTS_VARIABLE, "")):
            raw = bytearray(ctypes.string_at(address, length))
            struct.pack_into("!H", raw, 2, chosen)
            code = _call(handle, bytes(raw))
            if code == 0 or ctypes.get_errno() != errno.EADDRINUSE:
                return code
    except Exception:
        log.exception("a library could not be given a port")
        ctypes.set_errno(errno.EINVAL)
    return -1


_bind = _Bind(_bind_in_range)  # must live as long as the process


def _call(handle: int, address: bytes) -> int:
    return int(_libc.bind(handle, address, len(address)))


def _libraries() -> list[tuple[int, int]]:
    """Base address and dynamic section of every loaded library."""
    found: list[tuple[int, int]] = []

    def look(library: Any, _size: int, _data: int) -> int:
        own = library.contents
        segments = (own.segments[i] for i in range(own.num_segments))
        found.extend((own.base, own.base + each.vaddr) for each in segments if each.type == _PT_DYNAMIC)
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)
    _libc.dl_iterate_phdr(kind(look), None)
    return found


def _slots(base: int, dynamic: int, types: tuple[int, ...]) -> Iterator[int]:
    """Addresses that hold the library's pointer to `bind`."""
    entries: dict[int, int] = {}
    while (tag := ctypes.c_int64.from_address(dynamic).value) != 0:
        entries.setdefault(tag, ctypes.c_uint64.from_address(dynamic + 8).value)
        dynamic += 16
    if _DT_SYMTAB not in entries or _DT_STRTAB not in entries:
        return
    symbols, strings = (_absolute(entries[tag], base) for tag in (_DT_SYMTAB, _DT_STRTAB))
    for table, size in ((_DT_JMPREL, _DT_PLTRELSZ), (_DT_RELA, _DT_RELASZ)):
        if not entries.get(table) or not entries.get(size):
            continue
        count = entries[size] // 24
        raw = (ctypes.c_uint64 * (3 * count)).from_address(_absolute(entries[table], base))
        rows = np.frombuffer(memoryview(raw).cast("B"), np.uint64).reshape(count, 3)
        for offset, info in rows[np.isin(rows[:, 1] & np.uint64(0xFFFFFFFF), types)][:, :2].tolist():
            name = ctypes.c_uint32.from_address(symbols + (info >> 32) * _SYMBOL_BYTES).value
            if ctypes.string_at(strings + name, len(_BIND)) == _BIND:
                yield base + offset


def _absolute(address: int, base: int) -> int:
    """The loader has made most of these addresses absolute, but not those of every library."""
    return address if address >= base else address + base
