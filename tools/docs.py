"""Fills the documents with the real output of commands, and checks that they have not drifted.

    python tools/docs.py [NAME…]    run every command and write its output below it
    python tools/docs.py --check    run those that are the same everywhere and compare; exit 1 on drift

A command stands in a comment, its output in the fenced block after it:

    <!-- run: glassbox tokenize "Hello" -->      compared but for lines about time, places and run ids
    <!-- measure: glassbox bench -->             written, never compared: it depends on the machine
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"<!-- (?P<kind>run|measure): (?P<command>.*?) -->\n```(?P<lang>\w*)\n(?P<output>.*?)```\n", re.DOTALL
)
VOLATILE = re.compile(r"^(time |speed |run |look in |engine |machine )|\d threads$")


def output_of(command: str, folder: str) -> str:
    """What a command prints, run from the project's root with a store of its own."""
    words = shlex.split(command)
    if words[0] == "glassbox":
        words = [sys.executable, "-c", "from glassbox.cli.main import main; main()", *words[1:]]
    elif words[0].startswith("python"):
        words[0] = sys.executable
    env = {**os.environ, "XDG_DATA_HOME": folder, "COLUMNS": "80"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=env)
    if done.returncode:
        raise SystemExit(f"{command}: exit {done.returncode}: {done.stderr.strip()}")
    lines = done.stdout.replace(folder, "~/.local/share").rstrip().splitlines()
    return "".join(line.rstrip() + "\n" for line in lines)


def stable(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if not VOLATILE.search(line)]


def filled(document: Path, check: bool) -> tuple[str, list[str]]:
    """The document with every output made anew, and the commands whose output has changed."""
    drifted: list[str] = []
    with tempfile.TemporaryDirectory() as folder:

        def fill(block: re.Match[str]) -> str:
            if check and block["kind"] == "measure":
                return block[0]
            output = output_of(block["command"], folder)
            if stable(output) != stable(block["output"]):
                drifted.append(block["command"])
            return f"<!-- {block['kind']}: {block['command']} -->\n```{block['lang']}\n{output}```\n"

        return BLOCK.sub(fill, document.read_text()), drifted


def main(words: list[str]) -> int:
    check, names = "--check" in words, [w for w in words if w != "--check"]
    if unknown := [n for n in names if n not in {d.name for d in DOCUMENTS}]:
        print(f"usage: python tools/docs.py [--check] [NAME…], not {unknown[0]!r}", file=sys.stderr)
        return 2
    code = 0
    for document in DOCUMENTS:
        if names and document.name not in names:
            continue
        text, drifted = filled(document, check)
        if not check:
            document.write_text(text)
            continue
        for command in drifted:
            print(f"{document.name}: the output of `{command}` has changed")
            code = 1
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
