"""The documents show what the commands print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.model
def test_documents_show_what_commands_print(smollm2_path: Path, gemma3_path: Path) -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "docs.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
