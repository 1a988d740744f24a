"""glassbox tokenize: text to ids, each with its bytes; with --explain, how they came about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from glassbox.cli.output import JsonOption, ModelOption, Out, console, print_json, read_text

if TYPE_CHECKING:
    from glassbox.text.encoded import Word
    from glassbox.text.tokenizer import Encoding
    from glassbox.text.vocab import Vocab


def tokenize(
    text: str = typer.Argument(metavar="TEXT", help="The text. - reads it from standard input."),
    model: str = ModelOption,
    specials: bool = typer.Option(False, "--specials", help="Names of special tokens in TEXT count as such."),
    explain: bool = typer.Option(False, "--explain", help="Show the normalised text, its words and each merge."),
    as_json: bool = JsonOption,
) -> None:
    """Show the ids of TEXT as it is (no chat template), with the bytes each stands for."""
    import glassbox
    from glassbox.cli.prompt import notes_of

    text = read_text(text)
    tokenizer = glassbox.load_tokenizer(model)
    encoding = tokenizer.encode(text, specials=specials)
    seen, words = tokenizer.explain(text, specials=specials) if explain else (text, [])
    vocab = tokenizer.vocab
    if as_json:
        notes = [*tokenizer.assumptions, *encoding.lossy, *encoding.notes]
        shown = {"model": model, "text": encoding.text, "ids": list(encoding.ids), "tokens": _tokens(encoding, vocab)}
        how = {"normalised": seen, "words": [_word(w, vocab) for w in words]} if explain else {}
        print_json(shown | how | {"notes": notes})
        return
    out = console()
    if explain:
        _explained(out, seen, words, vocab)
    _ids(out, encoding, vocab)
    for note in (*tokenizer.assumptions, *notes_of(encoding, vocab)):
        out.field("note: ", note, "yellow")
    out.row(f"{len(encoding.ids)} ids for {len(encoding.text.encode())} bytes", "bold")


def _ids(out: Out, encoding: Encoding, vocab: Vocab) -> None:
    from glassbox.cli.show_text import quoted

    for i, kind, (begin, end) in zip(encoding.ids, encoding.kinds, encoding.spans, strict=True):
        out.row(f"{i:>8}  {begin:>5}–{end:<5} {kind:<8} {quoted(vocab.bytes_of(i), max(out.width - 31, 8))}")


def _explained(out: Out, seen: str, words: list[Word], vocab: Vocab) -> None:
    from glassbox.cli.show_text import quoted

    room = max(out.width - 20, 8)
    out.row(f"normalised  {quoted(seen.encode(), room)}", "bold")
    for word in words:
        out.row(f"{word.how:<10}  {quoted(word.text.encode(), room)}")
        for merge in word.merges:
            parts = f"{quoted(merge.left, room // 2)} + {quoted(merge.right, room // 2)}"
            out.row(f"{merge.rank:>14g}  {parts}")
        for i, score in zip(word.ids, word.scores, strict=False):
            out.row(f"{score:>14.6g}  {quoted(vocab.bytes_of(i), room)}")
    out.row("")


def _tokens(encoding: Encoding, vocab: Vocab) -> list[dict[str, Any]]:
    return [
        {"id": i, "bytes": list(vocab.bytes_of(i)), "text": vocab.text_of(i), "kind": kind, "span": list(span)}
        for i, kind, span in zip(encoding.ids, encoding.kinds, encoding.spans, strict=True)
    ]


def _word(word: Word, vocab: Vocab) -> dict[str, Any]:
    def text(data: bytes) -> str:
        return data.decode("utf-8", "backslashreplace")

    merges = [
        {"rank": m.rank, "left": text(m.left), "right": text(m.right), "left_bytes": list(m.left),
         "right_bytes": list(m.right)}
        for m in word.merges
    ]  # fmt: skip
    return {"text": word.text, "how": word.how, "ids": list(word.ids), "merges": merges, "scores": list(word.scores)}
