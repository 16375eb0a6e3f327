"""Text that tokenizers get wrong: a mix of the characters at which implementations differ."""

import random

_SOURCES = (
    "abcdefghij ",
    "ABC ΑΣσςΒ.'\u0345ǅ ",
    "ab  \t\n\r\v\f\x1c\x1f\x85\u2028\u2029\u00a0\u2003\u3000\u200b\u00ad\ufeff\u2581",
    "\0\x01\x7f\ufffd\ue000\U0010fffd\u200d\ufe0f\U000e0041a ",
    "[]<>|0x41FPADUNKCLSMKendoftxs/",
    "éàüİıßẞŉǰΐﬁÅå\u0301\u0327\u0308\u0345\u093e\u20dd",
    "漢\u3400\u4dbf\u4e00\u9fff\uf900\ufaff\U00020000\U0002a6df\U0002a700"
    "\U0002b73f\U0002b740\U0002b820\U0002ceaf\U0002f800\U0002fa1fカな한",
    "😀👩\u200d👧🇩🇪🏽",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¿«»‘’“”…—―–´\u037e\u1fef§€",
)
FIXED = (
    *(
        "",
        " ",
        "\0",
        "a" * 200,
        "a" * 201,
        "a" * 300,
        "é" * 200,
        "e\u0301" * 200,
        "x" * 3000,
        "aaa aaaaa aaaa " * 50,
    ),
    *(
        "[MASK]",
        "x[MASK]y [UNK] <0x41><0xFF> [PAD][CLS] [SEP]",
        "<|endoftext|> a<|endoftext|>b",
        "<s></s><mask><pad>",
    ),
)

# Each of what some published tokenizer reads otherwise than another.
ODD = (
    *(
        "",
        " ",
        "\t a \r\n b\u00a0c\u3000d",
        "a\u2028b\u2029c\x0bd\x0ce",
        "a\0b\ufffdc",
        "x\x01\x7f\x85y",
        "a\u00adb\ufeffc",
    ),
    *(
        "zero\u200bwidth",
        "join\u200der and non\u200cjoiner",
        "\ue000 private \U0010fffd use",
        "tag\U000e0041s",
        "\u0378 unassigned",
    ),
    *(
        "a" * 20,
        "a" * 21,
        "a" * 100,
        "a" * 101,
        "a" * 200,
        "a" * 201,
        "é" * 100,
        "e\u0301" * 60,
        "a-" * 101,
        "漢" * 101,
    ),
    *(
        "Café CAFÉ cafe\u0301",
        "naïve Ångström \u212b",
        "İstanbul ıI",
        "Straße STRASSE ẞ",
        "ΟΔΥΣΣΕΥΣ ΣΑΣ Σ.",
        "ǅ Ǆ ŉ ǰ",
    ),
    *(
        "a\u0327\u0301b \u0301c",
        "q\u20ddx\u0489",
        "की हिन्दी",
        "ไทย ก็",
        "한국어 ᄒ\u1161\u11ab",
        "שָׁלוֹם עולם",
        "مَرْحَبًا \u202eabc\u202c",
    ),
    *(
        "漢字かなカナ混じり文。",
        "ab漢cd",
        "㐀\u9fff\uf900\U00020000\U0002b820\U0002ceaf\U0002f800",
        "ﾊﾝｶｸ ＦＵＬＬ １２",
        "ﬁne ½ ① Ⅷ ㎏",
    ),
    *(
        "😀 👩\u200d👧 🇩🇪 🏽 a😀b",
        "❤\ufe0f ❤",
        "3.14 1,000,000 10:30 -5% $9.99 1/2",
        "don't it's U.S.A. e-mail@x.org #tag @me",
    ),
    *(
        "“quotes” ‘and’ —dashes–… «x» ¿y? ´z`",
        "snake_case camelCase a+b=c <tag/> [x] {y}",
        "½²³ ªº 5µm 20°C",
        "٣٤ १२ 𝟘𝟙",
    ),
    *(
        "[MASK]",
        "x[MASK]y [UNK] [PAD][CLS] [SEP]",
        "[mask] [Mask]",
        "<s></s> <mask> <|endoftext|>",
        "##a a##b ▁a Ġb",
    ),
)


def characters():
    """Every character but the surrogates."""
    return [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]


def hostile_texts(number: int, seed: int) -> list[str]:
    """The fixed texts and `number` random ones."""
    generator = random.Random(seed)
    texts = list(FIXED)
    for _ in range(number):
        parts = []
        for _ in range(generator.randint(1, 6)):
            if generator.random() < 0.8:
                parts.append(
                    "".join(
                        generator.choices(generator.choice(_SOURCES), k=generator.randint(1, 10))
                    )
                )
            else:
                codes = [
                    generator.randrange(generator.choice((0x600, 0x3000, 0x110000)))
                    for _ in range(4)
                ]
                parts.append("".join(chr(code) for code in codes if not 0xD800 <= code <= 0xDFFF))
        texts.append("".join(parts))
    return texts
