"""Inner values of any step of a recorded run, computed again.

In: a run, its model, a step, names of points. Out: arrays equal in every bit to those of the run. The pass that gives
them gives the step's logits too, and their hash must be the recorded one: that is the proof.
But: it writes no file.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassbox.errors import NotReproduced
from glassbox.generation import logits_hash
from glassbox.trace.again import Again, Opened
from glassbox.trace.mismatch import mismatches, refusal
from glassbox.trace.run import Run
from glassbox.types import F32


def recompute(
    run: Run, opened: Opened, step: int, points: Sequence[str], *, all_positions: bool = False, force: bool = False
) -> dict[str, F32]:
    """The points at the position whose logits chose the token of this step, each […] as in points.py without its T;
    all_positions: [T, …], from the first position of the prompt to that one.

    Costs one prefill; the pages stay with the model, so the next question costs one token. Raises ParameterError (no
    such step), UnknownPoint, PromptError (the ids were not kept), and NotReproduced, unless `force`: the hash of the
    logits is not the recorded one, or the model is another.
    """
    reasons = mismatches(run, opened)
    if reasons and reasons[0].field == "model" and not force:
        raise refusal(run, reasons[0])
    with Again(run, opened, keep=True) as again:
        logits, values = again.inside(step, points, all_positions=all_positions)
    recorded, found = run.steps[step].logits_hash, logits_hash(logits[0])
    if found != recorded and not force:
        said = f"step {step} of run {run.run_id}: its logits have the hash {found}, but {recorded} was recorded"
        why = "".join(f"; {reason}" for reason in reasons)
        raise NotReproduced(said + why, field="logits_hash", recorded=recorded, found=found)
    return {name: values[name] if all_positions else values[name][0] for name in points}
