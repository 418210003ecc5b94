# What each rank does before its program: its GPU, its CPUs, its network. `measure` of a job's script
# starts it on the nodes, in the container if there is one:
#
#   bash rank.bash OPTION... [NAME=VALUE ...] -- COMMAND [ARGUMENT ...]
#
#   --tasks N            tasks of a node        --devices N          devices that each of them drives
#   --on-gpus            GPUs do the work       --share N            devices of a whole node
#   --cpus N             CPUs of a task         --bind               bind it to CPUs near its GPU
#   --confined-only      but only where Slurm confines it to CPUs of its own
#   --started WORDS      what the log is of     --rehearse FILE      replay this log, run no COMMAND
#   --room N --size N --lack TEXT               the stand-in's room in samples, and how it fails
#
#   read_options, correct_amd_list, find_device, choose_threads, report_few_cpus,
#   prepare_network, rehearse
#
# Sets for the command: each NAME, HPCBERT_DEVICE, HPCBERT_NODE_HOSTS, OMP_NUM_THREADS, HIP_VISIBLE_DEVICES
# and NCCL_DEBUG with its like.
# shellcheck shell=bash disable=SC2154

read_options() { # the words before --; sets main's variables, and words, the number of them
  words=$#
  while (($#)); do
    case $1 in
      --tasks | --devices | --share | --cpus | --started | --rehearse | --room | --size | --lack)
        printf -v "${1#--}" %s "$2"
        shift
        ;;
      --on-gpus) on_gpus=1 ;;
      --bind) bind=1 ;;
      --confined-only) confined_only=1 ;;
      --) break ;;
      *=*) export "${1?}" ;;
      *)
        echo "hpcbert: rank.bash does not know $1" >&2
        exit 125
        ;;
    esac
    shift
  done
  words=$((words - $# + 1))
}

# On AMD's GPUs ROCR_VISIBLE_DEVICES selects first, and HIP_VISIBLE_DEVICES (else CUDA's) selects among
# those: the same list in both would select other GPUs, or none.
correct_amd_list() { # reads ROCR_VISIBLE_DEVICES; reads and sets HIP_VISIBLE_DEVICES
  local outer inner gpu place among='' twice=''
  IFS=, read -r -a outer <<<"$ROCR_VISIBLE_DEVICES"
  inner=${HIP_VISIBLE_DEVICES:-$ROCR_VISIBLE_DEVICES}
  if [[ $inner == "$ROCR_VISIBLE_DEVICES" ]]; then twice=1; fi
  for gpu in ${inner//,/ }; do
    if [[ $gpu =~ ^[0-9]+$ ]] && ((10#$gpu >= ${#outer[@]})); then twice=1; fi
  done
  if [[ -z $twice ]]; then return 0; fi
  for place in "${!outer[@]}"; do
    if [[ ,$inner, == *",${outer[place]},"* ]]; then among+=${among:+,}$place; fi
  done
  printf -v HIP_VISIBLE_DEVICES %s "$among"
  export HIP_VISIBLE_DEVICES
}

# The GPU of this rank: a number among the GPUs that it sees. A site may show it all GPUs of its node,
# some or one (`--gpus-per-task`, `--gpu-bind`, cgroups). Only the launcher knows more, and sets the
# variable: if ranks share one list, a number beyond its end must fail.
find_device() { # reads tasks, devices, *_VISIBLE_DEVICES; sets HPCBERT_DEVICE
  local shown gpus visible
  if [[ -n ${ROCR_VISIBLE_DEVICES:-} ]]; then
    correct_amd_list
    shown=${HIP_VISIBLE_DEVICES:-}
  else
    shown=${CUDA_VISIBLE_DEVICES:-${HIP_VISIBLE_DEVICES:-}}
  fi
  IFS=, read -r -a gpus <<<"$shown"
  visible=${#gpus[@]}
  if ((devices > 1)); then
    HPCBERT_DEVICE=0
    if ((visible > 0 && visible < devices)); then
      echo "hpcbert: this process drives $devices GPUs and sees $visible: leave out --gpus-per-task and --gpu-bind" >&2
      exit 1
    fi
    return 0
  fi
  if [[ -z ${HPCBERT_DEVICE:-} ]]; then
    HPCBERT_DEVICE=$SLURM_LOCALID
    if ((visible > 0)); then HPCBERT_DEVICE=$((SLURM_LOCALID % visible)); fi
  fi
  if ((SLURM_PROCID == 0 && visible > 0 && visible < tasks)); then
    echo "hpcbert: ranks see $visible of their node's $tasks GPUs each: NCCL may have to copy between GPUs through the host's memory. Leave out --gpus-per-task and --gpu-bind."
  fi
}

# The CPUs of a rank that is one of several on its node, and as many threads. Without a number of CPUs,
# each rank starts as many threads as it would have CPUs on a full node. Otherwise it would start one
# for each CPU of the node, and a single rank would have more than each of eight.
choose_threads() { # reads bind, cpus, share; sets OMP_NUM_THREADS
  if [[ -n $bind ]]; then
    # shellcheck source=/dev/null
    . "${BASH_SOURCE[0]%/*}/bind.bash"
    bind_cpus
  fi
  if ((cpus)); then
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$cpus}
  elif [[ -z ${OMP_NUM_THREADS:-} ]]; then
    local threads=$(($(nproc) / share))
    export OMP_NUM_THREADS=$((threads > 0 ? threads : 1))
  fi
}

# Rank 0 reports if ranks have so few CPUs that loading data, or starting kernels, may be what is
# measured: one core each, while the ranks of a node together have at most a quarter of it.
report_few_cpus() { # reads tasks
  local mine all
  if ((SLURM_PROCID > 0)); then return 0; fi
  mine=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
  if ((mine > 2)); then return 0; fi
  all=$(nproc --all)
  if ((mine * tasks * 4 <= all)); then
    echo "hpcbert: ranks have $mine of their node's $all CPUs each: data loading and kernel launches may wait for them. Set nodes.cpus_per_gpu in the site.toml."
  fi
}

# Settings for the network's libraries, and warnings about them.
prepare_network() { # the command; reads on_gpus; sets HPCBERT_NODE_HOSTS, NCCL_DEBUG and its like
  if [[ -n ${HPCBERT_NODE_FILE:-} && $* =~ HPCBERT_NODE_(IPS|HOSTS) ]]; then
    echo "hpcbert: this program gets the addresses of all nodes in one variable, which is too short for $HPCBERT_NODES nodes: take fewer nodes, or a recipe that reads HPCBERT_NODE_FILE" >&2
    exit 125
  fi
  # The nodes' addresses in the form that can precede a port.
  HPCBERT_NODE_HOSTS=$HPCBERT_NODE_IPS
  if [[ $HPCBERT_NODE_IPS == *:* ]]; then HPCBERT_NODE_HOSTS=[${HPCBERT_NODE_IPS//,/],[}]; fi
  export HPCBERT_NODE_HOSTS
  if [[ -z $on_gpus ]]; then return 0; fi
  # Most nodes without InfiniBand lack the directory: then this starts no process.
  if ((HPCBERT_NODES > 1 && SLURM_LOCALID == 0)) && [[ -d /sys/class/infiniband && $(ulimit -l) != unlimited ]] &&
    grep -qs ACTIVE /sys/class/infiniband/*/ports/*/state; then
    echo "hpcbert: $(uname -n): a process may lock $(ulimit -l) KiB of memory, but InfiniBand needs it unlimited (ulimit -l): NCCL may fail"
  fi
  # NCCL prints its version and its rings once while it starts: rank 0's go to a file of their own.
  if ((SLURM_PROCID == 0)) && [[ -z ${NCCL_DEBUG:-} && -n ${HPCBERT_NCCL_LOG:-} ]]; then
    export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH NCCL_DEBUG_FILE=$HPCBERT_NCCL_LOG
  fi
}

# Everything but the training. No part of this may enter a table. A node is reached if its address
# answers, even with a refusal: nothing listens there yet.
rehearse() { # file; reads room, size, lack
  local reached=0 total=0 addresses=() address answer line
  IFS=, read -r -a addresses <<<"${HPCBERT_NODE_IPS:-$(<"$HPCBERT_NODE_FILE")}"
  for address in "${addresses[@]}"; do
    total=$((total + 1))
    # shellcheck disable=SC2016 # the inner shell's words
    answer=$(LC_ALL=C timeout 5 bash -c ': >"/dev/tcp/$1/$2"' probe "$address" "$MASTER_PORT" 2>&1) ||
      [[ $answer == *refused* ]] || continue
    reached=$((reached + 1))
  done
  echo "HPCBERT REHEARSAL rank=$SLURM_PROCID/$SLURM_NTASKS local_rank=$SLURM_LOCALID node=$SLURM_NODEID/$HPCBERT_NODES host=$(uname -n) gpus=${CUDA_VISIBLE_DEVICES:-none} master=$MASTER_ADDR:$MASTER_PORT nodes=$HPCBERT_NODE_IPS reached=$reached/$total device=$HPCBERT_DEVICE"
  # The stand-in for the recipe's program has room for this many samples per device.
  if [[ -n $room ]] && ((size > ${HPCBERT_REHEARSAL_ROOM:-$room})); then
    echo "$lack" >&2
    exit 1
  fi
  # The log of another run, with other nodes and numbers: each line is marked as a sample.
  if ((SLURM_PROCID == 0)); then
    while IFS= read -r line || [[ -n $line ]]; do printf 'sample: %s\n' "$line"; done <"$1"
  fi
}

main() { # the words of the command line; sets the options, is replaced by COMMAND
  local tasks=1 devices=1 share=1 cpus=0 started='' rehearse='' room='' size=0 lack='' words
  local on_gpus='' bind=''
  # shellcheck disable=SC2034 # bind.bash reads it
  local confined_only=''
  read_options "$@"
  shift "$words"
  unset ENROOT_LOGIN_SHELL # pyxis.bash sets it for enroot, and pyxis hands it to ranks as well
  HPCBERT_DEVICE=${HPCBERT_DEVICE:-}
  if [[ -n $on_gpus ]]; then find_device; else HPCBERT_DEVICE=$SLURM_LOCALID; fi
  export HPCBERT_DEVICE
  if ((devices == 1)); then choose_threads; fi
  report_few_cpus
  prepare_network "$@"
  if [[ -n $rehearse ]]; then
    rehearse "$rehearse"
    return 0
  fi
  # What the log is of, in its own words: a log under another name, or of other ranks, is refused.
  if [[ -n $started ]] && ((SLURM_PROCID == 0)); then
    echo "hpcbert: ranks start with $started${HPCBERT_NODES:+ nodes=$HPCBERT_NODES}${SLURM_NTASKS:+ gpus=$((SLURM_NTASKS * devices))}"
  fi
  exec -- "$@"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set -euo pipefail
  main "$@"
fi
