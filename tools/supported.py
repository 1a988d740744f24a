"""Prints which models can run, from the tables of the code: architectures, tensor formats, tokenizers.

README.md shows the output.
"""

from __future__ import annotations

import textwrap

from glassbox.model.architectures import ARCHITECTURES
from glassbox.text import hf, metadata
from glassbox.text.pretokenizers import PRE_TOKENIZERS
from glassbox.weights.foreign import DTYPES
from glassbox.weights.quant import FORMATS


def main() -> None:
    rows = {
        "config.json": sorted(ARCHITECTURES),
        "GGUF": sorted(row.gguf for row in ARCHITECTURES.values() if row.gguf),
        "safetensors": DTYPES,
        "GGUF formats": FORMATS,
        "tokenizer.json": hf.MODELS,
        "GGUF tokenizer": metadata.MODELS,
        "of gpt2": sorted(PRE_TOKENIZERS),
    }
    for label, names in rows.items():
        lines = textwrap.wrap(", ".join(names), 84, break_on_hyphens=False)
        print("\n".join(f"{'' if i else label:<16}{line}" for i, line in enumerate(lines)))


if __name__ == "__main__":
    main()
