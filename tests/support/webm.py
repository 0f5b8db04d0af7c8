"""A video as WebM, of which each second is one picture. VP8 has a picture as WebP has it, so no encoder of videos is
needed.
"""

import io
import struct
from collections.abc import Iterable

from PIL import Image

STEP_MS = 1000
SIZE = 64, 48
SECONDS = 40
CLIP_BYTES = SECONDS * 400_000


def grey_at(second: int) -> int:
    return 40 + 5 * second


def clip() -> bytes:
    """A video of SECONDS and about CLIP_BYTES, of which the picture of each second is lighter than the last one."""
    return video(map(grey_at, range(SECONDS)), SIZE, CLIP_BYTES // SECONDS)


def element(name: str, content: bytes) -> bytes:
    """Of EBML (RFC 8794). `name`: its ID in hexadecimal; the length is written with 8 bytes."""
    return bytes.fromhex(name) + struct.pack(">Q", 1 << 56 | len(content)) + content


def number(name: str, value: int) -> bytes:
    return element(name, value.to_bytes(8, "big"))


def picture(grey: int, size: tuple[int, int]) -> bytes:
    """The frame of VP8 that a WebP of one grey has."""
    file = io.BytesIO()
    Image.new("RGB", size, (grey, grey, grey)).save(file, "WEBP", quality=80)
    content = file.getvalue()
    assert content[12:16] == b"VP8 "
    return content[20 : 20 + int.from_bytes(content[16:20], "little")]


def video(greys: Iterable[int], size: tuple[int, int], padding: int) -> bytes:
    """A second of each grey. `padding`: bytes that mean nothing after each, as if pictures were large."""
    pictures = [picture(grey, size) for grey in greys]
    seconds = [
        element("1f43b675", number("e7", STEP_MS * place) + element("a3", b"\x81\0\0\x80" + content))
        + element("ec", bytes(padding))
        for place, content in enumerate(pictures)
    ]
    duration = element("4489", struct.pack(">d", STEP_MS * len(pictures)))
    names = element("4d80", b"tests") + element("5741", b"tests")
    shape = element("e0", number("b0", size[0]) + number("ba", size[1]))
    track = number("d7", 1) + number("73c5", 1) + number("83", 1) + element("86", b"V_VP8") + shape
    head = element("1549a966", number("2ad7b1", 1_000_000) + duration + names)
    head += element("1654ae6b", element("ae", track))

    def cues(first: int) -> bytes:
        """The place of each second, behind the head and these."""
        places = [first + sum(map(len, seconds[:place])) for place in range(len(seconds))]
        points = [
            number("b3", STEP_MS * place) + element("b7", number("f7", 1) + number("f1", at))
            for place, at in enumerate(places)
        ]
        return element("1c53bb6b", b"".join(element("bb", point) for point in points))

    body = head + cues(len(head) + len(cues(0))) + b"".join(seconds)
    kinds = [("4286", 1), ("42f7", 1), ("42f2", 4), ("42f3", 8), ("4287", 2), ("4285", 2)]
    form = element("4282", b"webm") + b"".join(number(name, value) for name, value in kinds)
    return element("1a45dfa3", form) + element("18538067", body)
