#!/usr/bin/env bash
# Run a config on several nodes under Slurm, one rank per GPU; arguments go to abcrown.py:
#
#   sbatch --nodes 2 --gpus-per-node 4 scripts/slurm.sh --config exp_configs/fsdp/resnet_large.yaml
#
# Without GPUs give --cpus-per-task C: one rank per core.
#SBATCH --job-name=abcrown
#SBATCH --ntasks-per-node=1
set -euo pipefail
: "${SLURM_JOB_ID:?expected to run as a Slurm job; start it with sbatch}"
# Slurm runs a copy of this file, so the checkout is where sbatch was called.
cd "${SLURM_SUBMIT_DIR:-.}"
if [[ ! -f abcrown.py ]]; then
  echo "slurm.sh: expected to be submitted from the checkout, found no abcrown.py in $PWD" >&2
  exit 2
fi
ranks="${SLURM_GPUS_ON_NODE:-0}"
if ((ranks == 0)); then
  ranks="${SLURM_CPUS_PER_TASK:-1}"
  export OMP_NUM_THREADS=1
  # srun does not take it over from sbatch by itself.
  export SRUN_CPUS_PER_TASK="$ranks"
fi
# The ranks meet at the first node of the job; the port follows the job, so that two can share it.
# Read to its end: behind `head`, scontrol would now and then die of a closed pipe, and the job with it.
nodes="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"
first="${nodes%%$'\n'*}"
exec srun --kill-on-bad-exit=1 "${ABCROWN_PYTHON:-python}" -m torch.distributed.run \
  --nnodes "$SLURM_JOB_NUM_NODES" --nproc_per_node "$ranks" \
  --rdzv_id "$SLURM_JOB_ID" --rdzv_backend c10d \
  --rdzv_endpoint "$first:$((20000 + SLURM_JOB_ID % 40000))" \
  -- abcrown.py "$@"
