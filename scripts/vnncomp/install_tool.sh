#!/usr/bin/env bash
# VNN-COMP: install_tool.sh v1
# Makes .venv with everything the tool needs, or uses the interpreter that ABCROWN_PYTHON names.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

[[ $# -ge 1 && "$1" == v1 ]] || die "usage: install_tool.sh v1; got '$*'."
prepare_python
echo "installed: $PY"
