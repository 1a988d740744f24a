"""A tokenizer that lies in a folder as transformers writes it. Comes in: the folder. Goes out: `Facts`.

Read are tokenizer.json, else tokenizer.model; and, as far as they are there, tokenizer_config.json,
special_tokens_map.json, added_tokens.json, generation_config.json, config.json. A folder with only vocab.json and
merges.txt is refused by name: those two files do not say how text is cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassbox.errors import ModelFormatError, Unsupported
from glassbox.text.added import Added
from glassbox.text.facts import Facts
from glassbox.text.files import is_there, read_bytes, read_json, read_text
from glassbox.text.hf import HfParts, added_token, read_tokenizer_json
from glassbox.text.hf_check import check_ids
from glassbox.text.hf_encoder import HfEncoder
from glassbox.text.library import library
from glassbox.text.spm_file import SpmFileEncoder, read_spm
from glassbox.text.vocab import Vocab

JSON, MODEL = "tokenizer.json", "tokenizer.model"
OTHERS = ("tekken.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model.v3")
ROLES = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")
TEMPLATE = "chat_template.jinja"
MOST_BYTES, MOST_TEMPLATE = 1 << 28, 1 << 20

Object = Mapping[str, Any]


def read_folder(path: Path) -> Facts:
    """`path`: a folder, a tokenizer.json or a tokenizer.model. Raises ModelFormatError and Unsupported."""
    folder, file = (path, None) if path.is_dir() else (path.parent, path)
    config = _load(folder / "special_tokens_map.json") | _load(folder / "tokenizer_config.json")
    if file is None:
        file = next((folder / name for name in (JSON, MODEL) if is_there(folder, name)), None)
    try:
        if file is None:
            raise _absent(folder)
        return _from_model(file, folder, config) if file.suffix == ".model" else _from_json(file, folder, config)
    except ModelFormatError as e:
        raise ModelFormatError(e.why, field=e.field, offset=e.offset, path=e.path or str(file or folder)) from None


def _from_json(file: Path, folder: Path, config: Object) -> Facts:
    named = _named(config)
    data = _load(file)
    parts = read_tokenizer_json(data, _more(folder, config), (*named.values(), *_also_special(config)))
    ids = {t.content: t.id for t in parts.added} | _first_ids(parts.vocab)
    special = _roles(named, ids)
    assumed = _taken(data, parts)
    begin = _begin(parts, config, special, assumed)
    if begin is not None:
        special["bos"] = begin
    if parts.normaliser is not None:
        odd = [t.content for t in parts.added if t.special and t.normalized]
        with library("normalizer"):
            changed = [c for c in odd if parts.normaliser.normalize_str(c) != c]
        if changed:
            assumed.append(
                f"looked for in the text as it is written, not as it is normalised: {', '.join(changed[:5])}"
            )
    if parts.unknown is not None:
        special["unknown"] = parts.unknown
    return Facts(
        model=JSON, pre=_kind(parts), vocab=parts.vocab, special=special, add_bos=begin is not None,
        space_prefix=parts.strips_space, merges=parts.merges, scores=parts.scores, template=_template(folder, config),
        assumptions=tuple(assumed), ends=_ends(folder, len(parts.vocab)), added=parts.added,
        encoder=lambda unknown: HfEncoder(parts, unknown),
    )  # fmt: skip


def _from_model(file: Path, folder: Path, config: Object) -> Facts:
    model = read_spm(read_bytes(file.parent, file.name, MOST_BYTES))
    more = [t for t in _more(folder, config) if t.id >= len(model.vocab)]
    check_ids({piece: i for i, piece in enumerate(model.vocab.pieces)}, more, len(model.vocab))
    pieces = [*model.vocab.pieces, *[""] * (max((t.id for t in more), default=-1) + 1 - len(model.vocab))]
    kinds = [*map(model.vocab.kind_of, range(len(pieces)))]
    for token in more:
        pieces[token.id], kinds[token.id] = token.content, "control" if token.special else "user"
    vocab = Vocab(pieces, kinds, "sentencepiece")
    special = model.special | _roles(_named(config), _first_ids(vocab) | {t.content: t.id for t in more})
    assumed = []
    if not isinstance(config.get("add_bos_token"), bool):
        assumed.append("the folder does not say add_bos_token: true is assumed")
    if config.get("add_eos_token") is True:
        assumed.append("add_eos_token is not followed: a prompt is there to be continued")
    return Facts(
        model=MODEL, pre="unigram" if model.unigram else "bpe", vocab=vocab, special=special,
        add_bos=config.get("add_bos_token", True) is True and "bos" in special, space_prefix=model.space_prefix,
        merges=(), scores=model.scores, template=_template(folder, config), assumptions=tuple(assumed),
        ends=_ends(folder, len(vocab)), added=tuple(more), encoder=lambda unknown: SpmFileEncoder(model, unknown),
    )  # fmt: skip


def _taken(data: Object, parts: HfParts) -> list[str]:
    ordinary = {t["content"] for t in data.get("added_tokens") or [] if t.get("special") is not True}
    names = [t.content for t in parts.added if t.special and t.content in ordinary]
    shown = ", ".join(n[:40] for n in names[:5]) + (", …" if len(names) > 5 else "")
    return [f"taken for control tokens, though the file does not say so: {shown}"] if names else []


def _begin(parts: HfParts, config: Object, special: Object, assumed: list[str]) -> int | None:
    """The id put before every prompt. What tokenizer_config.json says outright wins over tokenizer.json."""
    said, found = config.get("add_bos_token"), parts.begin
    if isinstance(said, bool):
        if said and "bos" not in special:
            assumed.append("tokenizer_config.json wants a BOS but names none: none is added")
        found = (special["bos"],) if said and "bos" in special else ()
    if len(found) > 1:
        raise Unsupported("post-processor", f"{len(found)} tokens before a text", ("one token",))
    if parts.end if not isinstance(said, bool) else config.get("add_eos_token") is True:
        assumed.append("tokens that the file puts after a text are left out: a prompt is there to be continued")
    return found[0] if found else None


def _kind(parts: HfParts) -> str:
    return "unigram" if parts.scores else f"{parts.vocab.style} BPE"


def _first_ids(vocab: Vocab) -> dict[str, int]:
    ids: dict[str, int] = {}
    for token, piece in enumerate(vocab.pieces):
        ids.setdefault(piece, token)
    return ids


def _named(config: Object) -> dict[str, str]:
    """Role -> text; tokenizer_config.json writes a token as a string or as an object."""
    found = {}
    for role in ROLES:
        value = config.get(f"{role}_token")
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str) and content:
            found[role] = content
        elif value is not None:
            raise ModelFormatError("must be a text, or an object with content", field=f"{role}_token")
    return found


def _also_special(config: Object) -> list[str]:
    """Special tokens without a role; the newer spelling may be a list, or a map from a name."""
    found = []
    for field in ("additional_special_tokens", "extra_special_tokens"):
        value = config.get(field) or []
        for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [None]:
            content = entry.get("content") if isinstance(entry, dict) else entry
            if not isinstance(content, str):
                raise ModelFormatError("must be a list of texts", field=field)
            found.append(content)
    return found


def _roles(named: Mapping[str, str], ids: Mapping[str, int]) -> dict[str, int]:
    other = {"unk": "unknown", "pad": "padding", "sep": "seperator"}  # as GGUF's keys spell them
    return {other.get(role, role): ids[text] for role, text in named.items() if text in ids}


def _more(folder: Path, config: Object) -> list[Added]:
    """Added tokens that stand only in tokenizer_config.json or added_tokens.json."""
    found = {}
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise ModelFormatError("must be an object", field="added_tokens_decoder")
    for token, entry in decoder.items():
        if not token.isascii() or not token.isdigit() or len(token) > 9 or not isinstance(entry, dict):
            raise ModelFormatError(f"{token[:20]!r} is no id of a token", field="added_tokens_decoder")
        found[entry.get("content")] = added_token(entry | {"id": int(token)})
    for content, token in _load(folder / "added_tokens.json").items():
        if content not in found:
            found[content] = added_token({"id": token, "content": content})
    return list(found.values())


def _ends(folder: Path, size: int) -> frozenset[int]:
    """The ids that end a generation, from generation_config.json, else config.json."""
    for name in ("generation_config.json", "config.json"):
        value = _load(folder / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int and i >= 0 for i in ids):
            why = f"is {str(value)[:60]}, but must be ids"
            raise ModelFormatError(why, field="eos_token_id", path=str(folder / name))
        if ids:
            return frozenset(ids)
    return frozenset()


def _template(folder: Path, config: Object) -> str | None:
    if is_there(folder, TEMPLATE):
        return read_text(folder, TEMPLATE, MOST_TEMPLATE)
    value = config.get("chat_template")
    if isinstance(value, list):
        named = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
        value = named.get("default")
    if value is not None and not (isinstance(value, str) and _is_text(value)):
        raise ModelFormatError("must be a text", field="chat_template")
    return value


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _absent(folder: Path) -> Exception:
    for name in OTHERS:
        if (folder / name).exists():
            return Unsupported("tokenizer file", name, (JSON, MODEL))
    return ModelFormatError(f"neither {JSON} nor {MODEL} is there", field="tokenizer")


def _load(path: Path) -> dict[str, Any]:
    return read_json(path.parent, path.name, MOST_BYTES) if is_there(path.parent, path.name) else {}
