"""What a person reads: a line as each instance ends, and the summary at the end of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from complete_verifier.results.record import Memory, Record
from complete_verifier.results.verdict import Verdict

_MEBIBYTE = 2**20


def verdict_line(number: int, num_instances: int, record: Record) -> str:
    """Return the line of one finished instance, `number` counting from 1.

    `[3/48] mnist-net_256x2.onnx prop_2_0.03.vnnlib: sat in 0.4 s (attack)`
    """
    names = " ".join(Path(name).name for name in (record.onnx, record.vnnlib) if name)
    reason = f" ({record.reason})" if record.reason else ""
    verdict = f"{record.verdict.value} in {_seconds(record.seconds.total)}"
    return f"[{number}/{num_instances}] {names}: {verdict}{reason}"


def format_summary(records: Sequence[Record], indices: Sequence[int] | None = None) -> str:
    """Return the summary of a run; its last line is the result in one sentence.

    Args:
        records: of all instances that ended, in order.
        indices: each instance's number in its list; by default 0, 1, 2, ….
    """
    numbers = list(range(len(records))) if indices is None else list(indices)
    if len(numbers) != len(records):
        raise ValueError(f"expected {len(records)} indices, got {len(numbers)}.")
    lines: list[str] = []
    if len(records) > 1:
        lines += _verdict_table(records, numbers)
        lines.append(_times(records))
    lines += _memory_lines(records)
    lines += _ignored_lines(records)
    lines.append(_result_line(records))
    return "\n".join(lines)


def _verdict_table(records: Sequence[Record], numbers: Sequence[int]) -> Iterator[str]:
    for verdict in Verdict:
        chosen = [
            number
            for number, record in zip(numbers, records, strict=True)
            if record.verdict is verdict
        ]
        instances = f"  instances {', '.join(map(str, chosen))}" if chosen else ""
        yield f"{verdict.value:<8}{len(chosen):>6}{instances}"


def _times(records: Sequence[Record]) -> str:
    totals = [record.seconds.total for record in records]
    mean = _seconds(sum(totals) / len(totals))
    return f"Time per instance: mean {mean}, longest {_seconds(max(totals))}"


def _memory_lines(records: Sequence[Record]) -> Iterator[str]:
    """The largest peak of each rank over all instances that measured it."""
    measured = [record.memory for record in records if record.memory.peak_bytes]
    if not measured:
        return
    num_ranks = max(len(memory.peak_bytes) for memory in measured)
    for rank in range(num_ranks):
        own = [memory for memory in measured if rank < len(memory.peak_bytes)]
        highest = max(own, key=lambda memory: memory.peak_bytes[rank])
        baseline = max((m.baseline_bytes[rank] for m in own if m.baseline_bytes), default=None)
        yield (
            f"Peak tensor memory, rank {rank}: {highest.peak_bytes[rank] / _MEBIBYTE:.1f} MiB"
            f"{_kinds(highest, rank)}"
            + ("" if baseline is None else f"; before bounds {baseline / _MEBIBYTE:.1f} MiB")
        )


def _kinds(memory: Memory, rank: int) -> str:
    """What the peak was spent on, largest first; nothing where it is not known."""
    if rank >= len(memory.peak_by_kind):
        return ""
    spent = sorted(memory.peak_by_kind[rank].items(), key=lambda item: -item[1])
    parts = (f"{name.replace('_', ' ')} {size / _MEBIBYTE:.1f}" for name, size in spent if size)
    return f" ({', '.join(parts)})"


def _ignored_lines(records: Sequence[Record]) -> Iterator[str]:
    keys = sorted({key for record in records for key in record.ignored})
    if keys:
        yield f"Config keys without effect: {', '.join(keys)}"


def _result_line(records: Sequence[Record]) -> str:
    if len(records) == 1:
        return f"Result: {records[0].verdict.value} in {_seconds(records[0].seconds.total)}"
    verdicts = [record.verdict for record in records]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict)
    return f"Result: {len(records)} instances: {counts}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s"
