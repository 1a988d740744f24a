"""Glassbox: the LLM generation engine you can see through.

model = glassbox.load("smollm2-135m")
run = model.generate("Once upon a time", policy=glassbox.Policy(temperature=0.8), seed=7, max_tokens=64)
run.text, run.steps[3].ledger

What is here is imported when it is first used (PEP 562), so that the command line can be
interrupted from its first moment.
"""

from typing import TYPE_CHECKING

from glassbox import errors
from glassbox.version import VERSION as __version__

if TYPE_CHECKING:
    from glassbox.api import Model, load, open_store
    from glassbox.beam import Beam
    from glassbox.model.intervene import Intervention
    from glassbox.opening import load_tokenizer
    from glassbox.policy.policy import Policy
    from glassbox.trace.diff import diff
    from glassbox.trace.run import Run
else:
    _HOMES = {
        "Model": "api",
        "load": "api",
        "load_tokenizer": "opening",
        "Beam": "beam",
        "Intervention": "model.intervene",
        "diff": "trace.diff",
        "Policy": "policy.policy",
        "Run": "api",
        "open_store": "api",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value

    def __dir__():
        return sorted({*globals(), *_HOMES})


__all__ = [
    "Beam", "Intervention", "Model", "Policy", "Run", "__version__", "diff", "errors", "load", "load_tokenizer",
    "open_store",
]  # fmt: skip
