# Repeats that are not needed, because those that have ended are enough. A script of an adaptive number
# of repeats sources this after job.bash.
#
#   spare_others   the array's repeats that have not begun leave the queue
#   enough         whether a repeat is not needed
#
# hpcbert reads the logs as `collect` does. If this node lacks hpcbert, the repeat runs. The script sets:
#   fewest            repeats that are needed anyway
#   package, decider  where hpcbert is, and the command that decides
#   count             repeats of the array; empty: they share a job, or there is no Slurm
# shellcheck shell=bash disable=SC2154,SC2317,SC2329

count=''

# Repeats that have not begun would wait for nodes only to report the same, so they leave the queue.
# One that begins all the same reports it itself.
spare_others() { # reads count, offset, said; sets status and attempt for each
  local number status
  if ((first_attempt)) || ! scancel --quiet --state=PENDING "${SLURM_ARRAY_JOB_ID:-}"; then return 0; fi
  for ((number = offset + 1; number <= offset + count; number++)); do
    status=$campaign/status/$point.$number.jsonl
    if [[ -e $status ]]; then continue; fi
    attempt=0 mark unneeded ",$said"
    attempt=0 mark end ',"exit":0'
  done
}

enough() { # repeat; reads decider, package, fewest
  local code=0 ended said
  ended=$(grep -ls '"event":"step-end".*"exit":0[,}]' "$campaign/status/$point".[0-9]*.jsonl | wc -l) || true
  if ((ended < fewest)); then return 1; fi
  said=$(PYTHONPATH=$package${PYTHONPATH:+:$PYTHONPATH} timeout --kill-after=10 300 \
    "${decider[@]}" "$campaign" "$point" </dev/null) || code=$?
  said=${said##*$'\n'}
  if ((code == 0)); then
    echo "hpcbert: repeat $1 is not needed: $said"
    mark unneeded ",$said"
    if [[ -n $count ]]; then spare_others; fi
  elif ((code == 3)); then # more are needed
    return 1
  else
    echo "hpcbert: can't decide whether repeat $1 is needed, so it runs: ${decider[*]} exited with status $code" >&2
    mark undecided ",\"exit\":$code"
    return 1
  fi
}
