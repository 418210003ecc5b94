# What a preflight runs instead of repeats; its script sources this after job.bash.
#
#   measure_group, measure_all      all-reduces by the script's `measure`, each on some of the nodes
#   rate, median, judge             read the logs, record each node, find slow ones
#   waiting, up_nodes, leave_out    exclude slow nodes from the campaign's jobs
#   give_up, run_preflight          the job; it cancels the others if nodes could not be measured
#
# The script sets `least_percent`, of the median of all nodes, and `limit`, the job's in seconds.
# shellcheck shell=bash disable=SC2034,SC2154,SC2317,SC2329

# --- Preflight: an all-reduce inside each node, between neighbours, and over all of them ------
# The nodes form a ring, of which every second pair is measured at the same time. A node is rated by
# the better of its two pairs, so that a slow one doesn't make its neighbours look slow.
# It runs in the background, so that its variables stay its own.
measure_group() { # numbers of its nodes; reads node_names, node_ips, log
  local at code=0 names=() ips=()
  for at; do names+=("${node_names[at]}") ips+=("${node_ips[at]}"); done
  if (($# < nodes)); then log=${log%.log}.$(IFS=+ && echo "${names[*]}").log; fi
  nodes=$# tasks=$(($# * tasks_per_node)) group=$(IFS=, && echo "${names[*]}")
  if ((nodes == 1)); then ips=(127.0.0.1); fi
  HPCBERT_NODES=$nodes HPCBERT_NODE_IPS=$(IFS=, && echo "${ips[*]}") MASTER_ADDR=${ips[0]}
  (launch) || code=$?
  settle "$code" || mv -f -- "$log" "${log%.log}.failed"
}

measure_all() { # reads nodes, tasks_per_node; sets MASTER_PORT
  local at round turn every=()
  for ((at = 0; at < nodes; at++)); do every+=("$at"); done
  if ((tasks_per_node > 1)); then
    for at in "${every[@]}"; do measure_group "$at" & done
    wait
  fi
  # An odd ring's last pair has a round of its own.
  for round in 0 1 2; do
    MASTER_PORT=$((MASTER_PORT + 1))
    for at in "${every[@]}"; do
      turn=$((at % 2))
      if ((at == nodes - 1)); then turn=$((nodes == 2 ? 3 : nodes % 2 ? 2 : 1)); fi
      if ((turn != round)); then continue; fi
      # Slurm numbers ranks by the nodes' own order: the first one has rank 0.
      if ((at + 1 < nodes)); then measure_group "$at" $((at + 1)) & else measure_group 0 "$at" & fi
    done
    wait
  done
  if ((nodes > 2)); then MASTER_PORT=$((MASTER_PORT + 1)) && measure_group "${every[@]}"; fi
}

rate() { # log: prints MB/s of bus bandwidth as nccl-tests defines it, 0 if the log has none
  local said='' number=0
  said=$(sed -n 's/^# Avg bus bandwidth *: *//p' "$1" 2>/dev/null | tail -n 1) || true
  LC_ALL=C printf -v number '%.0f' "${said%% *}e3" 2>/dev/null || number=0
  echo "$number"
}

median() { # number ...; prints it
  local sorted=()
  mapfile -t sorted < <(printf '%d\n' "$@" | sort -n)
  echo $(((sorted[($# - 1) / 2] + sorted[$# / 2]) / 2))
}

# Records what was measured on each node; fails if nothing was.
judge() { # reads nodes, node_names, least_percent, log; sets slow, the nodes far below the others
  local at next pair value inside=() between=() middle_inside=0 middle_between bad stem=${log%.log}
  slow=()
  for ((at = 0; at < nodes; at++)); do
    inside+=("$(rate "$stem.${node_names[at]}.log")")
    between+=(0)
  done
  for ((at = 0; at < nodes; at++)); do
    next=$(((at + 1) % nodes))
    pair=${node_names[at]}+${node_names[next]}
    if ((next == 0)); then pair=${node_names[0]}+${node_names[at]}; fi
    value=$(rate "$stem.$pair.log")
    if ((nodes == 2)); then value=$(rate "$log"); fi
    if ((value > between[at])); then between[at]=$value; fi
    if ((value > between[next])); then between[next]=$value; fi
  done
  middle_between=$(median "${between[@]}")
  if ((tasks_per_node > 1)); then middle_inside=$(median "${inside[@]}"); fi
  for ((at = 0; at < nodes; at++)); do
    bad=false
    if ((inside[at] * 100 < least_percent * middle_inside || between[at] * 100 < least_percent * middle_between)); then
      bad=true
      slow+=("${node_names[at]}")
    fi
    quoted "${node_names[at]}"
    mark node ",\"name\":$REPLY,\"inside\":${inside[at]},\"between\":${between[at]},\"slow\":$bad"
  done
  mark fabric ",\"inside\":$middle_inside,\"between\":$middle_between,\"all\":$(rate "$log")"
  ((middle_between > 0 && (middle_inside > 0 || tasks_per_node == 1)))
}

# The campaign's jobs that wait for this one: id, number of nodes, nodes that they already exclude, and
# nodes that they request by name.
waiting() { # reads campaign; prints a line per job
  local job needed known named where
  squeue --noheader --user="$(id -u)" --states=PENDING --format='%F|%D|%x|%n|%Z' | plain | sort -u |
    while IFS='|' read -r job needed known named where; do
      if [[ $job =~ ^[0-9]+$ && $job != "$SLURM_JOB_ID" && $where -ef $campaign && $needed =~ ^[0-9]+$ ]]; then
        echo "$job|$needed|$known|${named#(null)}"
      fi
    done
}

# Nodes of the partition that run jobs or could; this job's nodes if Slurm reports none.
up_nodes() { # reads node_names; prints a line per node
  local found
  found=$(sinfo --noheader --Node --partition="${SLURM_JOB_PARTITION:-}" --format='%N %T' 2>/dev/null | plain |
    sed -En 's/^([^ ]+) (idle|mixed|allocated|completing|reserved|planned)[+]?$/\1/p' | sort -u) || true
  if [[ -n $found ]]; then echo "$found"; else printf '%s\n' "${node_names[@]}"; fi
}

# Excludes slow nodes from the waiting jobs, as long as enough others are left.
leave_out() { # reads slow; adds to settled, the jobs that were seen
  local job needed known named all left said
  while IFS='|' read -r job needed known named; do
    if [[ " ${settled[*]-} " == *" $job "* ]]; then continue; fi
    settled+=("$job")
    all=$(IFS=, && echo "${slow[*]}")${known:+,$known}
    left=$(up_nodes | grep -vxFc -f <(host_names "$all")) || true
    if [[ -n $named ]] && host_names "$named" | grep -qxFf <(printf '%s\n' "${slow[@]}"); then
      mark spared ",\"job\":\"$job\",\"why\":\"it asks for that node by name\""
    elif ((left < needed)); then
      mark spared ",\"job\":\"$job\",\"why\":\"it takes $needed nodes, and $left others are left\""
    elif said=$(scontrol update "JobId=$job" "ExcNodeList=$all" 2>&1); then
      quoted "$all"
      mark left-out ",\"job\":\"$job\",\"nodes\":$REPLY"
    else
      quoted "$said"
      mark spared ",\"job\":\"$job\",\"why\":$REPLY"
    fi
  done < <(waiting)
}

# No job of the campaign runs on nodes that could not be measured.
give_up() { # called by on_exit, too
  local job
  while IFS='|' read -r job _; do scancel "$job" || true; done < <(waiting)
}

run_preflight() { # reads limit, seconds of the job; sets step_pid, settled
  measure_all </dev/null &
  step_pid=$!
  wait_for_step || true
  step_pid=''
  if [[ -n $stopped ]]; then
    # A job that reached its time limit is not requeued; one that lost a node may be.
    if ((SECONDS + 30 >= limit)); then give_up; fi
    exit 143
  fi
  if ! judge; then
    echo "hpcbert: too few nodes were measured: see ${log%.log}*" >&2
    exit 1
  fi
  # `submit` reads the status file first, but one that is submitting at this moment has not seen it.
  settled=()
  if [[ -n ${slow[*]-} ]]; then leave_out && sleep 2 && leave_out; fi
  end 0
}
