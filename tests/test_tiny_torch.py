"""The goldens of test_tiny.py made anew by torch and transformers: they are what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_tiny import CASES, LOGITS

from tools.make_tiny import every, make

pytestmark = [pytest.mark.oracle("torch", "transformers"), pytest.mark.filterwarnings("ignore")]  # theirs


@pytest.mark.parametrize("case", sorted(every()))
def test_transformers_says_the_same_today(case: str) -> None:
    kind, values = every()[case]
    made, logits = make(case, kind, values)
    assert made["shapes"] == CASES[case]["shapes"]
    assert np.abs(logits - LOGITS[case]).max() <= 1e-5 * np.abs(logits).max()
    assert without_version(made["config"]) == without_version(CASES[case]["config"])


def without_version(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "transformers_version"}
