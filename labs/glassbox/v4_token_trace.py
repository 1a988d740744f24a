"""One next-token prediction, seen whole: text -> ids -> logits -> probabilities -> draw -> token.

Comes in: a text over four characters, a temperature, a seed. Goes out: a `Step`, every value of it.
Every language model has this shape. This one has the smallest inside: a table that looks at the last token.
But: no training, no tokenizer, no attention. Those change how logits are made, and nothing that comes after.

    python3 -m labs.glassbox.v4_token_trace
    python3 -m labs.glassbox.v4_token_trace "a b" --temperature 2 --seed 3
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

TOKENS = (" ", "a", "b", "c")  # the vocabulary: the id of a token is its place here
BAR = 32  # columns of a full bar in the printed trace

# BIGRAM_LOGITS[last][next]: how well `next` follows `last`. Only differences within a row matter.
BIGRAM_LOGITS = (
    #  " "     a     b     c
    (-2.00, 2.00, 1.00, 0.50),  # after " ": a word begins, most often with a
    (0.00, -1.00, 2.00, 1.00),  # after a: most often b
    (0.75, 0.50, -1.00, 2.00),  # after b: most often c, though the word may end or begin anew
    (2.00, 1.00, 0.00, -1.00),  # after c: the word ends
)


@dataclass(frozen=True)
class Step(Mapping[str, object]):
    """All that one prediction made, in order. Read it as `step.logits` or `step["logits"]`."""

    token_ids: list[int]  # the prompt as ids
    logits: list[float]  # [V], one score for each token that could come next
    probabilities: list[float]  # [V], what the draw chooses from
    selected_id: int
    selected_token: str

    def __getitem__(self, name: str) -> object:
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return any(f.name == name for f in fields(self))

    def __iter__(self) -> Iterator[str]:
        return (f.name for f in fields(self))

    def __len__(self) -> int:
        return len(fields(self))


# ---- text <-> ids


def encode(text: str) -> list[int]:
    """Text -> ids, one for each character. encode("ab") == [1, 2]"""
    for character in text:
        if character not in TOKENS:
            known = ", ".join(map(repr, TOKENS))
            raise ValueError(f"{character!r} is not in the vocabulary, which is {known}")
    return [TOKENS.index(character) for character in text]


def decode(token_ids: Sequence[int]) -> str:
    """Ids -> text. decode([1, 2]) == "ab" """
    for i in token_ids:
        if not 0 <= i < len(TOKENS):  # a negative index would silently read from the end
            raise ValueError(f"there is no token {i}: ids go from 0 to {len(TOKENS) - 1}")
    return "".join(TOKENS[i] for i in token_ids)


# ---- ids -> logits -> probabilities -> id


def predict(token_ids: Sequence[int]) -> list[float]:
    """Ids -> the logits of the next token, [V]. A real model has billions of weights here."""
    if not token_ids:
        raise ValueError("the prompt is empty, so there is no last token to predict from")
    return list(BIGRAM_LOGITS[token_ids[-1]])


def stable_softmax(logits: Sequence[float], temperature: float) -> list[float]:
    """Logits -> probabilities: exp(logit / temperature), scaled so that they sum to 1.

    A higher temperature flattens, a lower one sharpens. A logit of -inf is a token taken out: it gets 0.
    """
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature is {temperature}, but must be a finite number above 0")
    top = max(logits, default=-math.inf)
    if not math.isfinite(top) or any(math.isnan(x) for x in logits):
        raise ValueError("softmax needs a finite largest logit, and no logit may be NaN")
    # exp overflows above 709. Taking the largest logit away first changes no ratio and leaves none above 0.
    weights = [math.exp((x - top) / temperature) for x in logits]
    total = math.fsum(weights)
    return [w / total for w in weights]


def sample_categorical(probabilities: Sequence[float], rng: random.Random) -> int:
    """Draw one id: lay the probabilities end to end from 0 to 1 and see in whose piece a random u lands."""
    if not all(p >= 0 for p in probabilities):  # also false for NaN
        raise ValueError("a probability is negative or NaN")
    if not math.isclose(math.fsum(probabilities), 1.0, abs_tol=1e-9):
        raise ValueError(f"probabilities sum to {math.fsum(probabilities)}, but must sum to 1")
    u, reached = rng.random(), 0.0
    for i, p in enumerate(probabilities):
        reached += p
        if u < reached:
            return i
    # Rounding can leave the sum just below 1 and u above it: then u belongs to the last possible token.
    return max(i for i, p in enumerate(probabilities) if p > 0)


def greedy(values: Sequence[float]) -> int:
    """Exercise 2: the id of the largest value; of equals, the lowest. Sampling nears this as T nears 0."""
    return max(range(len(values)), key=lambda i: values[i])  # max keeps the first of equals


def generate_one(text: str, temperature: float, seed: int) -> Step:
    """Predict the token after `text`. Temperature 0 is greedy: all of the probability on the best token."""
    token_ids = encode(text)
    logits = predict(token_ids)
    if temperature == 0:
        best = greedy(logits)
        probabilities = [1.0 if i == best else 0.0 for i in range(len(logits))]
    else:
        probabilities = stable_softmax(logits, temperature)
    selected = sample_categorical(probabilities, random.Random(seed))
    return Step(token_ids, logits, probabilities, selected, TOKENS[selected])


# ---- the exercises, done


Row = tuple[str, float, float, list[int]]  # token, probability, frequency, the seeds that chose it


def seed_table(text: str, temperature: float, seeds: Sequence[int]) -> list[Row]:
    """Exercise 1: frequencies beside probabilities. They come near slowly: ten seeds are few."""
    if not seeds:
        raise ValueError("a frequency needs at least one seed")
    steps = {seed: generate_one(text, temperature, seed) for seed in seeds}
    probabilities = next(iter(steps.values())).probabilities  # the seed does not touch them
    rows = []
    for i, token in enumerate(TOKENS):
        chose = [seed for seed, step in steps.items() if step.selected_id == i]
        rows.append((token, probabilities[i], len(chose) / len(steps), chose))
    return rows


def top_k(logits: Sequence[float], k: int) -> list[float]:
    """Exercise 3: keep the k best logits (of equals, the lowest ids); the others become -inf."""
    if k < 1:
        raise ValueError(f"k is {k}, but at least one token must be kept")
    best = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:k]
    return [x if i in best else -math.inf for i, x in enumerate(logits)]


class StopMatcher:
    """Exercise 4: find a stop string in text that comes token by token, and never show a part of it.

    `feed` returns what may be shown now. What could still become the stop string waits; `flush` gives it out.
    """

    def __init__(self, stop: str) -> None:
        if not stop:
            raise ValueError("the stop string is empty, so it would match before the first token")
        self.stop, self.held, self.stopped = stop, "", False

    def feed(self, piece: str) -> str:
        if self.stopped:
            return ""
        self.held += piece
        at = self.held.find(self.stop)
        if at >= 0:
            shown, self.held, self.stopped = self.held[:at], "", True
            return shown
        # The longest end of the text that begins the stop string must wait for the next token.
        wait = next((n for n in range(len(self.stop) - 1, 0, -1) if self.held.endswith(self.stop[:n])), 0)
        cut = len(self.held) - wait
        shown, self.held = self.held[:cut], self.held[cut:]
        return shown

    def flush(self) -> str:
        shown, self.held = self.held, ""
        return shown


def projection_size(vocabulary: int, width: int) -> int:
    """Exercise 5: weights in an untied output projection: a row of `width` numbers for each token.

    V = 50,000 and d = 4,096 make 204,800,000. Tied, the embedding table serves again: 0 more.
    """
    return vocabulary * width


# ---- the printed trace


def show(text: str, temperature: float, seed: int) -> str:
    """The trace of one prediction and the table of exercise 1, as text."""
    step = generate_one(text, temperature, seed)
    u = random.Random(seed).random()  # the same seed gives the same number: this is the u of the draw
    how = "greedy" if temperature == 0 else f"softmax(logits / {temperature:g})"
    lines = [f"text           {text!r}", f"token ids      {step.token_ids}", "", f"the next token, by {how}:"]
    lines.append("   id  token    logit  probability  from     to")
    reached = 0.0
    for i, (token, x, p) in enumerate(zip(TOKENS, step.logits, step.probabilities, strict=True)):
        mark = "  <- u" if i == step.selected_id else ""
        bar = "#" * round(p * BAR)
        row = f"   {i:2}  {token!r:5}  {x:+7.2f}      {p:7.4f}  {reached:.4f} {reached + p:.4f}  {bar}{mark}"
        lines.append(row.rstrip())
        reached += p
    lines += ["", f"draw           u = {u:.4f} from seed {seed}"]
    lines += [f"selected       id {step.selected_id}, token {step.selected_token!r}"]
    lines += [f"text now       {text + step.selected_token!r}", "", "the same prompt with seeds 0 to 9:"]
    lines.append("   token  probability  frequency  seeds")
    for token, p, frequency, chose in seed_table(text, temperature, range(10)):
        lines.append(f"   {token!r:5}      {p:7.4f}     {frequency:6.2f}  {' '.join(map(str, chose)) or '-'}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the trace; bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(prog="v4_token_trace", description="Trace one next-token prediction.")
    parser.add_argument("text", nargs="?", default="ab", help="the prompt (default: ab)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 is greedy (default: 0.8)")
    parser.add_argument("--seed", type=int, default=7, help="the same seed gives the same token (default: 7)")
    asked = parser.parse_args(arguments)
    try:
        print(show(asked.text, asked.temperature, asked.seed), flush=True)
    except ValueError as e:
        print(e, file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads, `head` for one, has seen enough; Python would flush again as it goes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
