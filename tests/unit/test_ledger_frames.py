from __future__ import annotations

from pathlib import Path

import pytest

from invariants.ledger.frames import FrameError, FrameWriter, read_frames

FRAMES = [(1, b"one"), (2**40, b""), (3, b"x" * 5_000_000), (4, b"four")]


def written(path: Path) -> Path:
    with FrameWriter(path) as writer:
        for lsn, payload in FRAMES:
            writer.append(lsn, payload)
    return path


def test_frames_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert list(read_frames(written(tmp_path / "ledger"))) == FRAMES


@pytest.mark.parametrize("cut", [1, 3, 4, 9, 15, 16, 17])
def test_a_cut_tail_loses_only_the_frames_that_are_not_whole(cut: int, tmp_path: Path) -> None:
    path = written(tmp_path / "ledger")
    path.write_bytes(path.read_bytes()[:-cut])
    assert list(read_frames(path)) == (FRAMES[:3] if cut <= 16 else FRAMES[:2])


def test_a_recorded_run_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        FrameWriter(written(tmp_path / "ledger"))


@pytest.mark.parametrize("content", [b"", b"PGRF", b"x" * 100])
def test_another_file_is_no_ledger(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(FrameError, match="is not a ledger"):
        list(read_frames(tmp_path / "other"))


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"PGRFLEDG\x00\x02")
    with pytest.raises(FrameError, match="version 2"):
        list(read_frames(tmp_path / "other"))
