"""Tables of the rotary embedding (Su et al. 2021): cos and sin of position · base**(-2i/W), from float64."""

from __future__ import annotations

import numpy as np

from glassbox.types import F32


class RopeTables:
    """For each base, float32 [positions, W/2] twice. Made for a number of positions, before a program names them."""

    def __init__(self, head_width: int, positions: int) -> None:
        self.head_width, self.positions = head_width, positions
        self._tables: dict[float, tuple[F32, F32]] = {}

    def table(self, base: float) -> tuple[F32, F32]:
        if base not in self._tables:
            i = np.arange(0, self.head_width, 2, dtype=np.float64)
            angle = np.arange(self.positions)[:, None] * base ** (-i / self.head_width)  # [positions, W/2]
            self._tables[base] = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        return self._tables[base]

    def address(self, base: float) -> tuple[int, int]:
        cos, sin = self.table(base)
        return cos.ctypes.data, sin.ctypes.data
