"""Files without a name in memory, which the other processes of a host find through their owner.

Nothing is left behind by a process that is killed, and nobody but processes of the same user, in
the same container, can open one.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass

SECRET_BYTES = 16
"""A file begins with its secret."""


@dataclass(frozen=True)
class Address:
    """Where a process's file is, and what it begins with: elsewhere the numbers mean another."""

    process: int
    file: int
    secret: bytes

    @staticmethod
    def of(file: int) -> Address:
        """Of a file of this process, whose secret is written here."""
        secret = secrets.token_bytes(SECRET_BYTES)
        os.pwrite(file, secret, 0)
        return Address(os.getpid(), file, secret)


def anonymous_file(label: str) -> int | None:
    """A descriptor of an empty file; None where the system has no such files.

    Args:
        label: seen in listings of open files.
    """
    if not hasattr(os, "memfd_create"):  # Linux alone has it
        return None
    try:
        return os.memfd_create(label, os.MFD_CLOEXEC)
    except OSError:
        return None


def open_file(address: Address | None, access: int = os.O_RDONLY) -> int | None:
    """A descriptor of another process's file; None if it is not on this host, or not ours to open.

    Args:
        access: ``os.O_RDONLY`` or ``os.O_RDWR``.
    """
    if address is None:
        return None
    path = f"/proc/{address.process}/fd/{address.file}"
    try:
        file = os.open(path, access | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if os.pread(file, SECRET_BYTES, 0) == address.secret:
            return file
    except OSError:  # not a file in memory
        pass
    os.close(file)
    return None
