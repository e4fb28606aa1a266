"""The documented command, from the repository root: `python abcrown.py --config ...`."""

from __future__ import annotations

from complete_verifier.abcrown import main

if __name__ == "__main__":
    raise SystemExit(main())
