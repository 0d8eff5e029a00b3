from __future__ import annotations

import random

from strands_sglang.tools.capture import Capture


def captured(data: bytes, shown: int, step: int = 7) -> Capture:
    capture = Capture(shown)
    for start in range(0, len(data), step):
        capture.feed(data[start : start + step])
    return capture


def test_short_output_is_whole() -> None:
    assert captured(b"hello", 10).text() == "hello"
    assert captured("é漢😀".encode(), 20, 1).text() == "é漢😀"
    assert captured(b"", 10).text() == ""


def test_head_and_tail_of_a_long_one() -> None:
    capture = captured(bytes(range(65, 91)) * 1000, 20)
    assert capture.text() == "ABCDEFGHIJ\n[... 25980 bytes left out ...]\nQRSTUVWXYZ"
    assert capture.seen == 26_000


def test_memory_is_bounded() -> None:
    capture = Capture(1000)
    for _ in range(1000):
        capture.feed(b"x" * 65536)
        assert len(capture._head) + len(capture._tail) <= 65536 + 3000


def test_characters_are_not_cut_in_half() -> None:
    dice = random.Random(0)
    for shown in range(2, 60):
        text = "".join(dice.choice("aé漢😀") for _ in range(200))
        seen = captured(text.encode(), shown, dice.randint(1, 50)).text()
        head, _, tail = seen.partition("\n[... ")
        assert "\ufffd" not in seen
        assert text.startswith(head) and text.endswith(tail.partition("...]\n")[2])
