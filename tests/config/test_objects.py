from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollart_hpc.config.objects import resolve
from rollart_hpc.errors import UserError


def test_modules_and_files(tmp_path: Path) -> None:
    assert resolve("collections:OrderedDict").__name__ == "OrderedDict"
    file = tmp_path / "with space.py"
    file.write_text("from dataclasses import dataclass\n@dataclass\nclass Thing:\n    x: int = 1\n")
    thing = resolve(f"{file}:Thing")
    assert thing().x == 1 and resolve("with space.py:Thing", tmp_path) is thing


@pytest.mark.parametrize(
    ("reference", "words"),
    [("nothing", "is not a reference"), (":Thing", "is not a reference"), ("collections:", "is not a reference"),
     ("no_such_module_here:Thing", "there is no module no_such_module_here"),
     ("collections.missing:Thing", "there is no module collections.missing"),
     ("collections:Missing", "has no Missing"), ("collections:abc", "not a class or function"),
     ("/no/such/file.py:Thing", "there is no file /no/such/file.py")],
)  # fmt: skip
def test_clear_errors(reference: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        resolve(reference)


def test_broken_modules(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("raise RuntimeError('oops')")
    (tmp_path / "imports.py").write_text("import no_such_module_here")
    (tmp_path / "syntax.py").write_text("def")
    for name, words in [
        ("raises", "RuntimeError: oops"),
        ("imports", "no_such_module_here"),
        ("syntax", "SyntaxError"),
    ]:
        with pytest.raises(UserError, match=words):
            resolve(f"{name}.py:Thing", tmp_path)


def test_a_file_imports_its_neighbours_and_not_those_of_another_task(tmp_path: Path) -> None:
    for place in ("one", "two"):
        directory = tmp_path / place
        (directory / "parts").mkdir(parents=True)
        (directory / "helper.py").write_text(f"import deeper\nWHERE = {place!r}\n")
        (directory / "deeper.py").write_text(f"NAME = 'deeper ' + {place!r}\n")
        (directory / "late.py").write_text(f"WHERE = 'late ' + {place!r}\n")
        (directory / "random.py").write_text("raise RuntimeError('the standard library comes first')\n")
        (directory / "parts" / "__init__.py").write_text("")
        (directory / "parts" / "inner.py").write_text("from helper import WHERE\n")
        (directory / "task.py").write_text(
            "import helper\nimport random\nimport parts.inner\nfrom parts import inner as again\nfrom . import deeper\n"
            "def told():\n    import late\n    assert again is parts.inner\n"
            "    return helper.WHERE, helper.deeper.NAME, deeper.NAME, parts.inner.WHERE, late.WHERE\n"
        )
    for place in ("one", "two"):
        expected = (place, f"deeper {place}", f"deeper {place}", place, f"late {place}")
        assert resolve("task.py:told", tmp_path / place)() == expected
    assert not {"helper", "deeper", "late", "parts"} & set(sys.modules)


def test_a_neighbour_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("import helpless\n")
    with pytest.raises(UserError, match="No module named 'helpless'"):
        resolve("task.py:Thing", tmp_path)


def test_threads_wait_for_a_slow_import(tmp_path: Path) -> None:
    """`isolation: shared` resolves the same file in many threads at once."""
    file, start = tmp_path / "slow.py", threading.Barrier(16)
    file.write_text(
        "import sys, time\nsys.rollart_imports = getattr(sys, 'rollart_imports', 0) + 1\ntime.sleep(0.3)\n"
        "class Thing:\n    pass\n"
    )

    def find(_: int) -> object:
        start.wait(60)
        return resolve(f"{file}:Thing")

    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(find, range(16)))) == 1
    assert vars(sys).pop("rollart_imports") == 1
