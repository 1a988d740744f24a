"""What is done to inner values, on the command line: --ablate, --scale, --replace and --positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from glassbox.errors import ParameterError

if TYPE_CHECKING:
    from glassbox.model.intervene import Intervention

AblateOption = typer.Option(
    [], "--ablate", metavar="POINT", help="Set an inner value to zero: mlp_out.3, attn_out.5.head3. Repeatable."
)
ScaleOption = typer.Option([], "--scale", metavar="POINT=F", help="Multiply an inner value by F. Repeatable.")
ReplaceOption = typer.Option(
    [], "--replace", metavar="POINT=FILE", help="Put the numbers of a .npy file in its place. Repeatable."
)
PositionsOption = typer.Option(
    None, "--positions", metavar="A:B", help="Do these from position A up to, not with, B. Default: everywhere."
)


def interventions(
    ablate: Sequence[str], scale: Sequence[str], replace: Sequence[str], positions: str | None
) -> tuple[Intervention, ...]:
    """What the flags say. Raises ParameterError, OSError."""
    from glassbox.model.intervene import Intervention

    where = (0, None) if positions is None else _positions(positions)
    if positions is not None and not (ablate or scale or replace):
        raise ParameterError("--positions", positions, "left out: it goes with --ablate, --scale or --replace")
    made = [Intervention(point, "zero", positions=where) for point in ablate]
    for text in scale:
        point, factor = _pair("--scale", text, "POINT=F")
        try:
            made.append(Intervention(point, "scale", float(factor), positions=where))
        except ValueError:
            raise ParameterError("--scale", text, "POINT=F with a number F") from None
    for text in replace:
        point, path = _pair("--replace", text, "POINT=FILE")
        made.append(Intervention(point, "replace", _numbers(path), positions=where))
    return tuple(made)


def _pair(flag: str, text: str, form: str) -> tuple[str, str]:
    point, equals, value = text.partition("=")
    if not equals or not point or not value:
        raise ParameterError(flag, text, f"of the form {form}")
    return point, value


def _positions(text: str) -> tuple[int, int | None]:
    first, colon, end = text.partition(":")
    if not colon or not all(part == "" or (part.isascii() and part.isdigit()) for part in (first, end)):
        raise ParameterError("--positions", text, "A:B, A: or :B, whole numbers")
    return int(first or 0), int(end) if end else None


def _numbers(path: str) -> Any:
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
        raise ParameterError("--replace", path, "a .npy file of numbers") from None
