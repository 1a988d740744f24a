"""The lab's claims, checked: python3 -m unittest labs.glassbox.test_glassbox -v"""

from __future__ import annotations

import contextlib
import io
import math
import os
import random
import subprocess
import sys
import unittest
from pathlib import Path

from labs.glassbox.v4_token_trace import (
    BIGRAM_LOGITS,
    TOKENS,
    StopMatcher,
    decode,
    encode,
    generate_one,
    greedy,
    main,
    projection_size,
    sample_categorical,
    seed_table,
    stable_softmax,
    top_k,
)


class FixedDraw(random.Random):
    """A generator whose next number is known, to put u where a test wants it."""

    def __init__(self, u: float) -> None:
        super().__init__()
        self.u = u

    def random(self) -> float:
        return self.u


class TextAndIds(unittest.TestCase):
    def test_the_vocabulary_is_four_tokens_in_order(self) -> None:
        self.assertEqual(TOKENS, (" ", "a", "b", "c"))
        self.assertEqual(encode(" abc"), [0, 1, 2, 3])

    def test_decode_undoes_encode(self) -> None:
        for text in ("", "ab", "  cab ba"):
            self.assertEqual(decode(encode(text)), text)

    def test_an_unknown_character_is_named(self) -> None:
        with self.assertRaisesRegex(ValueError, "'x' is not in the vocabulary"):
            encode("abx")

    def test_an_id_outside_the_vocabulary_is_refused(self) -> None:
        for bad in (-1, 4):
            with self.assertRaisesRegex(ValueError, f"no token {bad}"):
                decode([bad])


class Softmax(unittest.TestCase):
    def test_two_logits_by_hand(self) -> None:
        # exp(0) : exp(log 3) = 1 : 3
        for got, wanted in zip(stable_softmax([0.0, math.log(3)], 1.0), (0.25, 0.75), strict=True):
            self.assertAlmostEqual(got, wanted)

    def test_temperature_divides_the_logits(self) -> None:
        # at temperature 2 the ratio 9 becomes its square root, 3
        self.assertAlmostEqual(stable_softmax([0.0, math.log(9)], 2.0)[1], 0.75)

    def test_it_sums_to_one_and_keeps_the_order(self) -> None:
        for row in BIGRAM_LOGITS:
            for temperature in (0.1, 0.8, 1.0, 5.0):
                p = stable_softmax(row, temperature)
                self.assertAlmostEqual(math.fsum(p), 1.0)
                self.assertEqual(sorted(range(4), key=p.__getitem__), sorted(range(4), key=row.__getitem__))

    def test_large_logits_do_not_overflow(self) -> None:
        self.assertEqual(stable_softmax([1000.0, 1001.0], 1.0), stable_softmax([0.0, 1.0], 1.0))
        self.assertEqual(stable_softmax([0.0, 1.0], 1e-300), [0.0, 1.0])

    def test_a_token_taken_out_gets_nothing(self) -> None:
        self.assertEqual(stable_softmax([-math.inf, 0.0, 0.0], 1.0), [0.0, 0.5, 0.5])

    def test_temperatures_without_meaning_are_refused(self) -> None:
        for temperature in (0.0, -1.0, math.nan, math.inf):
            with self.assertRaisesRegex(ValueError, "temperature is"):
                stable_softmax([0.0, 1.0], temperature)

    def test_logits_without_meaning_are_refused(self) -> None:
        for logits in ([], [math.nan, 0.0], [0.0, math.nan], [0.0, math.inf], [-math.inf, -math.inf]):
            with self.assertRaisesRegex(ValueError, "softmax needs"):
                stable_softmax(logits, 1.0)


class Draw(unittest.TestCase):
    def test_u_selects_the_piece_it_lands_in(self) -> None:
        p = [0.25, 0.0, 0.5, 0.25]
        for u, wanted in ((0.0, 0), (0.2499, 0), (0.25, 2), (0.7499, 2), (0.75, 3), (0.9999, 3)):
            self.assertEqual(sample_categorical(p, FixedDraw(u)), wanted, f"u = {u}")

    def test_a_token_of_probability_zero_is_never_drawn(self) -> None:
        # the sum falls short of 1 by rounding; u above it must not fall through to the last, impossible token
        short = [1 / 3, 1 / 3, 1 / 3 - 1e-12, 0.0]
        self.assertEqual(sample_categorical(short, FixedDraw(1 - 2**-53)), 2)

    def test_one_draw_uses_one_number(self) -> None:
        used, fresh = random.Random(7), random.Random(7)
        sample_categorical([0.5, 0.5], used)
        fresh.random()
        self.assertEqual(used.random(), fresh.random())

    def test_frequencies_near_the_probabilities(self) -> None:
        p, rng, n = [0.1, 0.2, 0.3, 0.4], random.Random(0), 20_000
        drawn = [sample_categorical(p, rng) for _ in range(n)]
        for i, wanted in enumerate(p):
            # four standard deviations: a right sampler fails for one seed in ten thousand
            self.assertLess(abs(drawn.count(i) / n - wanted), 4 * math.sqrt(wanted * (1 - wanted) / n))

    def test_what_is_no_distribution_is_refused(self) -> None:
        for bad in ([], [0.5, 0.4], [1.5, -0.5], [math.nan, 1.0]):
            with self.assertRaises(ValueError):
                sample_categorical(bad, random.Random(0))


class OneStep(unittest.TestCase):
    def test_the_example(self) -> None:
        step = generate_one("ab", 0.8, 7)
        self.assertEqual(step.token_ids, [1, 2])
        self.assertEqual(step.logits, list(BIGRAM_LOGITS[2]))
        self.assertEqual(step.probabilities, stable_softmax(BIGRAM_LOGITS[2], 0.8))
        self.assertEqual((step.selected_id, step.selected_token), (3, "c"))
        self.assertEqual(step.selected_id, sample_categorical(step.probabilities, random.Random(7)))

    def test_a_step_reads_as_a_mapping_too(self) -> None:
        step = generate_one("ab", 0.8, 7)
        self.assertEqual(list(step), ["token_ids", "logits", "probabilities", "selected_id", "selected_token"])
        self.assertEqual(dict(step)["selected_token"], "c")
        with self.assertRaises(KeyError):
            step["entropy"]

    def test_the_choice_is_neither_certain_nor_rare(self) -> None:
        self.assertTrue(0.5 < generate_one("ab", 0.8, 7).probabilities[3] < 0.9)

    def test_only_the_last_token_matters(self) -> None:
        self.assertEqual(generate_one("ab", 0.8, 7).logits, generate_one("ccb", 0.8, 7).logits)

    def test_bad_input_is_one_clear_sentence(self) -> None:
        for text, temperature, words in (
            ("", 0.8, "empty"),
            ("hello", 0.8, "'h' is not in the vocabulary"),
            ("ab", -1.0, "temperature is -1.0"),
            ("ab", math.nan, "temperature is nan"),
        ):
            with self.assertRaisesRegex(ValueError, words) as caught:
                generate_one(text, temperature, 7)
            self.assertNotIn("\n", str(caught.exception))


class Exercises(unittest.TestCase):
    def test_1_frequencies_beside_probabilities(self) -> None:
        rows = seed_table("ab", 0.8, range(10))
        self.assertEqual([token for token, *_ in rows], list(TOKENS))
        self.assertEqual([p for _, p, *_ in rows], generate_one("ab", 0.8, 0).probabilities)
        self.assertEqual([frequency for _, _, frequency, _ in rows], [0.1, 0.3, 0.0, 0.6])
        self.assertEqual([seeds for *_, seeds in rows], [[1], [3, 4, 8], [], [0, 2, 5, 6, 7, 9]])

    def test_1_more_seeds_come_nearer(self) -> None:
        def distance(n: int) -> float:
            return sum(abs(p - frequency) for _, p, frequency, _ in seed_table("ab", 0.8, range(n)))

        self.assertLess(distance(5_000), 0.05)
        self.assertGreater(distance(10), 0.05)

    def test_2_greedy_takes_the_best_whatever_the_seed(self) -> None:
        for last, row in enumerate(BIGRAM_LOGITS):
            chosen = {generate_one(TOKENS[last], 0, seed).selected_id for seed in range(20)}
            self.assertEqual(chosen, {greedy(row)})
        self.assertEqual(generate_one("ab", 0, 1).probabilities, [0.0, 0.0, 0.0, 1.0])

    def test_2_of_equals_the_lowest_id(self) -> None:
        self.assertEqual(greedy([1.0, 3.0, 3.0]), 1)

    def test_3_top_1_is_greedy(self) -> None:
        for row in BIGRAM_LOGITS:
            p = stable_softmax(top_k(row, 1), 0.8)
            self.assertEqual(p, [1.0 if i == greedy(row) else 0.0 for i in range(4)])
        self.assertEqual(top_k([3.0, 3.0], 1), [3.0, -math.inf])

    def test_3_top_v_changes_nothing(self) -> None:
        for row in BIGRAM_LOGITS:
            self.assertEqual(top_k(row, len(TOKENS)), list(row))

    def test_3_between_them_the_worst_are_taken_out(self) -> None:
        self.assertEqual(top_k([0.75, 0.5, -1.0, 2.0], 2), [0.75, -math.inf, -math.inf, 2.0])
        with self.assertRaises(ValueError):
            top_k([1.0], 0)

    def test_4_a_stop_string_across_two_tokens(self) -> None:
        matcher = StopMatcher("bc")
        self.assertEqual([matcher.feed(t) for t in "abcab"], ["a", "", "", "", ""])
        self.assertTrue(matcher.stopped)
        self.assertEqual(matcher.flush(), "")

    def test_4_what_was_held_back_for_nothing_is_shown(self) -> None:
        matcher = StopMatcher("bc")
        self.assertEqual([matcher.feed(t) for t in "abab"], ["a", "", "ba", ""])
        self.assertEqual(matcher.flush(), "b")
        self.assertFalse(matcher.stopped)

    def test_4_any_split_shows_the_same(self) -> None:
        text, rng = "aab abaabc ab", random.Random(4)
        for stop in ("aabc", "ba", "aa", " ", "ccc"):
            for _ in range(50):
                matcher, shown, rest = StopMatcher(stop), "", text
                while rest:
                    n = rng.randint(1, len(rest))
                    shown, rest = shown + matcher.feed(rest[:n]), rest[n:]
                self.assertEqual(shown + matcher.flush(), text.split(stop)[0])
                self.assertEqual(matcher.stopped, stop in text)

    def test_4_an_empty_stop_string_is_refused(self) -> None:
        with self.assertRaises(ValueError):
            StopMatcher("")

    def test_5_an_untied_projection(self) -> None:
        self.assertEqual(projection_size(50_000, 4_096), 204_800_000)


class Printed(unittest.TestCase):
    def test_the_trace_shows_every_stage(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(main([]), 0)
        for part in ("'ab'", "[1, 2]", "+2.00", "0.7212", "u = 0.3238", "id 3, token 'c'", "'abc'"):
            self.assertIn(part, out.getvalue())

    def test_bad_input_is_one_line_and_exit_code_2(self) -> None:
        for arguments in (["xyz"], [""], ["ab", "--temperature", "nan"], ["ab", "--temperature=-1"]):
            with contextlib.redirect_stderr(io.StringIO()) as err:
                self.assertEqual(main(arguments), 2)
            self.assertEqual(err.getvalue().count("\n"), 1)

    def test_a_reader_that_has_gone_is_no_error(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "labs.glassbox.v4_token_trace"]
        with os.fdopen(writer, "wb") as nobody_reads:
            ended = subprocess.run(
                command, stdout=nobody_reads, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2], check=False
            )
        self.assertEqual((ended.returncode, ended.stderr), (0, b""))


if __name__ == "__main__":
    unittest.main()
