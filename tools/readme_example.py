"""Runs the Python example of README.md, so that what stands below it is what it prints."""

from __future__ import annotations

import re
from pathlib import Path

text = (Path(__file__).parent.parent / "README.md").read_text()
example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
assert example is not None
exec(example[1])
