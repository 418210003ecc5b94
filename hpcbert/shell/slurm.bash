# Nodes, addresses and ranks: all from Slurm. A script of a Slurm job sources this after job.bash.
#
#   enter_allocation             of a larger allocation, only the nodes of the point
#   prepare_nodes                the job's nodes, and what ranks need to find each other
#   plain                        what Slurm's commands print, without colours
#   host_names                   the names in a node list
#   clock_ahead                  how far the controller's clock is ahead
#   usable, first_addresses, resolved, choose_addresses   addresses of the nodes' names
#   share_addresses              the list of all, for the ranks
#   ask_interfaces, lacking, choose_on_interface    those of an interface that the site names
#   launch, settle               start the ranks by the script's `measure`; the status of the step
#
# The script may set `interface`, the nodes' network interface for the ranks' traffic.
# shellcheck shell=bash disable=SC2034,SC2154,SC2317,SC2329

interface=''
patience=5 # seconds that the file system may be late
group=''   # some of the job's nodes, if a step takes only these
part=()    # option of each srun, if the allocation may have more nodes than the point

# `submit --here` runs this script as a step, and names the point's nodes. srun would take the variables
# of that step for options of the steps that this script starts.
enter_allocation() { # reads HPCBERT_NODELIST; unsets SLURM_*; sets SLURM_JOB_NODELIST, part
  local name
  for name in "${!SLURM_@}"; do
    case $name in
      SLURM_CONF* | SLURM_JWT | SLURM_CLUSTER_NAME | SLURM_JOB_ID | SLURM_ARRAY_* | SLURM_GRES) ;;
      SLURM_JOB_PARTITION | SLURM_JOB_ACCOUNT | SLURM_JOB_QOS) ;;
      *) unset -v "$name" ;;
    esac
  done
  export SLURM_JOB_NODELIST=$HPCBERT_NODELIST
  part=(--nodelist="$HPCBERT_NODELIST")
}
if [[ -n ${HPCBERT_NODELIST:-} ]]; then enter_allocation; fi

prepare_nodes() { # sets job_name, node_names, step, beside, clock, addresses for the ranks
  # Some centres require or set --export=NONE for jobs. Then steps would get neither PATH nor the
  # variables exported below; with this, they get this script's environment.
  export SLURM_EXPORT_ENV=ALL
  unset HPCBERT_DEVICE
  job_name=$SLURM_JOB_ID
  node_names=("$SLURM_JOB_NODELIST")
  if ((tasks > 1)); then mapfile -t node_names < <(host_names "$SLURM_JOB_NODELIST" "$nodes"); fi
  if ((nodes > 1 && ${#node_names[@]} != nodes)); then
    echo "hpcbert: scontrol names ${#node_names[@]} nodes of $SLURM_JOB_NODELIST, and the job has $nodes: ${node_names[*]-}" >&2
    exit 1
  fi
  step=(srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --kill-on-bad-exit=1 --mpi=none "${part[@]}")
  # A step that overlaps the measured one, and its memory; on a single node the script runs the sampler.
  if ((nodes > 1)); then beside=("${step[@]}" --overlap --mem=0 --input=all); fi
  if declare -F examine_nodes >/dev/null; then examine_nodes; fi
  if ! declare -F run_preflight >/dev/null; then exec {clock}< <(clock_ahead </dev/null); fi
  node_ips=(127.0.0.1)
  if [[ -n $interface ]]; then
    choose_on_interface
  elif ((nodes > 1)); then
    choose_addresses
  fi
  share_addresses
  export MASTER_ADDR=${node_ips[0]} MASTER_PORT
  MASTER_PORT=$(free_port "$SLURM_JOB_ID") # rank 0 is on this node
}

plain() { sed $'s/\033\\[[0-9;]*[A-Za-z]//g'; }

# A site's wrapper of scontrol may print a notice first. If it has a line of one word, only the words of
# the list itself, apart from numbers, decide what is a name.
host_names() { # node list, how many it has if that is known; prints a line per name
  local list=$1 names=() own=() name
  mapfile -t names < <(scontrol show hostnames "$list" | plain | grep -Ex '[A-Za-z0-9][A-Za-z0-9_.-]*')
  if ((${#names[@]} > ${2:-0})); then
    while [[ $list =~ \[[^]]*\] ]]; do list=${list/"${BASH_REMATCH[0]}"/}; done
    for name in "${names[@]}"; do
      if [[ ,${list//[0-9]/}, == *",${name//[0-9]/},"* ]]; then own+=("$name"); fi
    done
    if ((${#own[@]})); then names=("${own[@]}"); fi
  fi
  if ((${#names[@]})); then printf '%s\n' "${names[@]}"; fi
}

# The controller's answer has its own time, in whole seconds. It may take seconds, so the step that
# describes the nodes does not wait for it.
clock_ahead() { # prints the seconds
  local answer now
  while read -r answer; do
    if [[ $answer =~ ^Configuration\ data\ as\ of\ ([0-9]{1,12})$ ]]; then
      printf -v now '%(%s)T' -1
      echo $((BASH_REMATCH[1] - now))
      return
    fi
  done < <(SLURM_TIME_FORMAT=%s timeout 10 scontrol show config 2>/dev/null)
}

# --- Addresses of one kind for all nodes: IPv4 if every node has one, else IPv6 ---------------

usable() { # the address of each node; fails if others can't reach one of them
  local address
  for address; do
    case $address in '' | - | 127.* | ::1 | ::ffff:127.* | fe80:*) return 1 ;; esac
  done
}

# One getent for all names: it prints the canonical name in the first line of each (glibc, nss/getent.c).
# If it does not know one of them, each is asked for alone.
first_addresses() { # ahostsv4 or ahostsv6, name ...; prints the first usable address of each node
  local address name primary=()
  while read -r address _ name; do
    if [[ -n $name ]] || ((${#primary[@]} == 0)); then
      primary+=("$address")
    elif [[ ${primary[-1]} == ::ffff:* ]] || ! usable "${primary[-1]}"; then
      if usable "$address" && [[ $address != ::ffff:* ]]; then primary[-1]=$address; fi
    fi
  done < <(getent "$@")
  if ((${#primary[@]} == $# - 1 || $# == 2)); then
    printf '%s\n' "${primary[0]-}" "${primary[@]:1}"
  else
    for name in "${@:2}"; do first_addresses "$1" "$name"; done
  fi
}

resolved() { # ahostsv4 or ahostsv6; asks for 64 nodes at a time, at the same time; reads node_names
  local at answer answers=()
  for ((at = 0; at < ${#node_names[@]}; at += 64)); do
    exec {answer}< <(first_addresses "$1" "${node_names[@]:at:64}")
    answers+=("$answer")
  done
  for answer in "${answers[@]}"; do
    cat <&"$answer"
    exec {answer}<&-
  done
}

choose_addresses() { # reads node_names, nodes; sets node_ips
  local sixes=()
  mapfile -t node_ips < <(resolved ahostsv4)
  if ! usable "${node_ips[@]}"; then mapfile -t sixes < <(resolved ahostsv6); fi
  if [[ -n ${sixes[*]-} ]] && usable "${sixes[@]}"; then node_ips=("${sixes[@]}"); fi
  if ((${#node_ips[@]} == nodes)) && usable "${node_ips[@]}"; then return 0; fi
  echo "hpcbert: ${node_names[*]} resolve to ${node_ips[*]}: set nodes.interface in the site.toml" >&2
  exit 1
}

# The kernel starts no program with a variable of more than 131,072 bytes (MAX_ARG_STRLEN), brackets and
# names included: a longer list is in a file.
share_addresses() { # reads node_ips, nodes; exports HPCBERT_NODES, HPCBERT_NODE_IPS or HPCBERT_NODE_FILE
  unset -v HPCBERT_NODE_FILE
  export HPCBERT_NODE_IPS HPCBERT_NODES=$nodes
  printf -v HPCBERT_NODE_IPS '%s,' "${node_ips[@]}"
  HPCBERT_NODE_IPS=${HPCBERT_NODE_IPS%,}
  if ((${#HPCBERT_NODE_IPS} > 100000)); then
    export HPCBERT_NODE_FILE=$campaign/env/$point.$SLURM_JOB_ID.$attempt.addresses
    handed_over+=(HPCBERT_NODE_FILE)
    echo "$HPCBERT_NODE_IPS" >"$HPCBERT_NODE_FILE"
    HPCBERT_NODE_IPS=''
  fi
}

# Prints one line per node: its number, its addresses on the interface, all its interfaces.
ask_interfaces() { # reads step, interface
  # shellcheck disable=SC2016 # the inner shell's words
  "${step[@]}" bash -c '
    read -r _ _ _ four _ < <(ip -4 -o addr show dev "$1")
    read -r _ _ _ six _ < <(ip -6 -o addr show dev "$1" scope global)
    four=${four%/*} six=${six%/*}
    echo "$SLURM_NODEID ${four:--} ${six:--} $(cd /sys/class/net && echo *)"' rank "$interface" </dev/null | plain | grep -E '^[0-9]+ (-|[0-9.]+) (-|[0-9a-f:.]+) ' | sort -n
}

# On one node ranks do not need an address, but frameworks look for the interface.
lacking() { # lines of ask_interfaces on stdin; prints what is missing; reads interface, node_names, nodes
  local number four six names
  while read -r number four six names; do
    if usable "$four" || usable "$six"; then continue; fi
    if [[ " $names " != *" $interface "* ]]; then
      echo "hpcbert: ${node_names[number]} has no interface $interface (nodes.interface in the site.toml), but $names"
    elif ((nodes > 1)); then
      echo "hpcbert: ${node_names[number]} has no address on its interface $interface (nodes.interface in the site.toml)"
    fi
  done
}

choose_on_interface() { # reads interface, device, tasks, nodes; sets node_ips, handed_over, and the frameworks' variables for the interface
  local lines=() sixes=() lacks
  export GLOO_SOCKET_IFNAME=$interface
  handed_over+=(GLOO_SOCKET_IFNAME)
  if [[ $device != cpu ]]; then
    export NCCL_SOCKET_IFNAME=$interface
    handed_over+=(NCCL_SOCKET_IFNAME)
  fi
  if ((tasks == 1)); then return 0; fi
  mapfile -t lines < <(ask_interfaces)
  lacks=$(printf '%s\n' "${lines[@]}" | lacking)
  if [[ -n $lacks ]]; then
    echo "$lacks" >&2
    exit 1
  fi
  if ((nodes == 1)); then return 0; fi
  mapfile -t node_ips < <(printf '%s\n' "${lines[@]}" | cut -d' ' -f2)
  if ! usable "${node_ips[@]}"; then mapfile -t sixes < <(printf '%s\n' "${lines[@]}" | cut -d' ' -f3); fi
  if [[ -n ${sixes[*]-} ]] && usable "${sixes[@]}"; then node_ips=("${sixes[@]}"); fi
  if ((${#node_ips[@]} == nodes)) && usable "${node_ips[@]}"; then return 0; fi
  echo "hpcbert: ${node_names[*]} have ${node_ips[*]-no addresses} on $interface (nodes.interface in the site.toml): all nodes need one of the same kind, IPv4 or IPv6" >&2
  exit 1
}

# --- The measured step ----------------------------------------------------------------------

launch() { # reads nodes, tasks, log, group; is replaced by srun
  # No -l: labels split lines at 1,024 bytes.
  local step_options=(
    --nodes="$nodes" --ntasks="$tasks" --ntasks-per-node="$tasks_per_node" --distribution=block
    --kill-on-bad-exit=1 --wait=60 --open-mode=truncate "${part[@]}"
  )
  if [[ -n $group ]]; then step_options+=(--nodelist="$group" --time=5); fi
  measure </dev/null 2>"${log%.log}.srun"
}

# srun exits with the highest status of all tasks, even of those that it terminated because the first
# one failed. The status of the step is that of the task that srun names first.
settle() { # status of srun; reads log
  local messages=${log%.log}.srun first=''
  if (($1 != 0)); then first=$(grep -Em1 '^srun: error: .*: tasks? [0-9,-]+: ' "$messages") || true; fi
  if [[ -s $messages ]]; then cat -- "$messages" >&2 || true; fi
  rm -f -- "$messages"
  case $1:$first in
    0:*) return 0 ;;
    *'Exited with exit code '*) return "${first##* }" ;;
    *': Killed'*) return 137 ;;
    *': Segmentation fault'*) return 139 ;;
    *': Aborted'*) return 134 ;;
    *': Bus error'*) return 135 ;;
    *) return "$1" ;;
  esac
}
