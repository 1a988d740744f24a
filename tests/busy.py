"""How long something takes, whoever else uses the machine."""

from __future__ import annotations

import os


def seconds() -> float:
    """Of all cores together, spent so far by this process and by the children it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
