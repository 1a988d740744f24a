"""glassbox policy: the steps of a policy, in order, each with its formula; and the flags by which commands take one.

In: flags. Out: lines, or JSON. The flags come from the table of parameters, so that every command has all of them.
But: no model is looked at, so what a model file says about sampling is not in it.
"""

from __future__ import annotations

import errno
import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from glassbox.cli.output import JsonOption, console, print_json
from glassbox.errors import ParameterError

if TYPE_CHECKING:
    from glassbox.policy.policy import Policy

IDS = "ID,…"
HELP: Mapping[str, tuple[str, str]] = {  # parameter -> (how its value is written, what it does)
    "preset": ("NAME", "Order, defaults and formulas of an engine: glassbox, hf, vllm, sglang, llama.cpp, mlx or tgi."),
    "steps": ("A,B,…", "Which steps, in which order; see glassbox policy."),
    "temperature": ("T", "0 is greedy."),
    "top_k": ("K", "Keep the K likeliest tokens; 0 is off."),
    "top_p": ("P", "Keep the smallest set of mass P; 1 is off."),
    "min_p": ("P", "Keep tokens at least P times as likely as the best."),
    "dynatemp_range": ("R", "Temperature from T - R to T + R, by entropy."),
    "dynatemp_exponent": ("X", "How entropy maps to that range."),
    "typical_p": ("P", "Keep the most typical tokens of mass P; 1 is off."),
    "epsilon_cutoff": ("P", "Keep tokens of probability P or more."),
    "eta_cutoff": ("P", "The same, with a bound that falls with entropy."),
    "top_n_sigma": ("S", "Keep logits within S standard deviations of the best."),
    "top_h": ("H", "Keep the best up to the part H of the entropy; 1 is off."),
    "xtc_probability": ("P", "How often the top choices are excluded."),
    "xtc_threshold": ("P", "From which probability a token is a top choice."),
    "xtc_spared_ids": (IDS, "Ids that are never excluded so."),
    "grammar": ("FILE|TEXT", "The output follows these rules: GBNF if a line begins NAME ::=, else Lark."),
    "json_schema": ("FILE|TEXT", "The output is JSON of this schema."),
    "json_object": ("", "The output is a JSON object."),
    "regex": ("R", "The output matches this regular expression, all of it."),
    "choice": ("TEXT", "The output is this, or one of several: may be repeated."),
    "mirostat_tau": ("BITS", "Keep the surprise of the output near this; 0 is off."),
    "mirostat_eta": ("R", "How fast that learns."),
    "guidance_scale": ("S", "Lead away from the negative prompt; 1 is off. One more pass a token."),
    "negative_ids": (IDS, "The negative prompt; its last id if none is given."),
    "dola_layers": ("low|high|L,…", "Contrast with these early layers. One more pass a token."),
    "penalty_alpha": ("A", "Contrastive search among the top K; 0 is off. One more pass a token."),
    "forced_ids": (IDS, "The output begins with these ids."),
    "allowed_ids": (IDS, "Only these ids."),
    "banned_ids": (IDS, "Never these ids."),
    "banned_sequences": ("ID,…;ID,…", "Never these ids one after another."),
    "banned_texts": ("TEXT", "Never this text, in the ids the tokenizer gives it; may be repeated."),
    "begin_suppress_ids": (IDS, "Not these ids as the first token."),
    "min_tokens": ("N", "No end of text before N tokens."),
    "eos_ids": (IDS, "What ends the text, where not the model says it."),
    "logit_bias": ("ID=B,…", "Add B to the logit of ID."),
    "bias_text": ("TEXT=B", "Add B to the logit of the last id of TEXT, after its others; may be repeated."),
    "repetition_penalty": ("R", "Divide logits of what was there by R; 1 is off."),
    "repetition_scope": ("SCOPE", "Which ids count for it: prompt+output, output, or the last N."),
    "frequency_penalty": ("F", "Subtract F for each time a token was there."),
    "presence_penalty": ("F", "Subtract F once from each token that was there."),
    "penalty_scope": ("SCOPE", "Which ids count for these two."),
    "no_repeat_ngram_size": ("N", "No N ids twice in the same order."),
    "dry_multiplier": ("F", "Penalise what continues a repetition; 0 is off."),
    "dry_base": ("B", "How fast that grows with the repetition's length."),
    "dry_allowed_length": ("N", "Repetitions below this length cost nothing."),
    "dry_sequence_breakers": (IDS, "Ids across which nothing counts as repeated."),
    "length_decay": ("N,X", "After N tokens make the end likelier, by X a token."),
    "min_keep": ("N", "The cutting steps leave at least N tokens."),
}
GRAMMARS: Mapping[str, type] = {  # the flags that each say a grammar -> what the command line makes of them
    "grammar": str, "json_schema": str, "json_object": bool, "regex": str, "choice": list[str],
}  # fmt: skip
RULE: Mapping[str, str] = {
    "grammar": ":",
    "json_schema": "{",
}  # no text of the kind is without; a file's name mostly is
FLAGS: Mapping[str, str] = {"banned_texts": "--banned-text"}  # flags that are called otherwise
REPEATED = ("banned_texts", "bias_text")
TYPES: Mapping[str, type] = {**GRAMMARS, **dict.fromkeys(REPEATED, list[str])}
WHOLE = ("N", "K")  # how whole numbers are written above


def with_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with every policy flag; it takes those that were given as `flags`, by parameter and checked."""
    own = inspect.signature(command, eval_str=True)
    added = {
        name: inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_option(name, how, text), annotation=TYPES.get(name, str)
        )
        for name, (how, text) in HELP.items()
    }

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        flags = {name: read(name, given[name]) for name in added if given[name] not in (None, False, [])}
        flags = one_grammar(flags)
        others = {name: value for name, value in given.items() if name not in added}
        return command(**others, flags=flags)

    kept = [p for p in own.parameters.values() if p.name != "flags"]
    taken = {name: p for name, p in added.items() if name not in own.parameters}
    positional = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in kept]
    run.__signature__ = inspect.Signature([*positional, *taken.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in [*positional, *taken.values()]}
    del run.__wrapped__
    return run


def _option(name: str, how: str, text: str) -> Any:
    flag = FLAGS.get(name) or f"--{name.replace('_', '-')}"
    return typer.Option([] if name in REPEATED else None, flag, metavar=how or None, help=text)


def one_grammar(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags with the one that says a grammar as `grammar`. Raises ParameterError where there are two."""
    said = [name for name in GRAMMARS if name in flags]
    if len(said) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in said)
        raise ParameterError("grammar", names, "said by one flag")
    return {"grammar" if name in said else name: value for name, value in flags.items()}


def read_grammar(name: str, said: Any) -> Any:
    """The grammar that a flag says; rules and schemas also by the name of a file that holds them."""
    from glassbox.policy.grammar import Grammar

    if name in ("grammar", "json_schema"):
        text = file_text(name, said)
        if text is said and RULE[name] not in text:
            raise ParameterError(name, said, f"a text with {RULE[name]!r} in it, or a file that there is")
        return Grammar.written(text) if name == "grammar" else Grammar(name, text)
    return Grammar.of({name: said})


def file_text(name: str, said: str) -> str:
    """What the file of this name holds, or the text itself where there is none. Raises ParameterError."""
    try:
        path = Path(said)
        return path.read_text(encoding="utf-8-sig") if path.is_file() else said
    except UnicodeDecodeError:
        raise ParameterError(name, said, "a file of UTF-8 text") from None
    except OSError as e:
        if e.errno in (errno.ENAMETOOLONG, errno.ENOENT):
            return said
        raise ParameterError(name, said, f"a file that can be read: {e.strerror}") from None
    except ValueError:  # a text with a zero byte names no file
        return said


def read(name: str, text: Any) -> Any:
    """What a flag's text says, as the policy takes it; the policy checks it."""
    if name in GRAMMARS:
        return read_grammar(name, text)
    try:
        if name in ("preset", "steps"):
            return text if name == "preset" else tuple(s.strip() for s in text.split(",") if s.strip())
        if name == "banned_texts":
            return list(text)
        if name == "bias_text":
            return [(t, float(b)) for t, _, b in (one.rpartition("=") for one in text)]
        if name == "banned_sequences":
            return [[int(i) for i in s.split(",")] for s in text.split(";")]
        if name == "logit_bias":
            pairs = [pair.partition("=") for pair in text.split(",")]
            return [(int(i), float(b)) for i, _, b in pairs]
        if name == "dola_layers":
            return text if text in ("low", "high") else [int(i) for i in text.split(",")]
        if name == "length_decay":
            start, _, factor = text.partition(",")
            return int(start), float(factor)
        if HELP[name][0] == IDS:
            return [int(i) for i in text.split(",")]
        if HELP[name][0] == "SCOPE":
            return int(text) if text.isdecimal() else text
        return int(text) if HELP[name][0] in WHOLE else float(text)
    except ValueError:
        how = HELP[name][0]
        form = f"of the form {how}" if any(c in how for c in ",;=") else "a number"
        raise ParameterError(name, text, "a whole number" if how in WHOLE else form) from None


def policy_of(flags: Mapping[str, Any]) -> Policy:
    """The policy that the flags say, with a preset's values where one is named."""
    from glassbox.policy.policy import Policy

    values = values_of(flags)
    return Policy.preset(flags["preset"], **values) if "preset" in flags else Policy(**values)


def values_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags as parameters of a policy, but for the preset."""
    own = {name: value for name, value in flags.items() if name not in ("preset", "bias_text")}
    values = {"order" if name == "steps" else name: value for name, value in own.items()}
    if "bias_text" in flags:
        values["logit_bias"] = [*flags.get("logit_bias", ()), *flags["bias_text"]]
    return values


def policy(flags: dict[str, Any], as_json: bool = JsonOption) -> None:
    """Show the steps of a policy in the order they run, each with its values and its formula."""
    from glassbox.policy.presets import preset

    made = policy_of(flags)
    found = preset(flags.get("preset", "glassbox"))
    rows = [row(made, name) for name in made.order]
    notes = list(found.notes)
    if as_json:
        print_json({"preset": flags.get("preset"), "policy": made.to_dict(), "steps": rows, "notes": notes})
        return
    out = console()
    for i, r in enumerate(rows, start=1):
        values = " ".join(f"{p} {text}" for p, text in r["shown"].items())
        out.field(f"{i:>2} {'on ' if r['on'] else 'off'} ", f"{r['name']}: {values}")
        moves = "the best stays the best" if r["argmax_invariant"] else "may move the best"
        for text in (r["formula"], f"{r['source']}; {moves}"):
            out.field(" " * 7, text, "")
    for note in notes:
        out.field("note: ", note, "")


def row(made: Policy, name: str) -> dict[str, Any]:
    """One step as plain values."""
    from glassbox.policy.table import STEPS, formula, source

    step = STEPS[name].build(made)
    kind: Any = STEPS[name].kind if step is None else type(step)
    return {
        "name": name,
        "on": step is not None,
        "shown": dict(made.shown(name)),
        "parameters": {p: made.to_dict()[p] for p in STEPS[name].parameters},
        "argmax_invariant": kind.argmax_invariant,
        "formula": formula(kind),
        "source": source(kind),
    }
