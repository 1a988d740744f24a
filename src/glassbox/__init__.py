"""Glassbox: the LLM generation engine you can see through.

model = glassbox.load("smollm2-135m")
run = model.generate("Once upon a time", policy=glassbox.Policy(temperature=0.8), seed=7, max_tokens=64)
run.text, run.steps[3].ledger
"""

from glassbox import errors
from glassbox.api import Model, load, load_tokenizer
from glassbox.policy.policy import Policy
from glassbox.trace.record import Run
from glassbox.trace.store import open_store
from glassbox.version import VERSION as __version__

__all__ = ["Model", "Policy", "Run", "__version__", "errors", "load", "load_tokenizer", "open_store"]
