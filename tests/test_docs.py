"""The documents show what the commands print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from glassbox.model.architectures import ARCHITECTURES, GGUF
from glassbox.text.pretokenizers import PRE_TOKENIZERS
from glassbox.weights.quant import FORMATS

ROOT = Path(__file__).parent.parent


@pytest.mark.model
@pytest.mark.slow
def test_documents_show_what_commands_print(smollm2_path: Path, gemma3_path: Path) -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "docs.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_names_all_that_is_supported() -> None:
    block = (ROOT / "README.md").read_text().partition("<!-- run: python tools/supported.py -->\n```text\n")[2]
    shown = block.partition("```")[0]
    done = subprocess.run([sys.executable, ROOT / "tools" / "supported.py"], capture_output=True, text=True, check=True)
    assert shown == done.stdout
    words = set(re.split(r"[,\s]+", shown))
    assert not {*ARCHITECTURES, *GGUF, *FORMATS, *PRE_TOKENIZERS} - words
