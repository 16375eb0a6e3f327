"""Text that tokenizers get wrong: a seeded mix of the characters at which implementations differ."""

import random

_SOURCES = (
    "abcdefghij ",
    "ABC ΑΣσςΒ.'\u0345ǅ ",
    "ab  \t\n\r\v\f\x1c\x1f\x85\u2028\u2029\u00a0\u2003\u3000\u200b\u00ad\ufeff\u2581",
    "\0\x01\x7f\ufffd\ue000\U0010fffd\u200d\ufe0f\U000e0041a ",
    "[]<>|0x41FPADUNKCLSMKendoftxs/",
    "éàüİıßẞŉǰΐﬁÅå\u0301\u0327\u0308\u0345\u093e\u20dd",
    "漢\u3400\u4dbf\u4e00\u9fff\uf900\ufaff\U00020000\U0002a6df\U0002a700\U0002b73f\U0002b740\U0002b820\U0002ceaf\U0002f800\U0002fa1fカな한",
    "😀👩\u200d👧🇩🇪🏽",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¿«»‘’“”…—―–´\u037e\u1fef§€",
)
FIXED = (
    *("", " ", "\0", "a" * 200, "a" * 201, "a" * 300, "é" * 200, "e\u0301" * 200, "x" * 3000, "aaa aaaaa aaaa " * 50),
    *("[MASK]", "x[MASK]y [UNK] <0x41><0xFF> [PAD][CLS] [SEP]", "<|endoftext|> a<|endoftext|>b", "<s></s><mask><pad>"),
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
                parts.append("".join(generator.choices(generator.choice(_SOURCES), k=generator.randint(1, 10))))
            else:
                codes = [generator.randrange(generator.choice((0x600, 0x3000, 0x110000))) for _ in range(4)]
                parts.append("".join(chr(code) for code in codes if not 0xD800 <= code <= 0xDFFF))
        texts.append("".join(parts))
    return texts
