#!/bin/bash
# Prints what bert_pretrain.py prints, at 100 samples/s by its own time stamps. Between the halves it
# does what its repeat and attempt are planned to do.
# submit asks an interpreter which modules it lacks.
[[ $1 != -c ]] || exit 0
begun=${EPOCHREALTIME/[.,]/}
# Signals reach the processes of a step one by one: a shell whose sleep ended first would go on.
hang() { exec sleep 600; }
gate() { until [[ -e FOLDER/go ]]; do sleep 0.1; done; }
emit() {
  for ((n = $1; n <= $2; n++)); do
    ((now = begun + n * 20000))
    printf 'iteration: %d/12 loss: 9.5 mlm_loss: 8.8 nsp_loss: 0.7 samples/s: 100.00 time: %d.%06d\n' \
      "$n" "$((now / 1000000))" "$((now % 1000000))"
  done
}
echo 'hpcbert-config {"batch_size_per_device": 2, "world_size": 1, "accumulation": 1,' \
  '"precision": "fp32", "global_batch_size": 2}'
emit 1 6
case $SLURM_ARRAY_TASK_ID.${SLURM_RESTART_COUNT:-0} in
PLAN
esac
emit 7 12
