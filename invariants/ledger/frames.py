"""`ledger.pgoutput`: the raw stream of a run, so that it can be judged again off line.

    magic     8 bytes  b"PGRFLEDG"
    version   2 bytes  unsigned, big-endian: 1
    frames    4 bytes  length of the payload, unsigned, big-endian
              8 bytes  position in the write-ahead log
              payload  one pgoutput message, protocol version 1, as the server sent it

Why raw: the decoder may be wrong, and a recorded run must then be readable by a better one. Why lengths in
front: a process that is killed leaves a cut last frame, which a reader recognises and leaves out; everything
before it is whole. Writes are buffered and handed to the operating system once a second and at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

from invariants.ledger.pgoutput import Decoder, Transaction

NAME: Final = "ledger.pgoutput"
MAGIC: Final = b"PGRFLEDG"
VERSION: Final = 1
_HEADER = struct.Struct("!8sH")
_FRAME = struct.Struct("!IQ")
_CHUNK = 1 << 22


class FrameError(ValueError):
    """A file that is no ledger, or of a version this reader does not know."""


class FrameWriter:
    """Appends frames to a new file. Raises FileExistsError rather than write over a recorded run."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("xb", buffering=1 << 20)
        self._file.write(_HEADER.pack(MAGIC, VERSION))
        self._write = self._file.write
        self._pack = _FRAME.pack

    def append(self, lsn: int, payload: bytes) -> None:
        """One message."""
        self._write(self._pack(len(payload), lsn) + payload)

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()

    def __enter__(self) -> FrameWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


def read_frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """(position, message) of every whole frame. Raises FrameError; a cut tail ends the iteration."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or _HEADER.unpack(header)[0] != MAGIC:
            raise FrameError(f"{path} is not a ledger")
        if (version := _HEADER.unpack(header)[1]) != VERSION:
            raise FrameError(f"{path} is a ledger of version {version}, this reader knows {VERSION}")
        rest = b""
        size, unpack = _FRAME.size, _FRAME.unpack_from
        while chunk := file.read(_CHUNK):
            data = rest + chunk
            at, end = 0, len(data)
            while at + size <= end:
                length, lsn = unpack(data, at)
                if at + size + length > end:
                    break
                at += size
                yield lsn, data[at : at + length]
                at += length
            rest = data[at:]


def read_transactions(path: Path) -> Iterator[Transaction]:
    """Every whole transaction of a recorded ledger. Raises FrameError and DecodeError."""
    decoder = Decoder()
    feed = decoder.feed
    for _, message in read_frames(path):
        transaction = feed(message)
        if transaction is not None:
            yield transaction
