"""A test that asks another engine is left out where that is not installed, and never where it was asked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = """
import pytest

@pytest.mark.oracle("json", "no_such_engine")
def test_asks(): pass

@pytest.mark.oracle("json")
def test_can_ask(): pass

def test_usual(): pass
"""


def outcome(folder: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_it.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout.strip().rpartition("\n")[2].partition(" in ")[0]


@pytest.mark.slow
def test_a_skip_fails_where_it_is_forbidden(tmp_path: Path) -> None:
    shutil.copy(HERE / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers = oracle(modules)\npythonpath = {HERE}\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    assert outcome(tmp_path) == (0, "2 passed, 1 skipped")
    assert outcome(tmp_path, "-m", "oracle") == (0, "1 passed, 1 skipped, 1 deselected")
    assert outcome(tmp_path, "-m", "oracle", "--no-skips") == (1, "1 passed, 1 deselected, 1 error")
    (tmp_path / "test_it.py").write_text("import pytest\npytest.importorskip('no_such_engine')\n" + TESTS)
    assert outcome(tmp_path) == (5, "1 skipped")
    assert outcome(tmp_path, "-m", "oracle", "--no-skips")[0] in (1, 2)  # a whole file that leaves itself out


def test_nothing_leaves_itself_out_unmarked() -> None:
    """Else `make oracles` would not run it."""
    word = "import" + "orskip("
    assert [p.name for p in HERE.glob("*.py") if word in p.read_text("utf-8")] == [Path(__file__).name]
