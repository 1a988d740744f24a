"""Makes tests/data/beams.json: beam searches of small random models, by transformers in float32 on the CPU.

The scores are those of the ids found, in float64: a sum in float32, times a length, is another on another processor.

usage: python tools/make_beams.py   (needs torch, transformers and safetensors, and tests/ on the path)
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from tiny_weights import DATA, checkpoint, ids_of, load

CASES = ("llama-a", "gemma3-b", "qwen3-b", "gpt2-a", "cohere-b")
WIDTHS = (2, 3, 5)
PENALTIES = (0.0, 1.0, 2.0, -1.0)
EARLY = (False, True, "never")
PROMPT, TOKENS = 10, 9  # of the prompt, and at most generated


def model_of(case: str) -> Any:
    """The model of a case, as transformers has it."""
    import torch
    from safetensors.numpy import save_file
    from transformers import AutoModelForCausalLM

    memory = checkpoint(case, load()[0])
    with tempfile.TemporaryDirectory() as folder:
        save_file(memory.arrays, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        (Path(folder) / "config.json").write_text(json.dumps(memory.config))
        made = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return made.eval()


def search(model: Any, prompt: list[int], eos: list[int], **how: Any) -> dict[str, Any]:
    """The hypotheses, best first, without padding, and their scores."""
    import torch

    returned = how.pop("returned")
    out = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
        max_new_tokens=TOKENS, eos_token_id=eos, pad_token_id=0, return_dict_in_generate=True, output_scores=True,
        num_return_sequences=returned, **how,
    )  # fmt: skip
    lengths = (out.beam_indices >= 0).sum(dim=1).tolist()
    rows = [row[len(prompt) : len(prompt) + n] for row, n in zip(out.sequences.tolist(), lengths, strict=True)]
    return {"ids": rows, "scores": [round(s, 6) for s in out.sequences_scores.tolist()]}


def endings(model: Any, prompt: list[int]) -> list[int]:
    """Two ids that hypotheses meet early and late, so that some end and others do not."""
    free = search(model, prompt, [-1], num_beams=5, length_penalty=1.0, returned=5)["ids"]
    return sorted({free[1][3], free[4][6]})


def scored(double: Any, prompt: list[int], found: dict[str, Any], penalty: float) -> dict[str, Any]:
    """The same hypotheses, with their scores by the model in float64; transformers' own may differ by its rounding."""
    import torch

    scores = []
    for ids, theirs in zip(found["ids"], found["scores"], strict=True):
        with torch.no_grad():
            logits = double(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]  # [T, V]
        logprobs = torch.log_softmax(logits.double(), -1)[range(len(ids)), ids]
        scores.append(round(float(logprobs.sum()) / len(ids) ** penalty, 6))
        assert abs(scores[-1] - theirs) <= 2e-6 * max(1.0, abs(theirs)), (scores[-1], theirs)
    return {"ids": found["ids"], "scores": scores}


def make(case: str) -> dict[str, Any]:
    model, prompt = model_of(case), ids_of(case, load()[0][case]["config"]["vocab_size"])[:PROMPT]
    double, eos = model_of(case).double(), endings(model, prompt)
    found = []
    for width, penalty, early in itertools.product(WIDTHS, PENALTIES, EARLY):
        how = dict(num_beams=width, length_penalty=penalty, early_stopping=early, returned=min(3, width))
        found.append(how | scored(double, prompt, search(model, prompt, eos, **how), penalty))
    return {"prompt": prompt, "eos": eos, "searches": found}


def main() -> None:
    lines = []
    for case in CASES:
        made = make(case)
        finished = sum(ids[-1] in made["eos"] for s in made["searches"] for ids in s["ids"])
        print(case, made["eos"], f"{finished} of {sum(len(s['ids']) for s in made['searches'])} end")
        searches = ",\n  ".join(json.dumps(s) for s in made.pop("searches"))
        lines.append(f'{json.dumps(case)}: {json.dumps(made)[:-1]}, "searches": [\n  {searches}]}}')
    (DATA / "beams.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
