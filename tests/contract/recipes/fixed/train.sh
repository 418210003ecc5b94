#!/bin/bash
# Prints what a training would: train.sh BATCH_SIZE ITERATIONS
# A run's rate follows from its ranks and its number, so that medians and speedups are exact.
# Repeat number FAILS fails; each repeat waits SLEEPS seconds.
set -euo pipefail
((SLURM_PROCID == 0)) || exit 0
[[ ${FAILS:-} != "${SLURM_ARRAY_TASK_ID:-1}" ]] || exit 3
sleep "${SLEEPS:-0}"
rate=$((100 * SLURM_NTASKS + ${SLURM_ARRAY_TASK_ID:-1}))
for ((step = 1; step <= $2; step++)); do
  echo "step $step of $2 | loss 2.5 | $rate samples/s"
done
