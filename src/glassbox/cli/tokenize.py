"""glassbox tokenize: text to ids, each with its bytes."""

from __future__ import annotations

import typer

from glassbox.cli.output import JsonOption, ModelOption, console, print_json, read_text


def tokenize(
    text: str = typer.Argument(help="The text. - reads it from standard input."),
    model: str = ModelOption,
    specials: bool = typer.Option(False, "--specials", help="Names of special tokens in TEXT count as such."),
    as_json: bool = JsonOption,
) -> None:
    """Show the ids of TEXT as it is (no chat template), with the bytes each stands for."""
    import glassbox
    from glassbox.cli.prompt import notes_of
    from glassbox.cli.show_text import quoted

    text = read_text(text)
    tokenizer = glassbox.load_tokenizer(model)
    encoding = tokenizer.encode(text, specials=specials)
    vocab = tokenizer.vocab
    if as_json:
        tokens = [
            {"id": i, "bytes": list(vocab.bytes_of(i)), "text": vocab.text_of(i), "kind": kind, "span": list(span)}
            for i, kind, span in zip(encoding.ids, encoding.kinds, encoding.spans, strict=True)
        ]
        notes = [*tokenizer.assumptions, *encoding.lossy, *encoding.notes]
        print_json({"model": model, "text": encoding.text, "ids": list(encoding.ids), "tokens": tokens, "notes": notes})
        return
    out = console()
    for i, kind, (begin, end) in zip(encoding.ids, encoding.kinds, encoding.spans, strict=True):
        out.row(f"{i:>8}  {begin:>5}–{end:<5} {kind:<8} {quoted(vocab.bytes_of(i), max(out.width - 31, 8))}")
    for note in (*tokenizer.assumptions, *notes_of(encoding, vocab)):
        out.field("note: ", note, "yellow")
    out.row(f"{len(encoding.ids)} ids for {len(encoding.text.encode())} bytes", "bold")
