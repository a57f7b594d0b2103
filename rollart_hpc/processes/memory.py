"""How the C library manages the memory of a process with hundreds of megabytes of small, short-lived objects."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_TUNABLES = "GLIBC_TUNABLES"
_HUGE_PAGES = "glibc.malloc.hugetlb=1"  # since glibc 2.35; older ones, and other C libraries, ignore it
_M_TRIM_THRESHOLD, _M_TOP_PAD = -1, -2  # malloc.h
_KEPT_BYTES, _GROWTH_BYTES = 1 << 30, 16 << 20


def huge_pages() -> dict[str, str]:
    """Variables for a process whose heap asks the kernel for huge pages: fewer page faults while it grows, and fewer
    misses of the address cache once it is large. The C library reads them before the program starts."""
    known = os.environ.get(_TUNABLES, "")
    if "glibc.malloc.hugetlb" in known:
        return {}
    return {_TUNABLES: ":".join(filter(None, (known, _HUGE_PAGES)))}


def keep_freed_memory() -> None:
    """A step frees thousands of payloads. glibc would return their pages to the system, which clears them again for the
    payloads of the next step."""
    with suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TOP_PAD, _GROWTH_BYTES)
