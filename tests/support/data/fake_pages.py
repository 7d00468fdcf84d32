"""Functions for a sandbox that do what bad pages make an extractor do."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def obey(data: bytes) -> bytes:
    """What `data` says: upper case of a word, or trouble."""
    match data.split(b" "):
        case [b"hang"]:
            while True:
                pass
        case [b"sleep"]:
            time.sleep(600)
        case [b"rest", seconds]:
            time.sleep(float(seconds))
        case [b"eat"]:
            bytearray(1 << 30)
        case [b"crash"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        case [b"raise"]:
            raise KeyError("a defect")
        case [b"wear-out", path] if not Path(path.decode()).exists():
            Path(path.decode()).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        case [b"pid"]:
            return str(os.getpid()).encode()
        case [b"large", size]:
            return b"x" * int(size)
    return data.upper()


def read_page(frame: bytes) -> bytes:
    """`tasks.readers.pages.read_page`, with trouble for the pages that ask for it."""
    from tasks.ingest import pagetext
    from tasks.readers import pages

    _, data = pages.split_frame(frame)
    if data in (b"hang", b"eat"):
        obey(data)
    return pagetext.read_page(frame)
