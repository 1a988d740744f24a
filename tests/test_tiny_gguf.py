"""The small models as GGUF files: the logits that transformers gives for the same weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny_gguf
import tiny_weights
from test_tiny import CASES, ids_of, off, run

from glassbox.model.model import TransformerModel
from glassbox.weights.gguf import read_gguf

T = gguf.GGMLQuantizationType

# Left out is what a GGUF file of that architecture cannot say: windows of qwen2, mixtral and starcoder2, gpt2 with
# another activation, experts' weights that do not sum to 1, layers without rope other than every fourth.
SAID = [
    "llama-a", "llama-b", "llama-linear-a", "llama-llama3-a", "llama-yarn-a", "qwen2-a", "qwen3-a", "qwen3-b",
    "gemma-a", "gemma-b", "gemma2-a", "gemma2-b", "gemma3-a", "gemma3-b", "gemma3-linear-a", "phi3-a", "phi3-b",
    "phi3-longrope-a", "gpt2-a", "olmo2-a", "olmo2-b", "mixtral-a", "qwen3_moe-a", "granite-a", "granite-b",
    "starcoder2-b", "stablelm-a", "stablelm-b", "gpt_neox-a", "gpt_neox-b", "cohere-a", "cohere-b", "bloom-a",
    "bloom-b", "smollm3-fourth-a", "smollm3-fourth-b",
]  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_logits_are_those_of_transformers(tmp_path: Path, case: str) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", tiny_weights.checkpoint(case, CASES))
    model, ids = TransformerModel(read_gguf(path), threads=1), ids_of(case)
    whole = run(model, ids, rows="all")
    assert off(whole, case) <= 1e-5
    assert run(model, ids, rows="all", chunk=1).tobytes() == whole.tobytes()


@pytest.mark.parametrize("kind", [T.Q8_0, T.F16])
@pytest.mark.parametrize("case", ["llama-a", "phi3-a", "mixtral-a", "gpt_neox-a", "bloom-a", "stablelm-a", "cohere-a"])
def test_rows_move_as_blocks(tmp_path: Path, case: str, kind: T) -> None:
    """Fused, paired and stacked matrices in formats of blocks: the bits of the float32 model of the same values."""
    file = tiny_gguf.rounded(tiny_weights.checkpoint(case, CASES), kind)
    packed = TransformerModel(read_gguf(tiny_gguf.write(tmp_path / "m.gguf", file, kind)), threads=2)
    plain = TransformerModel(file, threads=1)
    assert run(packed, ids_of(case), rows="all").tobytes() == run(plain, ids_of(case), rows="all").tobytes()
    assert packed.weights.nbytes < 0.7 * plain.weights.nbytes


def test_every_architecture_of_gguf_is_there() -> None:
    from glassbox.model.architectures import GGUF

    assert {tiny_gguf.ARCH[CASES[case]["config"]["model_type"]] for case in SAID} == set(GGUF)
    assert len({tiny_gguf.ARCH[k] for k in tiny_gguf.ARCH}) == len(GGUF) == 17
    assert np.all([case in CASES for case in SAID])
