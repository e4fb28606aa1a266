#!/usr/bin/env bash
# VNN-COMP: run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS TIMEOUT
# RESULTS gets sat, unsat, unknown, timeout or error on its first line; the counterexample follows
# `sat`. TIMEOUT (seconds) is of this script as a whole. Exit code 0 with any of these results.
#
# The config is the newest exp_configs/vnncomp2*/CATEGORY.yaml; without one, the defaults.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

[[ $# -eq 6 && "$1" == v1 ]] ||
  die "usage: run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS TIMEOUT; got '$*'."
category="$2" onnx="$3" vnnlib="$4" results="$5" timeout="$6"
[[ "$timeout" =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "TIMEOUT is '$timeout', which is no number of seconds."
started="$(date +%s.%N)"

answered() { [[ -f "$results" ]] && head -n 1 "$results" | grep -qxE 'sat|unsat|unknown|timeout|error'; }
scratch="$(mktemp -d)"
finish() { # whatever happened, the competition finds a result
  rm -rf "$scratch"
  answered || echo error >"$results"
}
trap finish EXIT
rm -f "$results"

compute() { LC_ALL=C awk "BEGIN {printf \"%.1f\", ($1)}"; } # a decimal point in every language
left() { # seconds; never nothing, which `timeout` takes for no limit
  local rest
  rest="$(compute "$timeout - ($(date +%s.%N) - $started)")"
  [[ "$rest" == -* || "$rest" == 0.0 ]] && echo 0.1 || echo "$rest"
}

category_config() { # the newest; nothing where there is none
  local found=("$ROOT"/exp_configs/vnncomp2*/"$category".yaml)
  local last="${found[${#found[@]} - 1]}"
  [[ ! -f "$last" ]] || echo "$last"
}

prepare_python >&2
config="$(category_config)"
flags=(--complete_verifier auto)
[[ -z "$config" ]] || flags=(--config "$config")
# The verifier's own clock starts after Python has loaded its libraries, and ends up to some seconds
# late. A quarter of a short limit, six seconds of a long one, are kept back for both.
rest="$(left)"
limit="$(compute "$rest > 24 ? $rest - 6 : $rest > 1 ? $rest * 0.75 : 0.5")"
echo "run_instance: ${config:-defaults}, $limit s" >&2

code=0
timeout --kill-after=1 "$(left)" "$PY" "$ROOT/abcrown.py" "${flags[@]}" --csv_name= --root_path= \
  --onnx_path "$onnx" --vnnlib_path "$vnnlib" --override_timeout "$limit" \
  --results_file "$results" --cex_path "$scratch/counterexample.txt" || code=$?
# 124: out of time. 137: it had to be killed then, or was killed earlier (memory), an error.
if ! answered && { ((code == 124)) || [[ "$code" == 137 && "$(left)" == 0.1 ]]; }; then
  echo timeout >"$results"
fi
exit 0
