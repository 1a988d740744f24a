"""Ids to text, one id at a time. Comes in: ids. Goes out: the text that may be shown now.

Decides on bytes, never on characters: a character is shown when its last byte is there, a byte that can no
longer become part of one is shown as U+FFFD at once, and a real U+FFFD that the model wrote is like any other
character. It knows nothing of stop strings (see stop.py).
"""

from __future__ import annotations

import codecs

from glassbox.text.vocab import Vocab


class Detokenizer:
    """The deltas of a stream: `feed` each id, then `flush`. Joined, they are the decoding of all ids at once.

    `pending` is half a character that came before the first id (a prompt may end with one): completed, it is
    the first delta. `drop_space` removes one leading space, which a SentencePiece tokenizer put before the
    text. `offset` is where the last id's first byte lies in the text, in characters from 0: bytes of one character
    share it, and an id that says nothing has that of what comes next.
    """

    def __init__(self, vocab: Vocab, *, pending: bytes = b"", drop_space: bool = False) -> None:
        self._vocab = vocab
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decode(pending)
        self._drop_space = drop_space
        self._sent = 0  # characters
        self.offset = 0

    def feed(self, token: int) -> str:
        """The text that can be shown now that this id is known; often empty. Control tokens say nothing."""
        data = self._vocab.text_bytes(token)
        if self._drop_space and data:
            self._drop_space = False
            data = data.removeprefix(b" ")
        first = self._decode(data[:1])  # begins a character, goes on with one, completes it, or breaks it
        self.offset = self._sent + len(first) - (1 if data and not self.held else 0)
        text = first + self._decode(data[1:])
        self._sent += len(text)
        return text

    def _decode(self, data: bytes) -> str:
        text = self._decoder.decode(data)
        if self.held[:1] == b"\xed" and self.held[1:] >= b"\xa0":  # Python waits for a surrogate, which no text has
            text += self._decoder.decode(b"", True)
        return text

    def fork(self) -> Detokenizer:
        """Another one at the same place in the same text."""
        twin = Detokenizer(self._vocab, pending=self.held, drop_space=self._drop_space)
        twin._sent, twin.offset = self._sent, self.offset
        return twin

    @property
    def held(self) -> bytes:
        """The bytes of an unfinished character, at most three."""
        return self._decoder.getstate()[0]

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, else nothing."""
        return self._decoder.decode(b"", True)
