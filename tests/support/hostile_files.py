"""Files as a dataset may have them: pictures, sound and text; and some that a browser must not run."""

import io
import struct
import wave
import zlib

from dieselfs.dataset import Dataset

SCRIPT = "window.top.ran = true; window.ran = true; document.title = 'ran'"
LOOKED_AT = {
    "b/lines.jsonl": b'{"label": "cat"}\n{"label": "dog"}\n',
    "b/long.txt": "ü".encode() * 2000,
    "b/raw.bin": bytes(range(256)),
}
HOSTILE = {
    "page.html": f"<!doctype html><script>{SCRIPT}</script>".encode(),
    "page.png": f"<!doctype html><script>{SCRIPT}</script>".encode(),
    "drawing.svg": f'<svg xmlns="http://www.w3.org/2000/svg"><script>{SCRIPT}</script></svg>'.encode(),
    "drawing.png": f'<svg xmlns="http://www.w3.org/2000/svg" onload="{SCRIPT}"/>'.encode(),
    "code.js": SCRIPT.encode(),
    "both.gif": f"GIF89a/*\x01\x00*/=1;{SCRIPT}//".encode("latin-1"),
    "sound.mp3": f"<script>{SCRIPT}</script>".encode(),
    "<img src=x onerror=document.title='ran'>.txt": b"text",
    "\"onerror=document.title='ran' x=\".png": b"no picture",
    "javascript:document.title='ran'": b"text",
}


def picture(side: int = 8) -> bytes:
    """A grey PNG of `side` by `side` pixels."""

    def part(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">2I5B", side, side, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80" * side) * side)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", rows) + part(b"IEND", b"")


def sound(seconds: int = 1) -> bytes:
    """Silence, as a WAV file of 8,000 bytes a second."""
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setparams((1, 1, 8000, 8000, "NONE", ""))
        written.writeframes(b"\x80" * 8000 * seconds)
    return file.getvalue()


def store(data: Dataset) -> None:
    """Into folders `a` (a picture), `b` (text and sound) and `hostile`, and bytes that are no text in a name."""
    data.put("a/grey.PNG", picture())
    data.put("b/sound.wav", sound())
    data.put(b"b/\xff.txt", b"odd name")
    for path, content in LOOKED_AT.items():
        data.put(path, content)
    for name, content in HOSTILE.items():
        data.put(f"hostile/{name}", content)
    data.flush()
