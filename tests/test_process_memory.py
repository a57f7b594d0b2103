from __future__ import annotations

import pytest

from rollart_hpc.processes.memory import huge_pages


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ("", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
        ("glibc.malloc.check=3", {"GLIBC_TUNABLES": "glibc.malloc.check=3:glibc.malloc.hugetlb=1"}),
        ("glibc.malloc.hugetlb=0", {}),
    ],
)
def test_huge_pages_keep_what_the_user_set(
    monkeypatch: pytest.MonkeyPatch, known: str, expected: dict[str, str]
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", known)
    assert huge_pages() == expected
