"""`python -m auto_LiRPA_patches`: the table of patches. Applies nothing and imports no torch."""

from __future__ import annotations

from auto_LiRPA_patches.registry import PATCHES, Patch


def table(patches: tuple[Patch, ...] = PATCHES) -> str:
    """Returns one line per patch under a heading, columns aligned."""
    heading = ("id", "target", "auto_LiRPA", "bits as upstream", "undo", "why")
    rows = [
        (
            patch.id,
            patch.target,
            patch.upstream,
            "yes" if patch.exact_at_world_size_1 else "no",
            patch.undo,
            patch.why,
        )
        for patch in patches
    ]
    widths = [max(len(row[column]) for row in [heading, *rows]) for column in range(len(heading))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [heading, tuple("-" * width for width in widths), *rows]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
