#!/bin/bash
# Checks on one node, or in one rank, what every run needs. `hpcbert doctor --nodes` runs it through
# the script of a submission.
#
#   look.sh node CAMPAIGN RUNS INTERFACE [--import PYTHON MODULES]... [--path PATH]... -- NODE...
#   look.sh late CAMPAIGN NODE...
#   look.sh rank HELLO PYTHON MODULES GPUS MPI
#
# `node` checks the host and leaves a mark in CAMPAIGN, which the login node just created below RUNS.
# `late` waits for the marks of other nodes. `rank` checks what the measured program would find, in
# its container if there is one; HELLO is hello.py, MODULES are joined by commas, GPUS is the number
# that you asked for per node, and MPI says whether ranks find each other by MPI.
#
# Prints a line for each finding: node, name, status (ok, warn, fail) and detail, between tabs; what
# to do about each is in hpcbert/commands/findings.toml. Always exits with 0.
#
#   findings   tell
#   campaign   look_at_runs, look_at_delay
#   network    interfaces, look_at_names, look_at_interface, look_at_addresses
#   node       look_at_modules, look_at_room, look_at_limits, look_at_clock, look_at_programs,
#              look_at_home; look_at_node, all of it
#   rank       look_at_gpus, look_at_rank
set -uo pipefail
export LC_ALL=C

node=${SLURMD_NODENAME:-$(uname -n)}
# Seconds: to wait for files of the login node and of other nodes, for an import; the largest
# difference between clocks.
readonly LATE=10 LATEST=60 IMPORT=120 APART=2
# KiB: below this, room is little; the memory that a process may lock by default, since Linux 5.16.
readonly LITTLE=1048576 LOCKED=8192

tell() { # name, status, detail: of any bytes, on one line
  printf '%s\t%s\t%s\t%s\n' "$node" "$1" "$2" "${3//[[:cntrl:]]/ }"
}

look_at_runs() { # campaign, runs
  local mark=$1/look.$node began=$SECONDS
  until [[ -e $1/scripts/look.sh ]] || ((SECONDS - began >= LATE)); do sleep 0.2; done
  if ((SECONDS - began > 1)) && [[ -e $1/scripts/look.sh ]]; then
    tell delay warn "it sees what the login node writes late: after $((SECONDS - began)) s"
  fi
  if ! cd -- "$2" 2>/dev/null; then
    tell runs fail "there is no $2, or it can't be entered"
  elif [[ ! -e $1/scripts/look.sh ]]; then
    tell runs fail "$2 is another directory than on the login node"
  elif ! { : >"$mark"; } 2>/dev/null; then
    tell runs fail "$2 can't be written to"
  elif ! { printf '%65536s' '' >"$mark"; } 2>/dev/null; then
    tell runs fail "$2 has no room left: its disk is full, or your quota is used up"
  else
    tell runs ok "$2 is the login node's"
  fi
  cd / || true
}

look_at_delay() { # campaign, node ...
  local began=$SECONDS name missing=()
  for name in "${@:2}"; do
    until [[ -e $1/look.$name ]]; do
      if ((SECONDS - began >= LATEST)); then
        missing+=("$name")
        break
      fi
      sleep 0.2
    done
  done
  if ((${#missing[@]})); then
    tell delay fail "after $LATEST s it does not see what was written on ${missing[*]}"
  elif ((SECONDS - began > 1)); then
    tell delay warn "it sees what other nodes write late: after $((SECONDS - began)) s"
  else
    tell delay ok 'it sees at once what other nodes write'
  fi
}

# Ends a detail if another interface could work: lists those with an address (all, without `ip`).
interfaces() {
  local path there=''
  for path in /sys/class/net/*; do
    path=${path##*/}
    if [[ $path == lo || $path == "${GLOO_SOCKET_IFNAME:-}" ]]; then continue; fi
    if command -v ip >/dev/null && [[ -z $(ip -o addr show dev "$path" scope global 2>/dev/null) ]]; then continue; fi
    there+=" $path"
  done
  if [[ -n $there ]]; then printf '; there are:%s' "$there"; fi
}

look_at_names() { # interface, node ...
  local name address unknown=() weight=fail
  if [[ -n $1 ]]; then weight=warn; fi # then addresses are taken from it
  for name in "${@:2}"; do
    read -r address _ < <(getent ahosts "$name" 2>/dev/null) || true
    case ${address:-} in
      '') unknown+=("$name does not resolve") ;;
      127.* | ::1)
        if [[ $name == "$node" ]]; then name='its own name'; fi
        if (($# > 2)); then unknown+=("$name is $address"); fi
        ;;
    esac
    address=''
  done
  if ((${#unknown[@]} == 0)); then
    tell names ok 'the names of all nodes resolve'
  else
    printf -v name ', %s' "${unknown[@]}"
    tell names "$weight" "${name:2}$(interfaces)"
  fi
}

look_at_interface() { # interface
  if ! command -v ip >/dev/null; then
    tell interface fail 'the program ip, which reports its address, is missing'
  elif [[ -n $(ip -o addr show dev "$1" scope global 2>/dev/null) ]]; then
    tell interface ok "$1 has an address"
  elif [[ -e /sys/class/net/$1 ]]; then
    tell interface fail "$1 has no address$(interfaces)"
  else
    tell interface fail "there is no $1$(interfaces)"
  fi
}

look_at_modules() { # python, modules
  local said name
  if ! command -v -- "$1" >/dev/null; then
    tell python fail "there is no program $1"
    return
  fi
  tell python ok "$1"
  for name in ${2//,/ }; do
    if said=$(timeout "$IMPORT" "$1" -c "import $name" 2>&1 </dev/null); then
      tell framework ok "$1 imports $name"
    else
      said=${said%"${said##*[![:space:]]}"}
      tell framework fail "$1 does not import $name: ${said##*$'\n'}"
    fi
  done
}

look_at_room() { # name, directory
  local mark room
  if ! mark=$(mktemp -- "$2/hpcbert.XXXXXXXX" 2>/dev/null); then
    tell "$1" fail "$2 can't be written to"
    return
  fi
  printf '#!/bin/sh\n' >"$mark" 2>/dev/null
  chmod u+x -- "$mark"
  if [[ $1 == tmp ]] && ! "$mark" 2>/dev/null; then
    rm -f -- "$mark"
    tell tmp warn "no program can run from $2 (noexec), as compilers of kernels need"
    return
  fi
  rm -f -- "$mark"
  room=$(df -Pk -- "$2" 2>/dev/null | tail -n 1 | tr -s ' ' | cut -d ' ' -f 4) || room=''
  if [[ $room =~ ^[0-9]+$ ]] && ((room < LITTLE)); then
    tell "$1" warn "$2 has $((room / 1024)) MiB left"
  else
    tell "$1" ok "$2 can be written to"
  fi
}

look_at_limits() {
  local locked files space ports=(/sys/class/infiniband/*)
  locked=$(ulimit -l) files=$(ulimit -n) space=$(ulimit -v)
  if [[ $locked == unlimited ]]; then
    tell memlock ok 'unlimited'
  elif [[ -e ${ports[0]} ]]; then
    tell memlock fail "a process may lock $locked KiB, and InfiniBand needs it unlimited"
  elif ((locked < LOCKED)); then
    tell memlock warn "a process may lock $locked KiB"
  else
    tell memlock ok "$locked KiB, without InfiniBand"
  fi
  if [[ $files != unlimited ]] && ((files < 1024)); then
    tell files-open warn "a process may have $files files open"
  else
    tell files-open ok "$files"
  fi
  if [[ $space == unlimited ]]; then
    tell address-space ok 'unlimited'
  else
    tell address-space warn "a process may have $((space / 1024)) MiB of address space (ulimit -v)"
  fi
}

# The controller's answer has its own time, in whole seconds.
look_at_clock() {
  local said before after apart=0
  printf -v before '%(%s)T' -1
  read -r said < <(SLURM_TIME_FORMAT=%s timeout 20 scontrol show config 2>/dev/null | grep -m1 '^Configuration data as of ') || true
  printf -v after '%(%s)T' -1
  if [[ ! ${said:-} =~ ^Configuration\ data\ as\ of\ ([0-9]{1,12})$ ]]; then
    tell clock warn 'the controller does not report its time here'
    return
  fi
  said=${BASH_REMATCH[1]}
  if ((said < before)); then apart=$((before - said)); fi
  if ((said > after)); then apart=$((after - said)); fi
  if ((apart > APART)); then
    tell clock warn "its clock is $apart s ahead of the controller's"
  elif ((apart < -APART)); then
    tell clock warn "its clock is $((-apart)) s behind the controller's"
  else
    tell clock ok "it agrees with the controller's"
  fi
}

look_at_programs() {
  local name missing=()
  for name in srun scontrol getent timeout sort cut; do
    command -v "$name" >/dev/null || missing+=("$name")
  done
  if ((${#missing[@]})); then
    tell programs fail "not on PATH: ${missing[*]}"
  else
    tell programs ok 'all programs that scripts call are on PATH'
  fi
}

look_at_home() {
  if [[ -n ${HOME:-} && -d $HOME && -x $HOME ]]; then
    tell home ok "$HOME"
  else
    tell home warn "there is no home directory ${HOME:-}"
  fi
}

look_at_node() { # campaign, runs, interface, words
  local campaign=$1 runs=$2 interface=$3
  shift 3
  look_at_runs "$campaign" "$runs"
  look_at_programs
  look_at_home
  if [[ -n $interface ]]; then look_at_interface "$interface"; fi
  while (($#)) && [[ $1 != -- ]]; do
    case $1 in
      --import) look_at_modules "$2" "$3" && shift 3 ;;
      --path)
        if [[ -e $2 ]]; then tell files ok "$2"; else tell files fail "there is no $2"; fi
        shift 2
        ;;
      *) shift ;;
    esac
  done
  if (($# > 1)); then look_at_names "$interface" "${@:2}"; fi
  look_at_room tmp "${TMPDIR:-/tmp}"
  look_at_room shm /dev/shm
  look_at_limits
  look_at_clock
}

# The GPUs that a rank sees: by its driver, else by the scheduler's variables.
look_at_gpus() { # how many you asked for
  local seen='' by='' list=() slices=0 devices=''
  if command -v nvidia-smi >/dev/null; then
    devices=$(timeout 60 nvidia-smi -L 2>/dev/null) || true
    seen=$(grep -c '^GPU ' <<<"$devices") || true
    slices=$(grep -c '^ *MIG ' <<<"$devices") || true
    by=' by nvidia-smi'
  fi
  if [[ -n ${CUDA_VISIBLE_DEVICES+set} || -n ${ROCR_VISIBLE_DEVICES+set} ]]; then
    IFS=, read -r -a list <<<"${CUDA_VISIBLE_DEVICES:-${ROCR_VISIBLE_DEVICES:-}}"
    if [[ -z $seen ]] || ((${#list[@]} < seen)); then seen=${#list[@]} by=' by CUDA_VISIBLE_DEVICES'; fi
  fi
  if ((slices > 0 && $1 > 1)); then
    tell GPUs warn "a rank sees slices of GPUs (MIG), which NCCL does not join: only one rank can run"
  elif ((${seen:-0} == $1)); then
    tell GPUs ok "each rank sees all $1 of its node"
  elif ((${seen:-0} > $1)); then
    tell GPUs warn "a rank sees $seen GPUs$by; you asked for $1"
  elif [[ $seen == 1 ]]; then
    tell GPUs warn "a rank sees 1 GPU$by; you asked for its node's $1"
  else
    tell GPUs fail "a rank sees ${seen:-0} GPUs$by; you asked for $1"
  fi
}

look_at_addresses() {
  local address answer unreached=() addresses=()
  IFS=, read -r -a addresses <<<"$HPCBERT_NODE_IPS"
  for address in "${addresses[@]}"; do
    # shellcheck disable=SC2016 # the inner shell's words
    answer=$(timeout 5 bash -c ': >"/dev/tcp/$1/$2"' probe "$address" "$MASTER_PORT" 2>&1) ||
      [[ $answer == *refused* ]] || unreached+=("$address")
  done
  if ((${#unreached[@]})); then
    tell hello fail "it does not reach ${unreached[*]}"
  else
    tell hello ok 'it reaches the addresses of all nodes; more tests need an interpreter'
  fi
}

look_at_rank() { # hello, python, modules, GPUs, MPI
  local name=hello code=0
  tell ranks ok 'ranks start where they should'
  if (($4 > 0)); then look_at_gpus "$4"; fi
  if [[ -n $3 ]] && ((SLURM_LOCALID == 0)); then look_at_modules "$2" "$3"; fi
  if ! command -v -- "$2" >/dev/null; then
    look_at_addresses
    return
  fi
  # An MPI library that does not support this start-up ends its process.
  if [[ $5 == yes ]]; then name=MPI; fi
  timeout --kill-after=5 "$LATEST" "$2" "$1" "$5" "$(interfaces)" || code=$?
  case $code in
    0) ;;
    124 | 137) tell "$name" fail "a rank does not finish within $LATEST s" ;;
    *) tell "$name" fail "a rank exits with status $code" ;;
  esac
}

part=$1
shift
case $part in
  node) look_at_node "$@" ;;
  late) look_at_delay "$@" ;;
  rank) look_at_rank "$@" ;;
esac
exit 0
