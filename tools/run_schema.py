"""The JSON Schema of a run as `glassbox trace --json` and `glassbox export --to json` give it.

    python tools/run_schema.py > docs/run.schema.json

A test holds the file to this, and recorded runs to the file.
"""

from __future__ import annotations

import json
from typing import Any

from glassbox.trace.jsonable import VERSION

Schema = dict[str, Any]

INT: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
REAL: Schema = {"type": "number"}
PART: Schema = {"type": "number", "minimum": 0, "maximum": 1}
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
ANY: Schema = {"type": "object"}
BYTES: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}}


def listed(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def maybe(schema: Schema) -> Schema:
    """Null: not measured, or not kept."""
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def said(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text}


def record(**properties: Schema) -> Schema:
    """An object with these keys; more may be added within a version."""
    return {"type": "object", "required": list(properties), "properties": properties}


LEDGER = record(
    name=TEXT, params=ANY, alive_before=COUNT, alive_after=COUNT, mass_removed=maybe(REAL), removed_count=COUNT,
    removed_ids=said(listed(COUNT), "the likeliest few; removed_count counts all"), changed=COUNT, entropy=maybe(REAL),
    entropy_before=maybe(REAL), perplexity=maybe(REAL), perplexity_before=maybe(REAL),
    top=listed({"type": "array", "prefixItems": [COUNT, PART], "minItems": 2, "maxItems": 2}), argmax_changed=FLAG,
)  # fmt: skip
CANDIDATE = record(
    id=COUNT, logit=maybe(REAL), p_raw=said(maybe(PART), "of the model's own distribution"),
    p_final=said(maybe(REAL), "after the policy"),
    removed_by=said(maybe(TEXT), "the policy step that removed it"),
)  # fmt: skip
STEP = record(
    step=COUNT, position=COUNT, id=COUNT, text=said(maybe(TEXT), "what became visible with it"), bytes=maybe(BYTES),
    logprob_raw=maybe(REAL), logprob_final=maybe(REAL), rank_raw=maybe(COUNT), u=maybe(PART), cdf_lo=maybe(REAL),
    cdf_hi=maybe(REAL), ties=maybe(COUNT), entropy=said(maybe(REAL), "nats, of the model's own distribution"),
    logits_hash=said(TEXT, "xxh64, hexadecimal"), ledger=maybe(listed(LEDGER)), candidates=maybe(listed(CANDIDATE)),
    model_ns=COUNT, policy_ns=COUNT, drafted=FLAG, text_offset=maybe(COUNT),
)  # fmt: skip
PROMPT = record(
    position=COUNT, id=COUNT, text=maybe(TEXT), bytes=maybe(BYTES), kind=TEXT, segment=COUNT,
    span={"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}, kv=one_of("computed", "reused"),
    logprob=maybe(REAL),
)  # fmt: skip
SEGMENT = record(origin=TEXT, role=maybe(TEXT), text=TEXT, trusted=FLAG)
BEAM = record(
    step=COUNT, rank=COUNT, group=COUNT, beam=maybe(COUNT), parent=maybe(COUNT), id=COUNT, logprob=maybe(REAL),
    score=maybe(REAL), state=one_of("live", "finished", "dropped"), bytes=BYTES, text=TEXT,
)  # fmt: skip
HYPOTHESIS = record(
    ids=listed(COUNT), text=TEXT, logprobs=listed(maybe(REAL)), total=maybe(REAL), score=maybe(REAL), group=COUNT,
    finished=FLAG,
)  # fmt: skip
BEAMS = record(
    width=COUNT, length_penalty=REAL, early_stopping={"enum": [False, True, "never"]}, groups=COUNT,
    diversity_penalty=REAL, returned=COUNT, rule=TEXT, hypotheses=listed(HYPOTHESIS), rows=listed(BEAM),
)  # fmt: skip
SPEED = record(
    queue_s=REAL, first_token_s=REAL, gap_s=maybe(REAL), decode_per_s=maybe(REAL), evaluated_tokens=COUNT,
    prefill_per_s=maybe(REAL),
)  # fmt: skip
PROVENANCE = record(
    model_sha256=TEXT, tokenizer_sha256=TEXT, template_sha256=maybe(TEXT), engine=TEXT, glassbox=TEXT, threads=COUNT,
    clock=maybe(TEXT), kv=said(TEXT, "how keys and values were kept"),
)  # fmt: skip
INTERVENTION = record(
    point=TEXT, op=one_of("zero", "scale", "replace"), value=said({}, "null, a factor, or numbers"), head=maybe(COUNT),
    positions={"type": "array", "prefixItems": [COUNT, maybe(COUNT)], "minItems": 2, "maxItems": 2},
)  # fmt: skip
SEED = said({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, "64 bits: JavaScript needs a parser with BigInt")
RUN = record(
    run_id=TEXT, model=TEXT, prompt_text=maybe(TEXT), prompt_ids=listed(COUNT), text=maybe(TEXT),
    finish_reason=TEXT, stop_reason=maybe(ANY),
    usage=record(
        prompt_tokens=COUNT, cached_tokens=maybe(COUNT), completion_tokens=COUNT,
        dropped=said(COUNT, "tokens of the prompt that were left out to fit"), submitted_tokens=COUNT,
    ),
    seed=SEED, policy=ANY, fingerprint=said(TEXT, "of the engine: the same gives the same bits"), steps=listed(STEP),
    created=TEXT, status=one_of("done", "running", "interrupted", "cancelled", "error"), error=maybe(TEXT),
    failed_ledger=listed(LEDGER), level=one_of("look", "ids"), retain=one_of("text", "ids", "none"),
    problem=said(maybe(TEXT), "why the store holds less than happened"), sequence=COUNT, max_tokens=COUNT,
    stop=listed(TEXT), stop_ids=listed(COUNT), ignore_eos=FLAG, include_stop=FLAG, reuse=FLAG, speculate=FLAG,
    time_limit=maybe(REAL), prompt_logprobs=FLAG, reuse_why=maybe(TEXT), messages=maybe(listed(ANY)),
    dropped_messages=said(listed(COUNT), "left out to fit, by number"), chat=maybe(ANY), sources=ANY,
    parent=said(maybe(TEXT), "the run it branches from"), parent_step=said(maybe(COUNT), "the first that is its own"),
    forced=said(listed(COUNT), "steps whose id was put there"), interventions=listed(INTERVENTION),
    group=maybe(TEXT), beams=maybe(BEAMS), warnings=listed(TEXT),
    segments=maybe(listed(SEGMENT)), prompt=listed(PROMPT),
    timings=maybe(record(queue_ns=COUNT, first_token_ns=maybe(COUNT), total_ns=COUNT, last_token_ns=maybe(COUNT))),
    speed=maybe(SPEED), provenance=PROVENANCE, version={"const": VERSION},
)  # fmt: skip


def schema() -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A run of Glassbox",
        "description": "Null is what was not measured or not kept. Keys may be added within a version.",
        **RUN,
    }


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
