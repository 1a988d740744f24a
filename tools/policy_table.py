"""Prints the orders of all presets as a table, and what each has of its own. docs/policy.md shows the output."""

from __future__ import annotations

from glassbox.policy.policy import Policy
from glassbox.policy.presets import PRESETS
from glassbox.policy.table import STEPS


def main() -> None:
    names = list(PRESETS)
    print(f"{'step':<20}" + "".join(f"{name:>10}" for name in names) + "  argmax stays")
    for step, row in STEPS.items():
        places = (PRESETS[n].order.index(step) + 1 if step in PRESETS[n].order else "-" for n in names)
        stays = "yes" if getattr(row.kind, "argmax_invariant", False) else "no"
        print(f"{step:<20}" + "".join(f"{place:>10}" for place in places) + f"  {stays}")
    off = Policy().to_dict()
    for name, preset in PRESETS.items():
        print(f"\n{name}  ({preset.source})")
        for title, values in (("defaults", preset.defaults), ("always", preset.fixed)):
            shown = [f"{k}={v}" for k, v in values.items() if v != off[k]]
            if shown:
                print(f"  {title}: {', '.join(shown)}")
        if preset.greedy_below:
            print(f"  greedy: temperature below {preset.greedy_below:g}")
        if preset.least_temperature:
            print(f"  a temperature between 0 and {preset.least_temperature:g} becomes {preset.least_temperature:g}")
        for note in preset.notes:
            print(f"  {note}")


if __name__ == "__main__":
    main()
