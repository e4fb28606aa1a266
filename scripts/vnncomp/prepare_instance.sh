#!/usr/bin/env bash
# VNN-COMP: prepare_instance.sh v1 CATEGORY ONNX VNNLIB
# Checks the files and loads the libraries once, so that the timed run finds them in memory. Nothing
# is computed about the instance. Exit code 0, or 1 where the instance should be skipped.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

[[ $# -eq 4 && "$1" == v1 ]] ||
  die "usage: prepare_instance.sh v1 CATEGORY ONNX VNNLIB; got '$*'."
for file in "$3" "$4"; do
  [[ -f "$file" || -f "$file.gz" ]] || die "the file '$file' is absent, and so is '$file.gz'."
done
prepare_python
PYTHONPATH="$ROOT" "$PY" -c 'import complete_verifier.runner' >/dev/null
