"""Makes tests/data/scores.json: perplexities of the small random models, by transformers in float32 on the CPU.

usage: python tools/make_scores.py   (needs torch, transformers and safetensors)

As in transformers' guide "Perplexity of fixed-length models", https://huggingface.co/docs/transformers/perplexity, but
that the tokens of a loss are counted exactly: only the first window has one that nothing comes before.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import tiny_weights

CASES = ("llama-a", "mistral-b", "gemma3-a", "gpt2-b", "mixtral-a", "bloom-a")
WINDOWS = ((40, 20), (16, 8), (16, 4), (12, 11), (7, 1))  # context, stride


def load(case: str, cases: dict[str, Any]) -> Any:
    import torch
    from safetensors.numpy import save_file
    from transformers import AutoModelForCausalLM

    config, shapes = cases[case]["config"], cases[case]["shapes"]
    arrays = tiny_weights.weights(case, shapes, shifted=config["model_type"].startswith("gemma"))
    with tempfile.TemporaryDirectory() as folder:
        save_file(arrays, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def perplexity(model: Any, ids: list[int], context: int, stride: int) -> float:
    import torch

    total, count, done = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + context, len(ids))
        given = torch.tensor([ids[begin:end]])
        labels = given.clone()
        labels[:, : -(end - done)] = -100
        with torch.no_grad():
            loss = model(given, labels=labels).loss
        n = int((labels[:, 1:] != -100).sum())
        total, count, done = total + float(loss) * n, count + n, end
        if end == len(ids):
            break
    return math.exp(total / count)


def main() -> None:
    cases, _ = tiny_weights.load()
    found = {}
    for case in CASES:
        model, ids = load(case, cases), tiny_weights.ids_of(case, cases[case]["config"]["vocab_size"])
        found[case] = [[c, s, perplexity(model, ids, c, s)] for c, s in WINDOWS]
    lines = [f"{json.dumps(case)}: {json.dumps(rows)}" for case, rows in found.items()]
    (tiny_weights.DATA / "scores.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
