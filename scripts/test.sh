#!/usr/bin/env bash
# Run the whole test suite; arguments go to pytest, once. Makes .venv first if it is absent.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
prepare_python test
# Several ranks share this machine in many tests; one thread each keeps them off each other's feet.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
(($# == 0)) || exec "$PY" -m pytest "$@"
# Tests that start no ranks run two at a time; the others need the machine to themselves.
status=0
"$PY" -m pytest -n 2 --dist worksteal -m "not distributed" || status=$?
"$PY" -m pytest -m distributed || status=$?
exit "$status"
