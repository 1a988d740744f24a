"""Branch: a new run that goes another way from a step of a recorded one, or that begins with an edited prompt.

In: a run, its model, a step, and what is to be different from there on. Out: the new run, under way. The steps before
are the parent's as they were recorded; what follows has the same keys of its draws (same seed, sequence and positions),
so putting the token there that was chosen anyway gives the parent again, bit for bit.
But: the steps before are copied, not referred to: a branch outlives its parent. What it shares are pages of the cache,
where the parent's are still there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from glassbox.choose import check_seed
from glassbox.errors import ContextOverflow, ParameterError, PromptError
from glassbox.model.intervene import Intervention, check_interventions
from glassbox.policy.policy import Policy
from glassbox.policy.step import whole
from glassbox.request import Branch, Request
from glassbox.trace.again import Opened, check_kv, check_model
from glassbox.trace.run import Run
from glassbox.types import Messages

SAME = (
    "policy", "seed", "max_tokens", "stop", "stop_ids", "include_stop", "ignore_eos", "prompt_logprobs", "sources",
    "reuse", "salt", "speculate", "time_limit", "sequence", "beam", "interventions",
)  # fmt: skip

if TYPE_CHECKING:
    from glassbox.stream import Stream
    from glassbox.trace.store import Store


def branch(
    run: Run, opened: Opened, at: int | None = None, *, token_id: int | None = None, policy: Policy | None = None,
    seed: int | None = None, text: str | None = None, messages: Messages | None = None, max_tokens: int | None = None,
    sources: Mapping[str, str] | None = None, store: Store | None = None, interventions: Sequence[Intervention] = (),
) -> Stream:  # fmt: skip
    """Begin the branch; iterate over it for the steps that are its own.

    at: the first step that may differ. token_id: the id to put there, whatever the policy says. policy, seed, sources:
    from there on, the run's own when not given. text, messages: another prompt instead, in which no step is shared.
    interventions: beside the run's own; they begin where the logits of step `at` are made, or later.
    max_tokens: in all, with those before; the run's own when not given. Raises ParameterError, PromptError,
    TemplateError, ContextOverflow.
    """
    check_model(run, opened)
    if not isinstance(sources or {}, Mapping):
        raise ParameterError("sources", sources, "a mapping of parameters to where they are from")
    edits = [name for name, value in (("text", text), ("messages", messages)) if value is not None]
    request = replace(
        run.request,
        policy=run.policy if policy is None else opened.fitted(policy, run.request.stop_ids),
        seed=run.seed if seed is None else check_seed(seed),
        sources=run.request.sources if policy is None and sources is None else dict(sources or {}),
    )
    begin = len(run.prompt_ids) - 1 + at if isinstance(at, int) and at > 0 else 0
    given = check_interventions(interventions, opened.model.spec)
    done = check_interventions([_from(begin, one) for one in given], opened.model.spec)
    request = replace(request, interventions=(*request.interventions, *done))
    if not edits:
        return _at(run, opened, request, at, token_id, max_tokens, store)
    if len(edits) > 1 or at is not None or token_id is not None:
        raise ParameterError(edits[0], "given", "left out beside another prompt, a step or a token")
    request = replace(request, max_tokens=run.request.max_tokens if max_tokens is None else max_tokens)
    if text is not None:
        return opened.stream(text, **_asked(request, run, store))
    return opened.stream(messages=messages, **_asked(request, run, store), **_chat(run))


def _at(
    run: Run, opened: Opened, request: Request, at: int | None, token_id: int | None, max_tokens: int | None,
    store: Store | None,
) -> Stream:  # fmt: skip
    if run.request.beam is not None:
        raise PromptError(f"run {run.run_id} is a beam search: its steps were not drawn one by one; edit its prompt")
    if run.retain == "none":
        raise PromptError(f"run {run.run_id} was recorded without its ids: there is nothing to branch from")
    check_kv(run, opened)
    last = len(run.steps) - (run.finish_reason == "stop")  # behind the last one, where the text did not end there
    step = whole("at", at, 0, max(last, 0), f"a step of the run, from 0 to {last}")
    if token_id is not None:
        vocab = opened.model.vocab_size
        token_id = whole("token_id", token_id, 0, vocab - 1, f"an id of the vocabulary, from 0 to {vocab - 1}")
    most = run.request.max_tokens if max_tokens is None else max_tokens
    most = whole("max_tokens", most, step + 1, 2**31 - 1, f"{step + 1} or more: it counts the steps before, too")
    if len(run.prompt_ids) + step >= opened.model.context:
        raise ContextOverflow(len(run.prompt_ids) + step + 1, opened.model.context)
    before = run.request.branch
    forced = (*(s for s in (before.forced if before else ()) if s < step), *([] if token_id is None else [step]))
    made = _made(run.request, request, step)
    request = replace(request, max_tokens=most, group=None, branch=Branch(run.run_id, step, made, forced))
    return opened.resume(request, run.steps[:step], token_id, like=run, store=store)


def _from(begin: int, one: Intervention) -> Intervention:
    """So that it leaves alone what the steps before were made of. Raises ParameterError."""
    first, end = one.positions
    if first == 0:
        first = begin
    if first < begin:
        raise ParameterError("positions", one.positions, f"from {begin} on: what the steps before were made of stays")
    return replace(one, positions=(first, end))


def _made(parent: Request, child: Request, at: int) -> tuple[tuple[int, Policy, int], ...]:
    """What chose the steps before `at`, where that is not what chooses the child's own."""
    stretches = [*(parent.branch.made if parent.branch else ()), (at, parent.policy, parent.seed)]
    begins = [0, *(end for end, _, _ in stretches)]
    kept = [(min(end, at), p, s) for begin, (end, p, s) in zip(begins, stretches, strict=False) if begin < min(end, at)]
    while kept and kept[-1][1:] == (child.policy, child.seed):
        kept.pop()
    return tuple(kept)


def _asked(r: Request, run: Run, store: Store | None) -> dict[str, Any]:
    """What `stream` takes, as a request has it."""
    clock = run.provenance.clock
    given = {"now": datetime.fromisoformat(clock)} if clock else {}
    own = {"store": store, "level": run.level, "retain": run.retain, "parent": run.run_id}
    return {name: getattr(r, name) for name in SAME} | given | own


def _chat(run: Run) -> dict[str, Any]:
    """What the run gave its template beside messages."""
    chat = dict(run.request.chat or {})
    source = chat.pop("source", None)  # of a template that is not the model's
    return chat | ({"template": source} if source else {})
