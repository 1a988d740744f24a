"""The ids of a piece of text as it stands inside another: what a bias or a ban by text is about.

In: a tokenizer and a text. Out: ids that say its bytes and nothing else.
But: a text can be said in more ways than one, and with other text around it the tokenizer may choose another; only the
one it chooses for this text alone, or after a line break, is found. So " Paris" and "Paris" are two texts.
"""

from __future__ import annotations

from glassbox.errors import GlassboxError, ParameterError
from glassbox.text.absent import NoTokenizer
from glassbox.text.tokenizer import Tokenizer

_BEFORE = "\n"  # what a text stands after, where a tokenizer puts a space before the first word


def exact_ids(tokenizer: Tokenizer, param: str, text: str) -> tuple[int, ...]:
    """The ids of `text`, at least one. Raises ParameterError if no ids say just this."""
    if isinstance(tokenizer, NoTokenizer):
        raise ParameterError(param, text, f"left out, or in ids: {tokenizer.refusal()}")
    wanted = text.encode()
    before = _encoded(tokenizer, _BEFORE)
    for ids, skip in ((_encoded(tokenizer, text), 0), (_encoded(tokenizer, _BEFORE + text), len(before))):
        said = b"".join(map(tokenizer.vocab.bytes_of, ids[skip:]))
        if said == wanted and ids[:skip] == before[:skip]:
            return ids[skip:]
    raise ParameterError(param, text, "text that this vocabulary can say as it stands")


def _encoded(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    try:
        return tokenizer.encode(text, add_special=False).ids
    except GlassboxError:
        return ()
