"""Where the constants of a network lie while it is loaded: in memory, or in files without a name.

A rank that keeps a part of each weight needs none of them whole. It loads a network whose constants
lie on disk: mapped, they look like any array, and a copy of a part reads that part. The files have
no name, so nobody changes or shortens them, and they vanish with the last array.
"""

from __future__ import annotations

import gzip
import logging
import mmap
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

logger = logging.getLogger(__name__)

_LARGE_BYTES = 1 << 20
"""Smaller arrays stay in memory: a mapping takes a file descriptor."""

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class ConstantStore:
    """Takes arrays in, block by block.

    Attributes:
        on_disk: whether large arrays lie in files (in the folder of `TMPDIR`); else in memory.
    """

    on_disk: bool = False

    def read(
        self, stream: BinaryIO, offset: int, kind: np.dtype, shape: tuple[int, ...]
    ) -> np.ndarray:
        """Returns the array at `offset` of a file, little-endian there, row-major.

        Raises:
            ValueError: the file ends before the array does.
        """
        stored, count = kind.newbyteorder("<"), int(np.prod(shape, dtype=np.int64))
        stream.seek(offset)
        if self._takes(count * kind.itemsize) and stored == kind:
            try:
                return _mapped(_blocks(stream, count * kind.itemsize), kind, shape)
            except OSError as error:
                _warn(error)
                stream.seek(offset)
        content = np.fromfile(stream, dtype=stored, count=count)
        if content.size != count:
            raise ValueError("the file ends too early")
        return content.astype(kind, copy=False).reshape(shape)

    def row_major(self, content: np.ndarray) -> np.ndarray:
        """Returns the same array row-major; itself where it is that, and lies where it should."""
        if not self._takes(content.nbytes) or content.dtype.hasobject:
            return np.asarray(content, order="C")
        if content.flags.c_contiguous and _is_mapped(content):
            return content
        try:
            return _mapped(_rows(content), content.dtype, content.shape)
        except OSError as error:
            _warn(error)
            return np.asarray(content, order="C")

    def unpacked(self, path: Path, most: int) -> IO[bytes]:
        """Returns a nameless file with the content of a gzipped one, up to `most` + 1 bytes."""
        with ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile())
            stream = stack.enter_context(gzip.open(path, "rb"))
            for block in _blocks(stream, most + 1, may_end=True):
                file.write(block)
            file.flush()
            stream.close()
            stack.pop_all()
        return file

    def _takes(self, num_bytes: int) -> bool:
        return self.on_disk and num_bytes >= _LARGE_BYTES


def _warn(error: OSError) -> None:
    logger.warning(
        "a large constant of the network is held whole in memory while it is loaded: %s; TMPDIR "
        "names the folder for temporary files",
        error,
    )


def _mapped(
    blocks: Iterable[bytes | memoryview], kind: np.dtype, shape: tuple[int, ...]
) -> np.ndarray:
    """An array whose memory is a nameless file with this content.

    Private to the array: what is written to it by mistake does not reach the file. It is written,
    not filled through the mapping: a full disk is an error that way, and a signal the other way.
    """
    with tempfile.TemporaryFile() as file:
        for block in blocks:
            file.write(block)
        file.flush()
        return np.memmap(file, dtype=kind, mode="c", shape=shape)


def _is_mapped(content: np.ndarray) -> bool:
    owner: object = content
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return isinstance(owner, mmap.mmap)


def _blocks(
    stream: IO[bytes] | gzip.GzipFile, num_bytes: int, *, may_end: bool = False
) -> Iterator[bytes]:
    while num_bytes > 0:
        block = stream.read(min(num_bytes, _BLOCK_BYTES))
        if not block:
            if may_end:
                return
            raise ValueError("the file ends too early")
        num_bytes -= len(block)
        yield block


def _rows(content: np.ndarray) -> Iterator[memoryview]:
    """The array's bytes in row-major order, some rows at a time."""
    count = max(1, _BLOCK_BYTES * len(content) // max(1, content.nbytes))
    for start in range(0, len(content), count):
        yield np.ascontiguousarray(content[start : start + count]).data.cast("B")
