#!/usr/bin/env bash
# Set up, then verify the embedded example on one process and on two that each hold half the weights.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
prepare_python

out=build/quickstart # ignored by git; the records stay there to be looked at
rm -rf "$out"
mkdir -p "$out"
# Equal threads on either side: a different number of threads may round differently. So do products
# of fewer rows; ranks with sharded weights alone have the bits of one process.
export OMP_NUM_THREADS=1
run=(abcrown.py --config exp_configs/digits/digits.yaml)

echo "== 1 process"
"$PY" "${run[@]}" --result_json "$out/one.json" --results_file "$out/one.txt" \
  --cex_path "$out/one_counterexample.txt"
echo
echo "== 2 ranks, each with half of every parameter (FSDP)"
"$PY" -m torch.distributed.run --standalone --nproc_per_node 2 "${run[@]}" --fsdp --shard_specs false \
  --result_json "$out/two.json" --results_file "$out/two.txt" \
  --cex_path "$out/two_counterexample.txt"
echo
echo "== 1 process against 2 ranks"
"$PY" scripts/compare_runs.py "$out/one.json" "$out/two.json"
echo
echo "Done. Records: $out/one.json, $out/two.json. Next: the README, \"Your own network\"."
