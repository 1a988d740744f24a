"""Where a model keeps its chat templates. Comes in: a GGUF file's metadata, or a folder. Goes out: {name: source}.

The one without a name is "default". But: it parses none of them, and says nothing of which one is used (templates.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassbox.errors import ModelFormatError
from glassbox.text.files import is_there, read_json, read_text

KEY = "tokenizer.chat_template"
NAMES = "tokenizer.chat_templates"
CONFIG = "tokenizer_config.json"
FILE, MORE = "chat_template.jinja", "additional_chat_templates"
MOST_BYTES = 1 << 20  # of a template's file
MOST_CONFIG = 1 << 26  # bytes; it lists every added token
MOST_TEMPLATES = 64


def templates_from_gguf(metadata: Mapping[str, Any]) -> dict[str, str]:
    """`tokenizer.chat_template`, and `tokenizer.chat_template.NAME` for each name. Raises ModelFormatError."""
    names = metadata.get(NAMES, [])
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ModelFormatError("must be a list of strings", field=NAMES)
    found = {}
    for field, source in metadata.items():
        if field == KEY or field.startswith(KEY + "."):
            if not isinstance(source, str):
                raise ModelFormatError("must be a string", field=field)
            found[field[len(KEY) + 1 :] or "default"] = source
    for name in names:
        if name not in found:
            raise ModelFormatError(f"names {name!r}, but there is no {KEY}.{name}", field=NAMES)
    return _few(found, NAMES)


def templates_from_folder(path: Path) -> dict[str, str]:
    """As transformers reads a folder: files of their own, where there are any, replace what tokenizer_config.json has.

    Raises ModelFormatError, naming the file.
    """
    found = {}
    if is_there(path, FILE):
        found["default"] = read_text(path, FILE, MOST_BYTES)
    if (path / MORE).is_dir():
        for file in sorted((path / MORE).glob("*.jinja")):
            found[file.name.removesuffix(".jinja")] = read_text(path, f"{MORE}/{file.name}", MOST_BYTES)
    if not found and is_there(path, CONFIG):
        found = _in_config(path)
    return _few(found, str(path))


def _in_config(path: Path) -> dict[str, str]:
    value = read_json(path, CONFIG, MOST_CONFIG).get("chat_template")
    if value is None:
        return {}
    if isinstance(value, list):
        pairs = [(t.get("name"), t.get("template")) if isinstance(t, dict) else (None, None) for t in value]
    else:
        pairs = list(value.items()) if isinstance(value, dict) else [("default", value)]
    found = {}
    for name, source in pairs:
        if not isinstance(name, str) or not isinstance(source, str):
            why = "must be a string, or a list of objects with name and template"
            raise ModelFormatError(why, field="chat_template", path=str(path / CONFIG))
        found[name] = source
    return found


def read_template(path: Path, most: int = MOST_BYTES) -> str:
    """The text of a file that a person named, wherever it lies, if it is not too long. Raises ModelFormatError."""
    try:
        with path.open("rb") as f:
            data = f.read(most + 1)
    except OSError as e:
        raise ModelFormatError(f"cannot be read: {e.strerror or e}", field=path.name, path=str(path)) from None
    if len(data) > most:
        raise ModelFormatError(f"has more than {most:,} bytes", field=path.name, path=str(path))
    try:
        return data.decode("utf-8-sig")  # some editors put a mark in front
    except UnicodeDecodeError as e:
        raise ModelFormatError("is not UTF-8", field=path.name, offset=e.start, path=str(path)) from None


def _few(found: dict[str, str], field: str) -> dict[str, str]:
    if len(found) > MOST_TEMPLATES:
        raise ModelFormatError(f"{len(found)} chat templates, more than {MOST_TEMPLATES}", field=field)
    return found
