"""An open folder with config.json and safetensors. Comes in: a path. Goes out: `Folder`, the same face as a GGUF file.

Files come from the folder alone: a name with a path in it, or a link that leads out of it, is refused (a link into the
store of the hub's own cache is what that cache is made of). It does not interpret the configs, decode weights or read
tokenizers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassbox.errors import ModelFormatError, ModelNotFound
from glassbox.text.files import member as member
from glassbox.weights.checkpoint import OpenFile, Stored
from glassbox.weights.header import TensorInfo, printable
from glassbox.weights.kinds import refuse_adapter, refuse_folder, refuse_framework
from glassbox.weights.safetensors import read_safetensors
from glassbox.weights.strict_json import parse_json

CONFIG, GENERATION, WHOLE, INDEX = (
    "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
)  # fmt: skip
# What says how text becomes ids: one of the first three is there where the folder has a tokenizer at all.
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")
TOKENIZER = (
    *VOCABULARIES, "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
MAX_JSON = 16 << 20

Homes = dict[str, tuple[TensorInfo, OpenFile]]


class Folder(Stored):
    """An open folder: `config` and `generation_config` are plain dicts, `tensors` has the names of the files."""

    def __init__(
        self, path: Path, files: Sequence[Path], config: dict[str, Any], generation_config: dict[str, Any],
        homes: Homes, notes: Mapping[str, str],
    ) -> None:  # fmt: skip
        super().__init__(path, files, homes)
        self.config, self.generation_config = config, generation_config
        self.metadata: dict[str, Any] = {}  # what a GGUF file has
        self.notes = dict(notes)  # what the safetensors files say of themselves

    def __repr__(self) -> str:
        return f"<Folder {self.path.name}: {len(self.tensors)} tensors in {len(self.files) - 1} files>"


def read_folder(path: str | Path) -> Folder:
    """Open and check a folder. Raises ModelNotFound, Unsupported, or ModelFormatError (with field and offset)."""
    path = Path(path)
    names = _listed(path)
    single = WHOLE in names
    if not single and INDEX not in names:
        refuse_folder(path, names)
    refuse_adapter(path, names)
    if CONFIG not in names:
        raise ModelNotFound(str(path), f"holds no {CONFIG}, so nobody can tell what its tensors are")
    config = read_object(path, CONFIG)
    if not config:
        raise ModelFormatError("says nothing", field=CONFIG, offset=0, path=str(path / CONFIG))
    generation = read_object(path, GENERATION) if GENERATION in names else {}
    shards = {WHOLE: None} if single else shards_of(path)
    homes: Homes = {}
    notes: dict[str, str] = {}
    for name, wanted in shards.items():
        if name not in names:
            raise ModelNotFound(str(path / name), f"no such file, but {INDEX} names it")
        file = OpenFile(member(path, name), "a safetensors file")
        tensors, said = read_safetensors(file)
        refuse_framework(file.path, said)
        notes |= said
        if wanted is not None:
            _same(file.path, wanted, set(tensors))
        homes |= {t: (info, file) for t, info in tensors.items()}
    files = [path / name for name in (CONFIG, *((INDEX,) if not single else ()), *sorted(shards))]
    return Folder(path, files, config, generation, homes, notes)


def has_tokenizer(path: Path) -> bool:
    """Whether a folder holds a vocabulary."""
    return any((path / name).exists() for name in VOCABULARIES)


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object in a folder. Raises ModelNotFound or ModelFormatError."""
    file = OpenFile(member(folder, name), "a JSON file")
    try:
        if file.size > MAX_JSON:
            raise ModelFormatError(f"has {file.size} bytes, over the limit of {MAX_JSON}", field=name, offset=0)
        found = parse_json(file.take(0, file.size, name), name)
        if type(found) is not dict:
            raise ModelFormatError("must be an object", field=name, offset=0)
    except ModelFormatError as e:
        raise ModelFormatError(e.why, field=e.field, offset=e.offset, path=str(file.path)) from None
    return found


def _listed(path: Path) -> set[str]:
    try:
        return set(os.listdir(path))
    except FileNotFoundError:
        raise ModelNotFound(str(path), "no such folder") from None
    except NotADirectoryError:
        raise ModelNotFound(str(path), "is a file, not a folder") from None
    except (OSError, ValueError) as e:
        raise ModelNotFound(str(path), f"cannot be read ({getattr(e, 'strerror', None) or e})") from None


def shards_of(folder: Path) -> dict[str, set[str]]:
    """Of each file that the index names, the tensors that it must hold. Raises ModelNotFound or ModelFormatError."""
    where = str(folder / INDEX)
    table = read_object(folder, INDEX).get("weight_map")
    if type(table) is not dict or not table or not all(type(v) is str for v in table.values()):
        raise ModelFormatError("must be an object of file names", field="weight_map", offset=0, path=where)
    found: dict[str, set[str]] = {}
    for tensor, name in table.items():
        if not name.endswith(".safetensors") or any(c in name for c in "/\\:\0"):
            shown = printable(name)
            why = f"names the file {shown!r}, but only a .safetensors file in this folder can be meant"
            raise ModelFormatError(why, field=f"weight_map {printable(tensor)}", offset=0, path=where)
        found.setdefault(name, set()).add(tensor)
    return found


def _same(shard: Path, wanted: set[str], found: set[str]) -> None:
    """What the index says of a shard, and what is there."""
    for name in sorted(wanted ^ found)[:1]:
        why = f"is not in this file, but {INDEX} says so" if name in wanted else f"is in this file, but {INDEX} differs"
        raise ModelFormatError(why, field=printable(name), offset=8, path=str(shard))


def eos_ids(file: Folder) -> tuple[int, ...]:
    """The ids that end a generation, as the configs name them. Raises ModelFormatError."""
    found: set[int] = set()
    for name, config in ((GENERATION, file.generation_config), (CONFIG, file.config)):
        value = config.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int and i >= 0 for i in ids):
            why = f"eos_token_id is {value!r:.60}, but must be an id or a list of ids"
            raise ModelFormatError(why, field=name, path=str(file.path))
        found.update(ids)
    return tuple(sorted(found))
