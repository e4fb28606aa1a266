#!/usr/bin/env bash
# Run the whole test suite; arguments go to pytest. Makes .venv first if it is absent.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
prepare_python test
# Several ranks share this machine in many tests; one thread each keeps them off each other's feet.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$PY" -m pytest "$@"
