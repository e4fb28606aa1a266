"""Find and read a text file that may be stored compressed."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from complete_verifier.specification.errors import SpecificationError


def existing_file(path: Path) -> Path | None:
    """Return `path`, or its sibling with ".gz" added where only that exists, or None."""
    compressed = path.with_name(path.name + ".gz")
    return next((each for each in (path, compressed) if each.is_file()), None)


def read_text(path: Path) -> str:
    """Return the text of `path` or of its ".gz" sibling, decompressed.

    Raises:
        SpecificationError: neither exists, or its content is no UTF-8 text.
    """
    found = existing_file(path)
    if found is None:
        raise SpecificationError(f"{path}: expected this file or {path.name}.gz, found neither")
    try:
        content = found.read_bytes()
        if found.suffix == ".gz":
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SpecificationError(f"{found}: this is no complete gzip file ({error})") from None
    except UnicodeDecodeError as error:
        raise SpecificationError(
            f"{found}: expected UTF-8 text, got byte 0x{content[error.start]:02x} "
            f"at offset {error.start}"
        ) from None
    except OSError as error:
        raise SpecificationError(f"{found}: cannot be read: {error.strerror}") from None
