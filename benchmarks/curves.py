"""How cost grows: time of one token by how many stand before it, and of a prompt by its length.

python benchmarks/curves.py [--model M]
"""

from __future__ import annotations

import argparse
import statistics
import time

import glassbox
from glassbox.bench import machine, prefill_rate, some_ids
from glassbox.model.model import forward
from glassbox.opening import fresh_cache

CONTEXTS = (64, 256, 512, 1024, 2048, 4096)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    model = glassbox.load(parser.parse_args().model)
    print(f"{model.name} on {machine()}, {model.model.threads} threads, medians")
    with fresh_cache(model.model) as cache:
        for context in CONTEXTS:
            forward(model.model, some_ids(model, context - cache.length), cache)
            times = []
            for i in range(12):
                begin = time.perf_counter()
                forward(model.model, [i], cache)
                times.append(time.perf_counter() - begin)
                cache.truncate(context)
            print(f"decode   {context:>5} before it  {statistics.median(times) * 1e3:>7.2f} ms a token")
    for n in LENGTHS:
        rate = statistics.median(prefill_rate(model, n) for _ in range(3))
        print(f"prefill  {n:>5} tokens     {n / rate * 1e3:>7.0f} ms, {1e3 / rate:.2f} ms a token")


if __name__ == "__main__":
    main()
