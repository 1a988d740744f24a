"""What the rows of a store look like from Python: columns, the JSON inside some, the digests that bind rows.

encode.py makes rows, decode.py reads them; both go by the lists here, in the order of schema.sql.
"""

from __future__ import annotations

import hashlib
import json
import marshal
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Level = Literal["ids", "look"]
Retain = Literal["text", "ids", "none"]
Row = tuple[Any, ...]
PolicySteps = list[tuple[str, str, Mapping[str, Any]]]  # name, params as JSON, params; listed once a run


# Of a request, kept together; some runs have more (encode.py); and "kv" of the provenance, as a column of its own would
# change the digests of runs recorded before there was one.
OPTIONS = ("reuse", "salt", "speculate", "time_limit", "include_stop", "prompt_logprobs")


def _columns(names: str) -> tuple[str, ...]:
    return tuple(names.split())


PROVENANCE = _columns("model_sha256 tokenizer_sha256 template_sha256 engine glassbox threads clock")
ASKED = PROVENANCE + _columns(
    """id created owner level retain model seed policy max_tokens stop stop_ids ignore_eos sequence options messages
    sources prompt_text prompt_lossy prompt_notes prompt_tokens parent parent_step"""
)  # of run, known at the start
ENDED = _columns(
    """finish_reason stop_kind stop_detail text cached_tokens completion_tokens queue_ns first_token_ns
    total_ns reuse_why error last_token_ns"""
)  # of run, known at the end
SEGMENT = _columns("i origin role text trusted")
POSITION = _columns(
    """pos step id bytes text segment kind span_lo span_hi kv logprob_raw logprob_final rank_raw ties entropy
    u cdf_lo cdf_hi counter logits_hash model_ns policy_ns drafted text_offset"""
)
LEDGER = _columns(
    """pos i policy_step params alive_before alive_after mass_removed removed_count removed_ids entropy top
    argmax_changed"""
)
CANDIDATE = _columns("pos i id logit p_raw p_final removed_by")
BEAM = _columns("step i grp beam parent id logprob score state bytes text")


# How many of these there were before columns came to be added behind them.
_POSITION_ONCE, _ENDED_ONCE = POSITION.index("drafted") + 1, ENDED.index("error") + 1


def dumps(value: object) -> str:
    """Compact JSON; numpy scalars become numbers. Infinity is kept: Python reads it back as it was."""
    return _ENCODER.encode(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be stored")


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)


def _digest(values: Any, key: bytes, size: int) -> bytes:
    """Of None, ints, floats, strings, bytes, and tuples and lists of these."""
    # Version 2 of marshal writes equal values alike whoever made them (later ones mark shared objects),
    # floats by their bits, and has not changed since Python 2.5; a test holds it to that. repr would not do:
    # which characters it escapes changes with Unicode.
    return hashlib.blake2b(marshal.dumps(values, 2), key=key, digest_size=size).digest()


def header_digest(asked: Row, segments: Sequence[Row]) -> bytes:
    """Over what was asked; the key of every other digest of the run, so rows cannot move between runs."""
    return _digest((asked, list(segments)), b"", 16)


def position_digest(
    header: bytes, position: Row, ledger: Sequence[Row], candidates: Sequence[Row], steps: PolicySteps
) -> bytes:
    """Over one position with its ledger (policy steps by name, not by index) and candidates."""
    named = [(*r[:2], *_named(r, steps), *r[4:]) for r in ledger]
    return _digest((_said(position, _POSITION_ONCE), named, list(candidates)), header, 8)


def beam_digest(header: bytes, row: Row) -> bytes:
    """Over one candidate of a beam search."""
    return _digest(("beam", row), header, 8)


def seal(
    header: bytes, digests: Mapping[int, bytes], ledger_steps: str, ended: Row, beams: Sequence[bytes] = (),
    incomplete: str | None = None,
) -> bytes:  # fmt: skip
    """Over all positions, the candidates of a beam search, the ending and the mark of rows that were lost: nothing can
    be cut off a finished run unnoticed."""
    more = ([list(beams)] if beams else []) + ([incomplete] if incomplete is not None else [])
    return _digest((sorted(digests.items()), ledger_steps, _said(ended, _ENDED_ONCE), *more), header, 16)


def _said(row: Row, once: int) -> Row:
    """Without later columns that say nothing: a row that was written before there were any keeps its digest."""
    end = len(row)
    while end > once and row[end - 1] is None:
        end -= 1
    return row[:end]


def _named(row: Row, steps: PolicySteps) -> tuple[str, str]:
    name, params, _ = steps[row[2]]
    return name, params if row[3] is None else row[3]
