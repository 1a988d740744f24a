"""The `tokenizers` library's failures as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from glassbox.errors import ModelFormatError, Unsupported


@contextmanager
def library(field: str) -> Iterator[None]:
    """The library raises plain Exception, or a panic that is no Exception at all, for what it cannot read."""
    try:
        yield
    except (ModelFormatError, Unsupported, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:
        raise ModelFormatError(f"the tokenizers library refuses it: {e}".splitlines()[0][:200], field=field) from None
