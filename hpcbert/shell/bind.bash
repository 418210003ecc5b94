# Binds a rank to CPUs near its GPU that no other rank has; rank.bash sources this.
#
#   list        the numbers in a list like 0-2,8
#   bind_cpus   choose the CPUs, bind this process to them
#
# Ranks with GPUs near the same CPUs share these evenly, core by core; each takes as many as the site
# gives per GPU, one of each core first. All ranks of a node compute the same shares without
# communicating, because the kernel reports the places of all GPUs to each of them.
# shellcheck shell=bash disable=SC2154

list() { # text; sets listed: 0-2,8 -> (0 1 2 8)
  local part cpu
  listed=()
  for part in ${1//,/ }; do
    for ((cpu = ${part%-*}; cpu <= ${part#*-}; cpu++)); do listed+=("$cpu"); done
  done
}

bind_cpus() { # reads tasks, cpus, on_gpus, confined_only; sets OMP_NUM_THREADS
  local allowed online choice number=$cpus cpus near gpus places known own part pool first more chosen
  local gpu vendor class named numbers rank sharing before cpu siblings thread threads name value
  allowed=$(while read -r name value; do
    if [[ $name == Cpus_allowed_list: ]]; then echo "$value"; fi
  done </proc/self/status)
  list "$allowed"
  near=() # the CPUs next to each GPU of the node, by the GPUs' addresses
  for gpu in ${on_gpus:+/sys/bus/pci/devices/*}; do
    { read -r vendor <"$gpu"/vendor && read -r class <"$gpu"/class && read -r cpus <"$gpu"/local_cpulist; } 2>/dev/null || continue
    case $vendor:$class in
      0x10de:0x030[02]* | 0x1002:0x0300* | 0x1002:0x0302* | 0x1002:0x0380* | 0x1002:0x1200* | 0x1da3:0x1200*) near+=("$cpus") ;;
    esac
  done
  # The GPUs of the ranks: Slurm's own numbers, if it names one for each.
  gpus=()
  for named in "${SLURM_STEP_GPUS:-}" "${SLURM_JOB_GPUS:-}"; do
    IFS=, read -r -a numbers <<<"$named"
    if ((${#gpus[@]} == 0 && ${#numbers[@]} >= tasks)); then gpus=("${numbers[@]}"); fi
  done
  places=() known=1
  for ((rank = 0; rank < tasks; rank++)); do
    gpu=${gpus[rank]:-$rank} cpus=''
    if [[ $gpu =~ ^[0-9]{1,3}$ ]]; then cpus=${near[10#$gpu]:-}; fi
    places+=("$cpus")
    if [[ -z $cpus ]]; then known=''; fi
  done
  own=${known:+${places[SLURM_LOCALID]}} sharing=0 before=0
  for ((rank = 0; rank < tasks; rank++)); do
    if [[ -z $known || ${places[rank]} == "$own" ]]; then
      sharing=$((sharing + 1))
      if ((rank < SLURM_LOCALID)); then before=$((before + 1)); fi
    fi
  done
  declare -A mine=() core=()
  list "$allowed"
  for cpu in "${listed[@]}"; do mine[$cpu]=1; done
  list "${own:-$allowed}"
  pool=()
  for cpu in "${listed[@]}"; do
    if [[ -z ${mine[$cpu]:-} || -n ${core[$cpu]:-} ]]; then continue; fi
    siblings=$cpu
    read -r siblings <"/sys/devices/system/cpu/cpu$cpu/topology/thread_siblings_list" 2>/dev/null || true
    list "$siblings"
    for thread in "${listed[@]}"; do
      if [[ -n ${mine[$thread]:-} && -z ${core[$thread]:-} ]]; then
        core[$thread]=$cpu
        pool+=("$thread")
      fi
    done
  done
  part=$((${#pool[@]} / sharing))
  first=() more=()
  for cpu in "${pool[@]:before*part:part}"; do
    if [[ ${core[$cpu]} == "$cpu" ]]; then first+=("$cpu"); else more+=("$cpu"); fi
  done
  chosen=("${first[@]}" "${more[@]}")
  chosen=("${chosen[@]:0:number}")
  threads=${#chosen[@]}
  choice=$(IFS=, && echo "${chosen[*]}")
  # Without cgroups, jobs that share a node would take the same CPUs, so ranks are not bound.
  read -r online </sys/devices/system/cpu/online
  if [[ -n $confined_only && $allowed == "$online" ]]; then choice=''; fi
  if [[ -n $choice ]] && taskset -pc "$choice" $$ >/dev/null 2>&1; then
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}
    if ((SLURM_PROCID == 0)); then echo "hpcbert: rank 0 has CPUs $choice"; fi
  elif ((SLURM_PROCID == 0)); then
    echo "hpcbert: ranks are not bound to CPUs"
  fi
}
