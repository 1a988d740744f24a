"""The stages of a run as a table, each with what it needs and how it is compared; in the order of the data.

A stage that lacks what it needs says so and is neither the same nor different.
But: a stage is compared by itself. Which of them is first, diff.py says.
"""

from __future__ import annotations

from glassbox.trace import stages_choice, stages_model
from glassbox.trace.pair import Pair
from glassbox.trace.stage import Found, Stage, unknown

STAGES = (
    Stage("template", ("provenance",), stages_model.template),
    Stage("prompt", ("prompt_text",), stages_model.prompt),
    Stage("ids", ("prompt_ids",), stages_model.ids),
    Stage("embedding", (), stages_model.embedding),
    Stage("layers", (), stages_model.layers),
    Stage("logits", ("steps",), stages_model.logits),
    Stage("policy", ("policy",), stages_choice.policy),
    Stage("draw", ("steps",), stages_choice.draw),
    Stage("text", (), stages_choice.text),
    Stage("ending", ("finish_reason",), stages_choice.ending),
)


def compared(stage: Stage, pair: Pair) -> Found:
    for name in stage.needs:
        lacking = [side.name for side in pair.sides if side.get(name) is None]
        if lacking:
            return unknown(f"{' and '.join(lacking)} {'has' if len(lacking) < 2 else 'have'} no {name}")
    return stage.compare(pair)
