"""Small shared types: no logic, no imports from the stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]

Sums = dict[float, tuple[float, float]]
"""Of one row of logits: inverse temperature -> (sum of w over all but the best, sum of w z), with w = exp(z)."""

Message = Mapping[str, Any]  # {"role": ..., "content": ...}, as chat templates expect it
Messages = Sequence[Message]

FinishReason = Literal["stop", "length", "cancelled", "error", "time"]
"""The API's word for why a generation ended; what matched exactly is the stop reason beside it."""
