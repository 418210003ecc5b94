# Ranks on this machine, with the variables that srun would set for them. A script of the local queue
# sources this after job.bash.
#
#   prepare_nodes   the node's address and port
#   launch, settle  start the ranks by the script's `measure`; the status of the step
# shellcheck shell=bash disable=SC2034,SC2154,SC2317,SC2329

patience=0 # seconds that the file system may be late

prepare_nodes() { # sets step, beside, job_name, addresses for the ranks
  # One node, this one.
  step=() beside=()
  job_name=p$$
  export HPCBERT_NODE_IPS=127.0.0.1 HPCBERT_NODES=1
  export MASTER_ADDR=127.0.0.1 MASTER_PORT
  MASTER_PORT=$(free_port $$)
}

launch() { # reads tasks, log, repeat; returns the status of the rank that failed first
  local rank pid status code=0 pids=()
  trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' TERM INT
  : >"$log"
  for ((rank = 0; rank < tasks; rank++)); do
    SLURM_JOB_ID=$$ SLURM_STEP_ID=$repeat SLURM_NODEID=0 SLURM_NNODES=1 SLURM_NTASKS=$tasks \
      SLURM_PROCID=$rank SLURM_LOCALID=$rank HPCBERT_DEVICE=$rank measure </dev/null >>"$log" 2>&1 &
    pids+=("$!")
  done
  # Like srun --kill-on-bad-exit: the first rank that fails ends the others.
  for ((rank = 0; rank < tasks; rank++)); do
    status=0
    wait -n || status=$?
    # Bash before 5.3 may return 127 for children that ended before this; it keeps the status of each.
    if ((status == 127)); then
      status=0
      for pid in "${pids[@]}"; do
        kill -0 "$pid" 2>/dev/null || wait "$pid" || status=$?
      done
    fi
    if ((status != 0)); then
      if ((code == 0)); then code=$status; fi
      kill -TERM "${pids[@]}" 2>/dev/null || true
    fi
  done
  wait
  return "$code"
}

settle() { return "$1"; } # launch knows which rank failed first
