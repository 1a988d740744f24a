"""Guidance, DoLa and contrastive search by transformers' models: makes tests/data/passes_hf.json, for the tests to
compare with.

    python tests/passes_hf.py        with torch and transformers installed; neither is needed to run the tests

Guidance is transformers' own generate. It no longer has the other two, so those are written here as its former code
and the papers have them, over its models' hidden states: without a cache, everything anew for each token.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import tiny_weights

PATH = Path(__file__).parent / "data" / "passes_hf.json"
MODELS = ("llama-b", "gemma2-b", "gpt2-a", "mistral-b", "qwen3-a", "cohere-a")
PROMPT, NEGATIVE, N = 9, (5, 40, 7, 7, 90), 14
SETS: dict[str, dict[str, Any]] = {
    "guidance": {"guidance_scale": 1.6, "negative_ids": NEGATIVE},
    "guidance_alone": {"guidance_scale": 2.5},
    "dola_high": {"dola_layers": "high"},
    "dola_low": {"dola_layers": "low"},
    "dola_all": {"dola_layers": [0, 1]},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 5},
    "contrastive_mild": {"penalty_alpha": 0.3, "top_k": 8},
}


def load(case: str, cases: dict[str, Any]) -> Any:
    import torch
    from safetensors.numpy import save_file
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        made = tiny_weights.checkpoint(case, cases)
        (Path(folder) / "config.json").write_text(json.dumps(made.config))
        save_file(made.arrays, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def guidance(model: Any, prompt: list[int], values: dict[str, Any]) -> dict[str, Any]:
    import torch

    negative = values.get("negative_ids")
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)).long(),
            max_new_tokens=N, min_new_tokens=N, do_sample=False, output_scores=True,
            return_dict_in_generate=True, guidance_scale=values["guidance_scale"], eos_token_id=None,
            negative_prompt_ids=torch.tensor([negative]) if negative else None,
            negative_prompt_attention_mask=torch.ones(1, len(negative), dtype=torch.long) if negative else None,
        )  # fmt: skip
    logprobs = [torch.log_softmax(s[0].double(), -1) for s in out.scores]
    ids = out.sequences[0, len(prompt) :].tolist()
    return {"ids": ids, "logprobs": [float(row[i]) for row, i in zip(logprobs, ids, strict=True)]}


def dola(model: Any, prompt: list[int], values: dict[str, Any]) -> dict[str, Any]:
    import torch

    asked, n = values["dola_layers"], model.config.num_hidden_layers
    tied = model.config.tie_word_embeddings
    start = (2 if n > 2 else 1 if n == 2 else 0) if tied else 0
    if asked == "low":
        layers = [start] if start == n // 2 else list(range(start, n // 2, 2))
    else:
        layers = list(range(n // 2, n, 2)) if asked == "high" else [i for i in asked if i < n]
    if not layers:
        return {"ids": []}
    ids, chosen, logprobs = list(prompt), [], []
    for _ in range(N):
        with torch.no_grad():
            out = model(torch.tensor([ids]), output_hidden_states=True)
            head = model.get_output_embeddings()
            final = out.logits[0, -1].float()
            early = {i: head(out.hidden_states[i][0, -1]).float() for i in layers}
        p, log_p = torch.softmax(final, -1), torch.log_softmax(final, -1)
        apart = {}
        for i, row in early.items():
            mean, log_q = 0.5 * (p + torch.softmax(row, -1)), torch.log_softmax(row, -1)
            kl = torch.nn.functional.kl_div
            apart[i] = 0.5 * float(kl(log_p, mean, reduction="none").mean() + kl(log_q, mean, reduction="none").mean())
        layer = max(apart, key=lambda i: apart[i])
        scores = log_p - torch.log_softmax(early[layer], -1)
        scores[log_p < log_p.max() + float(torch.log(torch.tensor(0.1)))] = -float("inf")
        ids.append(int(scores.argmax()))
        chosen.append(layer)
        logprobs.append(float(torch.log_softmax(scores.double(), -1)[ids[-1]]))
    return {"ids": ids[len(prompt) :], "layers": chosen, "logprobs": logprobs}


def contrastive(model: Any, prompt: list[int], values: dict[str, Any]) -> dict[str, Any]:
    import torch

    alpha, ids, scores = values["penalty_alpha"], list(prompt), []
    for _ in range(N):
        with torch.no_grad():
            out = model(torch.tensor([ids]))
            p, top = torch.softmax(out.logits[0, -1], -1).topk(values["top_k"])
            tries = torch.tensor([[*ids, int(i)] for i in top])
            hidden = model(tries, output_hidden_states=True).hidden_states[-1]  # [k, n + 1, D], after the final norm
        hidden = hidden / hidden.norm(dim=-1, keepdim=True)
        alike = (hidden[:, :-1] @ hidden[:, -1:].transpose(1, 2)).max(dim=1).values[:, 0]
        score = (1 - alpha) * p - alpha * alike
        ids.append(int(top[score.argmax()]))
        scores.append(float(score.max()))
    return {"ids": ids[len(prompt) :], "scores": scores}


HOW = {"guidance": guidance, "dola": dola, "contrastive": contrastive}


def made(case: str, cases: dict[str, Any]) -> dict[str, Any]:
    """{set: what came out} of one model."""
    model = load(case, cases)
    prompt = tiny_weights.ids_of(case, model.config.vocab_size)[:PROMPT]
    return {name: HOW[name.split("_")[0]](model, prompt, values) for name, values in SETS.items()}


if __name__ == "__main__":
    import transformers

    cases = tiny_weights.load()[0]
    found = {case: made(case, cases) for case in sys.argv[1:] or MODELS}
    lines = ",\n".join(f"{json.dumps(case)}: {json.dumps(sets)}" for case, sets in found.items())
    PATH.write_text(f'{{"transformers": "{transformers.__version__}", "models": {{\n{lines}\n}}}}\n')
    print(PATH.stat().st_size, "bytes")
