"""Makes new input of old: what was accepted once is the best start for what nearly is."""

import random
from collections.abc import Iterator, Sequence

SEEDS = {
    "names": [
        *(
            "a.txt",
            "Report (final).pdf",
            "CON",
            "com1.txt",
            "COM¹",
            "lpt9 .log",
            "CONIN$",
            "clock$",
            "İ.txt",
            "ΐ",
            "é" * 127,
        ),
        *(
            "..",
            "．．",
            "a.",
            " a",
            "a/b",
            ".manifest.json",
            ".MANIFEST.JSON",
            "．manifest.json",
            "ﬁle.txt",
            "x" * 255,
        ),
        *("e\u0301.txt", "é.txt", "☺\ufe0f.png", "\u202etxt.exe", "a\u200bb"),
    ],
    "base64": [
        *("QQ==", "QUI=", "QUJD", "QR==", "QQ=", "QQ", "Q Q = =", "-_8=", "+/8=", "QUJD" * 21, "QUJD\n" * 20),
        *("=", "====", "QQ==QQ==", "ÀQ==", ""),
    ],
}
_INSERTED = {
    "names": './\\:*?"<>| \t\0\u001f\u007f\u0085\u00a0\u00ad\u034f\u115f\u17b4\u180e\u200b\u200e\u2028\u202e\u2066\u3000\u3164'
    "\ufe0f\ufeff\ufffd\uffff\ud800\U000e0001\U000e0100aA¹²³conprnauxnulcomlptıİſKﬁ𝐜０１.manifest.json~$",
    "base64": "ABCQRZabcz0189+/-_= \t\n\r\v\f\u00a0\u2003\u0085=Aé\0",
}


def mutations(target: str, rng: random.Random) -> Iterator[tuple[str, "Feedback"]]:
    """Endless input, and whom to tell what was accepted: it becomes the start of more."""
    corpus = list(SEEDS[target])
    while True:
        text = rng.choice(corpus)
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            text = _mutated(text, _INSERTED[target], corpus, rng)
        yield text, Feedback(corpus, rng)


class Feedback:
    """Keeps accepted input, a bounded amount of it."""

    def __init__(self, corpus: list[str], rng: random.Random) -> None:
        self._corpus = corpus
        self._rng = rng

    def accepted(self, text: str) -> None:
        """It is among the starts from now on, perhaps instead of another."""
        if len(self._corpus) < 2_000:
            self._corpus.append(text)
        else:
            self._corpus[self._rng.randrange(len(self._corpus))] = text


def _mutated(text: str, inserted: Sequence[str], corpus: Sequence[str], rng: random.Random) -> str:
    at = rng.randint(0, len(text))
    match rng.randrange(7):
        case 0:
            return text[:at] + rng.choice(inserted) + text[at:]
        case 1:
            return text[:at] + chr(rng.randrange(0x110000)) + text[at:]
        case 2:
            return text[:at] + text[at + rng.randint(1, 3) :]
        case 3:
            return text[:at] + rng.choice(inserted) + text[at + 1 :]
        case 4:
            return text[:at] + rng.choice(corpus)[-rng.randint(1, 8) :]
        case 5:
            return (text * rng.randint(2, 5))[: rng.randint(1, 400)]
        case _:
            return text.swapcase()
