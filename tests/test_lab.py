"""The lab runs from a bare checkout, with the standard library alone, and its table is the engine's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from glassbox.model.bigram import LOGITS, TOKENS

ROOT = Path(__file__).parents[1]


def bare(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python without the environment's packages (-S) or its variables (-E), at the top of the checkout."""
    command = [sys.executable, "-S", "-E", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_bare_means_that_nothing_installed_can_be_imported() -> None:
    assert "No module named 'numpy'" in bare("-c", "import numpy").stderr


def test_the_lab_s_own_tests_pass() -> None:
    done = bare("-m", "unittest", "labs.glassbox.test_glassbox", "-v")
    assert done.returncode == 0, done.stderr
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    assert ran and int(ran[1]) >= 30 and done.stderr.endswith("OK\n")


def test_the_trace_goes_from_text_to_token() -> None:
    done = bare("-m", "labs.glassbox.v4_token_trace")
    assert (done.returncode, done.stderr) == (0, "")
    stages = [
        "text           'ab'",
        "token ids      [1, 2]",
        "logit",
        "probability",
        "u = 0.3238",
        "token 'c'",
    ]
    places = [done.stdout.index(stage) for stage in stages]
    assert places == sorted(places)
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


@pytest.mark.parametrize("arguments", [["hello"], [""], ["ab", "--temperature", "nan"]], ids=str)
def test_bad_input_is_one_line(arguments: list[str]) -> None:
    done = bare("-m", "labs.glassbox.v4_token_trace", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_the_readme_shows_what_the_lab_computes() -> None:
    readme = (ROOT / "labs/glassbox/README.md").read_text("utf-8")
    script = (
        "from labs.glassbox.v4_token_trace import generate_one as g; s = g('ab', 0.8, 7);"
        "print(s.logits, '[' + ', '.join(f'{p:.4f}' for p in s.probabilities) + ']', sep='\\n')"
    )
    done = bare("-c", script)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert f"`{line}`" in readme


def test_the_engine_s_bigram_model_is_the_same_table() -> None:
    script = "from labs.glassbox.v4_token_trace import BIGRAM_LOGITS as t, TOKENS; print([*map(list, t)], TOKENS)"
    assert bare("-c", script).stdout.strip() == f"{LOGITS.tolist()} {TOKENS}"
