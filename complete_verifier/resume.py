"""`--resume`: what an earlier run of the same batch answered, and what of it may be kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from complete_verifier.queries import Query
from complete_verifier.results.errors import ResultError
from complete_verifier.results.record import Record
from complete_verifier.results.record_file import read_records
from complete_verifier.results.record_reader import record_from_json
from complete_verifier.results.results_file import read_rows
from complete_verifier.results.verdict import Verdict
from complete_verifier.session import Session


@dataclass(frozen=True)
class Earlier:
    """What is kept of an earlier run.

    Attributes:
        records: by index of the instance, in the order of the batch.
        warnings: what is not kept, and why; a sentence each.
    """

    records: Mapping[int, Record] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def earlier_results(session: Session, asked: Sequence[Query]) -> Earlier:
    """The answers of an earlier run to `asked`, the same on all ranks; none without `--resume`.

    Only the rank that writes the files reads them: ranks of another host may not see them.

    Raises:
        ResultError: a file is there and is not what a batch writes; it is left as it is.
    """
    if not session.loaded.resume:
        return Earlier()
    found: Earlier | ResultError = Earlier()
    if session.speaks:
        general = session.config.general
        try:
            found = _read(general.result_json, general.results_file, asked, session.loaded.hash)
        except ResultError as error:
            found = error
    agreed: Earlier | ResultError = session.ranks.world.broadcast_object(found)
    if isinstance(agreed, ResultError):
        raise agreed
    return agreed


def _read(
    result_json: str | None, results_file: str, asked: Sequence[Query], config_hash: str
) -> Earlier:
    """Records decide where they are asked for; the rows of the other file follow them.

    Rows alone cannot rebuild records, nor do they tell which config they were made with.
    """
    if result_json:
        if not Path(result_json).is_file():
            return Earlier(warnings=(f"{result_json}: not found, so every instance is run",))
        return from_records(result_json, asked, config_hash)
    if Path(results_file).is_file():
        return from_rows(results_file, asked)
    return Earlier(warnings=(f"{results_file}: not found, so every instance is run",))


def from_records(path: str, asked: Sequence[Query], config_hash: str) -> Earlier:
    """What the records in `path` answer of `asked` under the config with this hash.

    Of an instance that the batch lists several times, the records are taken in their order.
    """
    ours: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
    foreign = unreadable = 0
    for plain in read_records(path):
        if plain.get("config_hash") != config_hash:
            foreign += 1
            continue
        try:
            record = record_from_json(plain)
        except ResultError:
            unreadable += 1
            continue
        ours[record.onnx, record.vnnlib].append(record)
    kept: dict[int, Record] = {}
    for query in asked:
        of_this = ours[query.network, query.property]
        if of_this:
            kept[query.index] = of_this.pop(0)
    others = sum(len(records) for records in ours.values())
    reasons = (
        (foreign, "were made with another configuration"),
        (unreadable, "lack fields of this version"),
        (others, "are of instances that are not asked for"),
    )
    return Earlier(_answered(kept), _warnings(path, "records", reasons))


def from_rows(path: str, asked: Sequence[Query]) -> Earlier:
    """What the rows in `path` answer of `asked`; they do not tell the config they were made with.

    The records made of them hold the verdict and the seconds alone.
    """
    rows = read_rows(path)
    found = {(index, record.onnx, record.vnnlib): record for index, record in rows}
    kept: dict[int, Record] = {}
    for query in asked:
        record = found.pop((query.index, query.network, query.property), None)
        if record is not None:
            kept[query.index] = replace(record, reason="answered in an earlier run")
    reasons = ((len(found), "are of instances that are not asked for"),)
    return Earlier(_answered(kept), _warnings(path, "rows", reasons))


def _answered(records: Mapping[int, Record]) -> dict[int, Record]:
    return {i: record for i, record in records.items() if record.verdict is not Verdict.ERROR}


def _warnings(path: str, what: str, reasons: Iterable[tuple[int, str]]) -> tuple[str, ...]:
    return tuple(
        f"{path}: {count} {what} are not kept: they {reason}" for count, reason in reasons if count
    )
