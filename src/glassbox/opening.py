"""What a name or a path stands for, before and beside a model: its tokenizer, what its file says, empty caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glassbox import arguments as check
from glassbox.cache.pages import Cache
from glassbox.cache.prefix import PrefixStore
from glassbox.errors import Unsupported
from glassbox.model.bigram import METADATA
from glassbox.model.model import AnyModel
from glassbox.provenance import folder_metadata
from glassbox.text.absent import NoTokenizer
from glassbox.text.segments import Segment
from glassbox.text.template import ChatTemplate
from glassbox.text.templates import GIVEN
from glassbox.text.tokenizer import Encoding, Tokenizer
from glassbox.weights.gguf import Gguf
from glassbox.weights.hf import Folder, eos_ids, has_tokenizer
from glassbox.weights.opening import open_checkpoint
from glassbox.weights.source import resolve


def load_tokenizer(name: str | Path) -> Tokenizer:
    """The tokenizer of a model, or of a file that holds a vocabulary and no weights: a .gguf, a tokenizer.json or a
    tokenizer.model. Raises as `load` does.
    """
    path = _path_of(name)
    if path is None:
        return Tokenizer.from_gguf(METADATA)
    return Tokenizer.from_folder(path) if _of_folder(path) else Tokenizer.from_gguf(open_checkpoint(path).metadata)


def metadata_of(name: str | Path) -> Mapping[str, Any]:
    """The metadata of a model's file, or what a folder says under the same keys. Raises as `load` does."""
    path = _path_of(name)
    if path is None:
        return METADATA
    if _of_folder(path):
        return folder_metadata(path if path.is_dir() else path.parent, {})
    return open_checkpoint(path).metadata


def _of_folder(path: Path) -> bool:
    """Whether a path is of a folder as transformers writes it, or of the tokenizer in one."""
    return path.is_dir() or path.name in ("tokenizer.json", "tokenizer.model")


def _path_of(name: str | Path) -> Path | None:
    """None for what is built in."""
    return None if str(name) == "bigram" else resolve(str(name))


def said_by(file: Gguf | Folder) -> Mapping[str, Any]:
    """The metadata of a GGUF file, or what a folder says under the same keys."""
    if not isinstance(file, Folder):
        return file.metadata
    return folder_metadata(file.path, file.generation_config) | {"generation_config": file.generation_config}


def tokenizer_of(file: Gguf | Folder) -> Tokenizer:
    """Of a folder that holds none, or one that is not supported, a NoTokenizer. Raises as `load` does."""
    if isinstance(file, Gguf):
        return Tokenizer.from_gguf(file.metadata)
    if not has_tokenizer(file.path):
        return NoTokenizer(eos_ids(file))
    try:
        return Tokenizer.from_folder(file.path)
    except Unsupported as e:
        return NoTokenizer(eos_ids(file), e)


def chat_of(options: check.ChatOptions, template: ChatTemplate) -> dict[str, Any]:
    """What a trace says of a chat beside its messages: all that was given, and the template's name."""
    said = {name: value for name, value in options.items() if value is not None}
    return said | {"template": template.name} | ({"source": template.source} if template.name == GIVEN else {})


def prefix_store(model: AnyModel, sha256: str) -> PrefixStore | None:
    """Where a model's computed prompts are kept; None for a model that has no keys and values."""
    pool = model.new_cache().pool
    if not pool.shape.groups:
        return None
    store = PrefixStore(pool, ["model", sha256, "engine", model.fingerprint, "kv", pool.shape.kind])
    pool.reclaim = store.evict
    return store


@contextmanager
def fresh_cache(model: AnyModel) -> Iterator[Cache]:
    """An empty cache whose pages are given back."""
    cache = model.new_cache()
    try:
        yield cache
    finally:
        cache.release()


def encoding_of(ids: Sequence[int], tokenizer: Tokenizer) -> Encoding:
    """Ids that somebody gave, as an encoding: their text is what the vocabulary says they are."""
    vocab, spans, at = tokenizer.vocab, [], 0
    for i in ids:
        size = len(vocab.bytes_of(i)) if 0 <= i < len(vocab) else 0
        spans.append((at, at + size))
        at += size
    text = tokenizer.decode([i for i in ids if 0 <= i < len(vocab)], specials=True)
    kinds = tuple(vocab.kind_of(i) if 0 <= i < len(vocab) else "unused" for i in ids)
    return Encoding(
        ids=tuple(int(i) for i in ids), spans=tuple(spans), kinds=kinds, segments=(0,) * len(ids),
        segment_list=(Segment("ids", None, text, trusted=True),), text=text,
    )  # fmt: skip
