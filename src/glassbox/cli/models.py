"""glassbox models, show-model and pull: which models have a name or are here, what one of them is, and fetching one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import typer

from glassbox.cli.output import Downloads, JsonOption, console, note, print_json

ContextOption = typer.Option(
    None, "--context", metavar="N", help="Count memory for N tokens. Default: the model's own."
)


def pull_model(
    name: str = typer.Argument(metavar="NAME", help="A name from `glassbox models`, or hf:owner/repo."),
) -> None:
    """Fetch a model into the cache folder and check it."""
    from glassbox.weights.source import pull

    if name == "bigram":
        note("bigram is built in: there is nothing to fetch")
        return
    with Downloads() as downloads:
        path = pull(name, downloads.report, show_terms=note)
    console().print(str(path), soft_wrap=True)


def models(
    show: str = typer.Option(None, "--show", metavar="M", help="Describe one model: a name, a .gguf file, a folder."),
    context: int = ContextOption,
    as_json: bool = JsonOption,
) -> None:
    """List the models that have a name or are in a cache; --show describes one."""
    if show is not None:
        show_model(show, context, as_json)
        return
    from glassbox.weights.source import cached_models, known_models

    rows: list[dict[str, Any]] = [
        {"name": m.name, "bytes": m.size, "licence": m.licence, "here": m.pulled} for m in known_models()
    ]
    rows += [{"name": name, "bytes": size, "licence": None, "here": True} for name, size in cached_models()]
    rows.append({"name": "bigram", "bytes": 0, "licence": "Apache-2.0", "here": True})
    if as_json:
        print_json(rows)
        return
    state = {r["name"]: "here" if r["here"] else "not pulled" for r in rows} | {
        "bigram": "built in: the lab's four-token table"
    }
    cells = [(r["name"], size_of(r["bytes"]) if r["bytes"] else "", r["licence"] or "", state[r["name"]]) for r in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    out = console()
    for row in cells:
        out.row("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)))


def show_model(
    model: str = typer.Argument(metavar="M", help="A name, a .gguf file, a folder, or hf:owner/repo."),
    context: int = ContextOption,
    as_json: bool = JsonOption,
) -> None:
    """Describe a model by what its files say: spec, formats, vocabulary, template, memory. Reads no weights."""
    if model == "bigram":
        built_in: dict[str, Any] = {"name": model, "path": None, "files": [], "kind": "built in", "problem": None}
        text = "bigram is built in: a table of logits for four tokens, without files"
        print_json(built_in) if as_json else console().row(text)
        return
    from glassbox.cli.describe import describe
    from glassbox.weights.source import resolve

    with Downloads() as downloads:
        path = resolve(model, progress=downloads.report, show_terms=note)
    said = describe(path, context)
    if as_json:
        print_json(said)
        return
    out = console()
    for label, text in lines_of(said):
        out.field(f"{label:<14} ", text)


def lines_of(said: dict[str, Any]) -> list[tuple[str, str]]:
    """A description as (label, text), in the order to be read."""
    files = said["files"]
    total = sum(f["bytes"] for f in files)
    several = f"{said['kind']}, {size_of(total)}" + (f" in {len(files)} files" if len(files) > 1 else "")
    rows = [("model", said["path"]), ("file", several), ("architecture", str(said["architecture"]))]
    if said["name"]:
        rows.insert(1, ("name", str(said["name"])))
    if said["problem"]:
        rows.append(("cannot run", said["problem"]))
    if said["spec"]:
        rows.append(("spec", notable(said["spec"])))
    rows.append(("parameters", f"{said['parameters']:,} in {said['tensors']} tensors"))
    rows += [("" if i else "formats", format_line(f)) for i, f in enumerate(said["formats"])]
    rows += _text_lines(said["tokenizer"])
    rows += [
        ("template", f"{t['name']}: sha256 {t['sha256'][:16]}, {t['characters']:,} characters")
        for t in said["templates"]
    ] or [("template", said["template_problem"] or "none: prompts go in as they are")]
    if said["memory"]:
        rows += _memory_lines(said["memory"])
    return rows


def format_line(f: dict[str, Any]) -> str:
    return f"{f['name']:<6} {f['tensors']:>5} tensors {size_of(f['bytes']):>10}"


def _text_lines(tokenizer: dict[str, Any]) -> list[tuple[str, str]]:
    if tokenizer["problem"]:
        rows = [("tokenizer", tokenizer["problem"])]
    else:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in tokenizer["kinds"].items())
        special = ", ".join(f"{name} {i} {piece!r}" for name, (i, piece) in tokenizer["special"].items())
        rows = [
            ("tokenizer", f"{tokenizer['model']}/{tokenizer['pre']}, sha256 {tokenizer['sha256'][:16]}"),
            ("vocabulary", f"{tokenizer['tokens']:,} tokens: {kinds}"),
            ("special", special or "none"),
            ("ends", ", ".join(map(str, tokenizer["ends"])) or "none: only max_tokens ends a generation"),
        ]
        if tokenizer["missing_bytes"]:
            rows.append(("cannot say", f"{tokenizer['missing_bytes']} of the 256 bytes"))
        rows += [("assumed", line) for line in tokenizer["assumptions"]]
    return rows


def _memory_lines(memory: dict[str, Any]) -> list[tuple[str, str]]:
    kv = ", ".join(f"{size_of(n)} as {kind}" for kind, n in memory["kv"].items())
    both = memory["weights"] + memory["kv"]["f32"]
    return [
        ("memory", f"{size_of(both)} for {memory['context']:,} tokens: weights {size_of(memory['weights'])}"),
        ("", f"keys and values {kv}"),
    ]


def size_of(nbytes: int) -> str:
    """Bytes as people say them, in powers of ten and two figures or more."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.{1 if nbytes < 10 * size else 0}f} {unit}"
    return f"{nbytes} B"


def notable(spec: dict[str, Any]) -> str:
    """A spec on one line: what every model has, and what is not as in most."""
    from glassbox.model.spec import ModelSpec, Rope

    def said(values: dict[str, Any], cls: type[Any]) -> str:
        usual = {f.name: f.default for f in fields(cls)} | {"architecture": values.get("architecture")}
        return ", ".join(f"{k} {shown(v)}" for k, v in values.items() if v not in (None, [], usual[k]))

    def shown(value: Any) -> str:
        if isinstance(value, dict):
            return f"({said(value, Rope)})"
        if isinstance(value, (list, tuple)) and len(value) > 8:
            return f"[{', '.join(map(str, value[:4]))}, … {len(value)} in all]"
        return f"{value:.6g}" if isinstance(value, float) else str(value)

    return said(spec, ModelSpec)
