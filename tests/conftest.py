"""Fixtures for the real models: fetched once into the user's cache folder, loaded once a test session.

And what `oracle` means: a test so marked asks another engine, and is left out where that is not installed. With
`--no-skips` (`make oracles`) whatever is left out fails.
"""

from __future__ import annotations

import gc
import importlib.util
import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threads_seen import trace_writers

import glassbox
from glassbox.weights.gguf import Gguf, read_gguf
from glassbox.weights.source import pull

DATA = Path(__file__).parent / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a test that would be skipped fails")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("oracle"):
        for name in mark.args:
            if importlib.util.find_spec(name) is None:  # one that is there and cannot be imported is no reason to skip
                pytest.skip(f"{name} is not installed: make oracles")


def _strict(report: Any, config: pytest.Config) -> Any:
    if report.skipped and config.getoption("no_skips"):
        report.outcome, report.longrepr = "failed", f"skipped, which --no-skips forbids: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _strict((yield), item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _strict((yield), collector.config)


def pytest_collection_finish() -> None:
    """What collecting the tests made stays to the end: the garbage collector need not go through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def every_store_is_closed() -> Iterator[None]:
    before = trace_writers()
    yield
    assert set(trace_writers()) <= set(before), "a test left a store open whose thread goes on writing"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return pull("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    return pull("gemma3-270m")


@pytest.fixture(scope="session")
def smollm2_gguf(smollm2_path: Path) -> Gguf:
    return read_gguf(smollm2_path)


@pytest.fixture(scope="session")
def gemma3_gguf(gemma3_path: Path) -> Gguf:
    return read_gguf(gemma3_path)


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> glassbox.Model:
    return glassbox.load(smollm2_path)


@pytest.fixture
def commands(smollm2: glassbox.Model, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> glassbox.Model:
    """smollm2, which the commands of a test find loaded: each would load it anew, and what that does has its own tests
    (test_cli.py, test_again.py)."""
    load = glassbox.load

    def found(name: str, **how: Any) -> glassbox.Model:
        known = name == "smollm2-135m" or Path(name) == smollm2_path
        return smollm2 if known and how["kv"] == "f32" else load(name, **how)

    monkeypatch.setattr(glassbox, "load", found)
    return smollm2


@pytest.fixture(scope="session")
def gemma3(gemma3_path: Path) -> glassbox.Model:
    return glassbox.load(gemma3_path)


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    """Right values from transformers on the dequantised float32 weights: {"smollm2": {"prompts": …}, "gemma3": …}."""
    out: dict[str, Any] = {}
    for stem in ("smollm2", "gemma3"):
        meta = json.loads((DATA / f"golden_{stem}.json").read_text())
        arrays = np.load(DATA / f"golden_{stem}.npz")
        for p in meta["prompts"]:
            p.update({k: arrays[f"{k}_{p['index']}"] for k in ("logit_ids", "logits", "logsumexp", "resid")})
        out[stem] = meta
    return out
