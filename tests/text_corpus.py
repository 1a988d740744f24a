"""Lines of text of many kinds for the tokenizer tests, the same every time."""

from __future__ import annotations

import random

WORDS = """the of and to in a is that for it was on are as with his they at be this from I have or by one had not but
what all were when we there can an your which their said if do will each about how up out them then she many some so
these would other into has more her two like him see time could no make than first been its who now people my made over
did down only way find use may water long little very after words called just where most know don't I've WE'RE it'll"""
SCRIPTS = {
    "russian": "Съешь ещё этих мягких французских булок да выпей чаю",
    "greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία Ὀδυσσεύς",
    "german": "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich ẞ",
    "french": "Portez ce vieux whisky au juge blond qui fume, çà et là où l’œuf",
    "polish": "Pchnąć w tę łódź jeża lub ośm skrzyń fig",
    "turkish": "Pijamalı hasta yağız şoföre çabucak güvendi İstanbul'da ılık",
    "vietnamese": "Tôi có thể ăn thủy tinh mà không hại gì",
    "hebrew": "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "arabic": "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ٠١٢٣٤٥٦٧٨٩",
    "hindi": "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश १२३",
    "bengali": "আমি বাংলায় গান গাই ০১২৩",
    "tamil": "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்",
    "thai": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓",
    "khmer": "កាន់តែពិសេសអាចខលចេញ",
    "chinese": "我能吞下玻璃而不伤身体。天地玄黃，宇宙洪荒！（一）二〇〇",
    "japanese": "いろはにほへと ちりぬるを ワタシハ ガラス 色は匂へど「東京」",
    "korean": "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다",
    "georgian": "გთხოვთ ახლავე გაიაროთ რეგისტრაცია Ⴀ",
    "armenian": "Բել դղյակի ձախ ժամն օֆ ազգությանը",
    "amharic": "ሰማይ አይታረስ ንጉሥ አይከሰስ።",
    "cherokee": "ᎠᏍᎦᏯ ᎤᏃᎴ ꭰꮝꭶꮿ",
    "math": "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α∧¬β = ¬(¬α∨β), ½ ² ₃ Ⅷ ⑨ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚",
}
CODE = [
    "def f(x):\n\treturn {k: v for k, v in x.items() if k != 'a'}  # note",
    "for (int i = 0; i < n; ++i) { a[i] += b[i]*0x1F; }",
    "\r\n".join(['<a href="https://example.org/?q=1&amp;r=2#x">it\'s</a>', "\t\t<br/>", ""]),
    "SELECT * FROM t WHERE id IN (1,22,333,4444,55555) AND name LIKE '%x_%';",
    "    if (a&&b||!c) ->fn(&mut x)?.y::<T>(); /* ... */",
    '{"k": [1, 2.50, -3e10, null, true], "s": "\\u00e9\\n"}',
    "```python\n>>> print('hi')\nhi\n```",
    '$ ls -la | grep "^d" > /dev/null 2>&1 && echo $HOME',
]
EMOJI = ["👩\u200d👩\u200d👧\u200d👦", "🏳️\u200d🌈", "👍🏽", "🇩🇪🇫🇷", "😀😶\u200d🌫️", "❤️", "1️⃣", "🫠"]
MARKS = [
    "e\u0301", "é", "a\u030a\u0323", "ñ", "n\u0303", "\u1e9b\u0323",
    "ﬁ", "Å", "\u212b", "한", "\u1112\u1161\u11ab", "ё",
]  # fmt: skip
SPACES = [
    " ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n",
    "\r", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\u2028", "\x0b",
]  # fmt: skip
ODD = [
    "\x00", "\x01", "\x04", "\x1b[0m", "\x1c", "\x1f", "\x7f",
    "\x85", "\u200b", "\u200e", "\ufeff", "\ufffd", "\U0010ffff", "\ue000",
]  # fmt: skip
SIGNS = [
    *"!?.,;:'\"()[]{}<>@#$%^&*-_=+/\\|`~", "...", "--", "->", "::", "''''", "…",
    "—", "«»", "、", "。", "，", "।", "€",
]  # fmt: skip
SHORT = ["I've", "we'RE", "it'S", "'tis", "don't", "YOU'LL", "o'clock", "'d", "l'été", "’s", "'ſ", "'M"]


def numbers(r: random.Random) -> str:
    made = [str(r.randrange(10 ** r.randint(1, 12))), f"{r.uniform(-1e4, 1e4):.3f}"]
    return r.choice([*made, "3..3", "1,234,567", "007"])


def corpus(n: int = 2200, *, control: bool = True, seed: int = 4) -> list[str]:
    """`n` lines. Without `control`, none holds a character below U+0020 but tab and line ends."""
    r, words = random.Random(seed), WORDS.split()
    kinds = [
        lambda: r.choice(words), lambda: r.choice(words).title(), lambda: r.choice(words).upper(),
        lambda: "".join(w.title() for w in r.choices(words, k=2)), lambda: numbers(r),
        lambda: " ".join(r.choices(r.choice(list(SCRIPTS.values())).split(), k=3)),
        lambda: "".join(r.choices(r.choice(list(SCRIPTS.values())), k=5)), lambda: r.choice(EMOJI),
        lambda: r.choice(MARKS), lambda: r.choice(SIGNS) * r.randint(1, 3), lambda: r.choice(SHORT),
        lambda: r.choice(SPACES) * r.randint(1, 3),
    ]  # fmt: skip
    if control:
        kinds.append(lambda: r.choice(ODD))
    lines = ["", " ", "\n", "\t", "a", " a", "a ", *words, *SCRIPTS.values(), *CODE, *SHORT, *SPACES]
    lines += [c * k for c in ("a", " ", "\n", "=", "é", "日", "1", "👍", "\u0301", "ab") for k in (2, 3, 17, 300)]
    while len(lines) < n:
        glue = r.choice(["", "", " ", " "])
        lines.append(glue.join(r.choice(kinds)() for _ in range(r.randint(1, 9))))
    return lines
