"""One direction of imports: a stage knows those to its left and nothing of those to its right."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import glassbox

ROOT = Path(glassbox.__file__).parent
# From left to right. A module may import from its own group and from those before it.
ORDER = [
    ("errors", "types", "version"),
    ("text",),
    ("weights",),
    ("cache",),
    ("model",),
    ("policy",),
    ("choose",),
    ("stop",),
    ("outcome",),
    ("draft",),
    ("passes",),
    ("beam",),
    ("request",),
    ("events",),
    ("generation",),
    ("search",),
    ("interrupts",),
    ("engine",),
    ("speed",),
    ("trace",),
    ("provenance",),
    ("defaults",),
    ("stream",),
    ("arguments",),
    ("score",),
    ("opening",),
    ("prompt",),
    ("api",),
    ("bench",),
    ("cli",),
    ("__main__",),
]
PLACE = {name: i for i, group in enumerate(ORDER) for name in group}
PURE = (
    "text",
    "weights",
    "cache",
    "model",
    "policy",
    "choose",
    "stop",
    "passes",
)  # these know nothing of traces, and do not print


def modules() -> list[tuple[str, Path]]:
    """(stage, file) of every module but the package's face."""
    files = [p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py"]
    return [(p.relative_to(ROOT).parts[0].removesuffix(".py"), p) for p in sorted(files)]


def imported(path: Path) -> list[str]:
    """Stages that a file imports, wherever in it the import stands (those for type checkers only are left out)."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("glassbox."):
            names.append(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "glassbox":
            names += [a.name for a in node.names]
        elif isinstance(node, ast.Import):
            names += [a.name.split(".")[1] for a in node.names if a.name.startswith("glassbox.")]
    return names


def test_every_stage_has_its_place() -> None:
    assert {stage for stage, _ in modules()} == set(PLACE)


def test_imports_point_to_the_left() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for stage, path in modules()
        for name in imported(path)
        if name in PLACE and PLACE[name] > PLACE[stage]
    ]
    assert not wrong


def test_stages_do_not_print() -> None:
    for stage, path in modules():
        if stage in PURE and path.name not in ("source.py",):  # source.py shows licence terms when nobody else does
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            assert not [c for c in calls if getattr(c.func, "id", "") == "print"], path


def test_what_is_exported_exists() -> None:
    for name in glassbox.__all__:
        assert getattr(glassbox, name) is not None


def test_files_stay_small() -> None:
    long = [f"{p.relative_to(ROOT)}: {n}" for _, p in modules() if (n := len(p.read_text().splitlines())) > 400]
    assert not long


def test_a_start_with_cached_kernels_imports_no_compiler() -> None:
    code = (
        "import sys, glassbox\n"
        "glassbox.load('bigram').generate('ab', max_tokens=2)\n"
        "from glassbox.model.kernels.build import load; load()\n"
        "bad = sorted({'numba', 'torch', 'transformers', 'sentencepiece', 'huggingface_hub'} & set(sys.modules))\n"
        "assert not bad, bad\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
