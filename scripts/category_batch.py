"""One category of instances, run to its end by run_batch.py with a config of exp_configs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from complete_verifier.results.atomic import write_text_atomically

_RUN_BATCH = Path(__file__).resolve().parent / "run_batch.py"


@dataclass(frozen=True)
class CategoryBatch:
    """What is run, and where its results go.

    Attributes:
        config: the config file.
        root: the folder that the paths of the instances start from.
        records: the file of records. Beside it: the instances, a log, and counterexamples.
    """

    config: Path
    root: Path
    records: Path

    @property
    def instances(self) -> Path:
        """The instances with the time limits they were last run with."""
        return self.records.with_suffix(".csv")

    def run(self, lines: Sequence[str], flags: Sequence[str], ranks: int = 1) -> int:
        """Run what is left of the instances ``onnx,vnnlib,seconds``; the batch's exit code.

        Args:
            flags: for the verifier.
            ranks: more than one are started by torchrun.
        """
        write_text_atomically(self.instances, "".join(f"{line}\n" for line in lines))
        command = [sys.executable, str(_RUN_BATCH)]
        if ranks > 1:
            command += ["--nproc_per_node", str(ranks)]
        command += ["--", "--config", str(self.config), "--root_path", str(self.root)]
        command += ["--csv_name", str(self.instances), "--result_json", str(self.records)]
        counterexamples = self.records.parent / "counterexamples" / f"{self.records.stem}.txt"
        counterexamples.parent.mkdir(exist_ok=True)
        command += ["--cex_path", str(counterexamples), "--results_file", "", "--resume", *flags]
        with self.records.with_suffix(".log").open("a", encoding="utf-8") as log:
            return subprocess.run(command, stdout=log, stderr=log, check=False).returncode
