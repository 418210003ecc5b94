#!/bin/bash
# How ranks enter the container of their node: what `enter.sh enter` does. Sourced by enter.sh.
#
# Contents, and what each part reads and sets:
#   processes   note, nap; `naps`, a descriptor
#   mounts      read_mount sets source, target and flags; pmix_server reads PMIX_SERVER_TMPDIR
#   leader      lead: local rank 0 makes the container and starts its holder; sets holder; writes
#               $step/{leader,holder,ready,failed,log}
#   ranks       enter: waits for $step/ready, writes $step/rank.N and rank.N.sh; sets joining, command
#   end         supervise, end_step: local rank 0 stays its command's parent, and tidies up
# shellcheck disable=SC2034,SC2154 # shared with enter.sh and the tool's file
# shellcheck disable=SC2317,SC2329 # enter.sh and traps call what they need

readonly patience=120 # seconds that ranks give local rank 0 to begin

# --- Processes -------------------------------------------------------------------------------
note() { # file, process id: written whole or not at all
  local condition moment
  look "$2"
  printf '%s %s\n' "$2" "$moment" >"$1.new"
  mv -f -- "$1.new" "$1"
}

# A pipe that nobody writes to: reading from it is a pause that takes no process.
exec {naps}<> <(:)
nap() { # seconds
  read -rt "$1" -u "$naps" || true
}

# --- Mounts: pyxis' form and defaults (NVIDIA/pyxis 0.24.0, args.c, add_mount) ----------------
read_mount() { # spec: sets source, target and flags
  IFS=: read -r source target flags <<<"$1"
  target=${target:-$source}
  case $source in
    tmpfs | umount) ;;
    [./]*)
      # The tool would report it too, but without node and option.
      if [[ ! -e $source && +$flags+ != *+nofail+* ]]; then fail "mount $1: there is no $source here"; fi
      [[ $source == /* ]] || source=$PWD/$source
      ;;
    *) fail "mount $1: must begin with a path, tmpfs or umount" ;;
  esac
  [[ $target == [./]* ]] || fail "mount $1: must name a path in the container"
  [[ $1 != *[[:cntrl:]]* ]] || fail "a mount contains a control character"
}

# Whether ranks find Slurm's PMIx server in a directory of this machine.
pmix_server() { [[ -d ${PMIX_SERVER_TMPDIR:-} && ${SLURM_MPI_TYPE:-pmix} == pmix* ]]; }

# --- The leader ------------------------------------------------------------------------------
# Variables of one rank, which must be neither the container's nor another rank's.
of_a_rank() {
  [[ $1 =~ ^(SLURM_.*|PMIX_RANK|PMIX_NAMESPACE|PMIX_SERVER_.*|PMI_.*|CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ZE_AFFINITY_MASK)$ ]]
}

start_holder() {
  local condition moment starter log=$step/log
  tool_prepare
  (
    unset SLURM_PROCID SLURM_LOCALID SLURM_TASK_PID SLURM_GTIDS
    unset PMIX_RANK PMI_FD PMI_RANK CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES
    trap - EXIT
    tool_start
  ) </dev/null >"$log" 2>&1 {naps}>&- &
  starter=$!
  holder=$starter
  disown "$starter" # its end is nothing to report
  look "$starter"
  until [[ $condition == T ]]; do
    if [[ -z $condition ]]; then
      tail -n 20 -- "$log" >&2
      fail "the container can't be started"
    fi
    nap 0.02
    if [[ -s $step/holder ]]; then read -r holder <"$step/holder" || true; fi
    look "$holder"
  done
}

# shellcheck disable=SC2317,SC2329 # called by a trap
give_up() {
  local code=$?
  if ((code == no_container)); then : >"$step/failed"; fi
  if [[ -n ${holder:-} ]]; then kill -KILL "$holder" 2>/dev/null || true; fi
}

lead() {
  rm -rf -- "$step"
  private "$step" || fail "$step can't be made"
  note "$step/leader" $$
  trap give_up EXIT
  make_locked || exit
  start_holder
  note "$step/ready" "$holder"
}

# --- The ranks -------------------------------------------------------------------------------
await() {
  local pid begin begun=$SECONDS
  until [[ -f $step/ready ]]; do
    [[ ! -f $step/failed ]] || fail "local rank 0 could not start the container"
    if [[ -f $step/leader ]]; then
      read -r pid begin <"$step/leader"
      # Not a failure if it has finished in between.
      alive "$pid" "$begin" || [[ -f $step/ready ]] || fail "local rank 0 ended before the container was up"
    elif ((SECONDS - begun > patience)); then
      fail "local rank 0 did not begin within $patience s"
    fi
    nap 0.05
  done
  read -r holder begin <"$step/ready"
  alive "$holder" "$begin" || fail "the container has ended already"
}

# Say whether a host variable goes to the ranks (NVIDIA/pyxis 0.24.0, spank_import_container_env: all,
# but the image's win except over those listed, and LANG, LANGUAGE, LC_ALL only if listed).
wanted() { # name
  local variable
  # shellcheck disable=SC2053 # a pattern
  [[ $1 != $tool_names ]] || return 1
  for variable in ${listed[@]+"${listed[@]}"}; do
    [[ $1 != "$variable" ]] || return 0
  done
  case $1 in
    PATH | HOME | SHELL | USER | LOGNAME | TERM | PWD | OLDPWD | SHLVL | _ | XDG_*) return 1 ;;
    LANG | LANGUAGE | LC_ALL) return 1 ;;
  esac
  if of_a_rank "$1"; then return 0; fi
  [[ -z ${inside[$1]+x} ]]
}

# Names that a shell can't export as they are: of functions, and of variables with a life of their own.
peculiar() {
  [[ ! $1 =~ ^[A-Za-z_][A-Za-z0-9_]*$ ||
    $1 =~ ^(BASH.*|SHELLOPTS|E?UID|PPID|GROUPS|IFS|PS[0-9]|OPT(IND|ARG|ERR)|LINENO|S?RANDOM|SECONDS|EPOCH.*|DIRSTACK|FUNCNAME|HISTCMD|COMP_.*|POSIXLY_CORRECT|ENV|_)$ ]]
}

exported() { # name, value
  local quote="'\\''"
  if peculiar "$1"; then
    strange+=("$1=$2")
  else
    printf "export %s='%s'\n" "$1" "${2//\'/"$quote"}"
  fi
}

# Shell text that gives a rank its environment: values of any bytes and length, which no tool's options
# can carry (enroot splits at newlines, and all of them together are one argument).
environment() {
  local word variable value quote="'\\''" strange=()
  local -A inside=()
  while IFS= read -r -d '' word; do
    variable=${word%%=*} value=${word#*=}
    inside[$variable]=1
    if tool_brings "$variable" "$value"; then exported "$variable" "$value"; fi
  done <"/proc/$holder/environ"
  for word in "${host_environment[@]}"; do
    variable=${word%%=*} value=${word#*=}
    if [[ -n $variable ]] && wanted "$variable"; then
      exported "$variable" "$value"
      inside[$variable]=1
    fi
  done
  # The modules that Slurm's PMIx server speaks, as enroot's 50-slurm-pmi.sh.
  for word in ptl:PMIX_PTL_MODULE psec:PMIX_SECURITY_MODE gds:PMIX_GDS_MODULE; do
    variable=PMIX_MCA_${word%%:*} value=${word#*:}
    value=${!value:-}
    # From PMIx 5 on ranks read shared memory by it, in files that the container does not have.
    if [[ $value == *shmem* ]]; then value='hash'; fi
    if [[ -n $value && -z ${inside[$variable]+x} ]]; then exported "$variable" "$value"; fi
  done
  # PyTorch counts its ranks by these (NVIDIA/pyxis 0.24.0, pytorch_setup).
  if [[ -n ${inside[PYTORCH_VERSION]+x} && -n ${SLURM_PROCID:-} ]]; then
    exported RANK "$SLURM_PROCID"
    exported LOCAL_RANK "${SLURM_LOCALID:-0}"
  fi
  for word in ${strange[@]+"${strange[@]}"}; do
    printf "set -- '%s' \"\$@\"\n" "${word//\'/"$quote"}"
  done
  if ((${#strange[@]})); then printf 'set -- env -- "$@"\n'; fi
  workdir=${workdir:-${joined_in:-}}
  if [[ -n $workdir ]]; then
    printf "cd -- '%s' || exit %d\n" "${workdir//\'/"$quote"}" "$no_container"
  fi
}

# shellcheck disable=SC2016 # the words of the shell inside; it leaves no file with secrets behind
readonly inner='hpcbert_file=$1; shift; . "$hpcbert_file"; rm -f -- "$hpcbert_file"; unset hpcbert_file; exec "$@"'

enter() {
  local own
  rank=${SLURM_LOCALID:-0}
  if ((rank == 0)); then lead; fi
  await
  tool_join
  own=$step/rank.$rank
  (umask 077 && environment >"$own.sh")
  command=("${joining[@]}" sh -c "$inner" sh "$own.sh" "$@")
  if ((rank == 0)); then
    supervise
  else
    note "$own" $$
    exec "${command[@]}" {naps}>&-
  fi
}

# How many ranks of this step are on this node: "8(x4),3" is eight on each of four nodes, then three.
tasks_here() {
  local group counts=() number
  IFS=, read -ra counts <<<"${SLURM_STEP_TASKS_PER_NODE:-${SLURM_NTASKS:-1}}"
  number=${SLURM_NODEID:-0}
  for group in "${counts[@]}"; do
    [[ $group =~ ^([0-9]+)(\(x([0-9]+)\))?$ ]] || break
    if ((number < ${BASH_REMATCH[3]:-1})); then
      printf '%d' "${BASH_REMATCH[1]}"
      return
    fi
    number=$((number - ${BASH_REMATCH[3]:-1}))
  done
  printf 1
}

# Run local rank 0, pass signals on, and tidy up when it has ended.
supervise() {
  local code last signalled child condition moment
  terminated=''
  # Bash has background commands ignore INT and QUIT; stdin would be /dev/null.
  (
    trap - INT QUIT EXIT
    exec "${command[@]}" {naps}>&-
  ) <&0 &
  child=$!
  note "$step/rank.0" "$child"
  for signal in HUP INT QUIT TERM USR1 USR2; do
    # shellcheck disable=SC2064 # the name as it is now
    trap "signalled=1; pass_on $signal $child" "$signal"
  done
  while true; do
    signalled='' code=0
    { wait "$child" || code=$?; } 2>/dev/null # bash would report a signal in the rank's log
    [[ -n $signalled ]] || break
    look "$child"
    [[ -z $condition ]] || continue
    # It ended while a signal came, so the code may be the signal's. Asked a second time, bash returns
    # the command's, unless it already did; with another child alive it would wait for that one.
    kill -KILL "$holder" 2>/dev/null || true
    last=0
    { wait "$child" || last=$?; } 2>/dev/null
    if ((last != 127)); then code=$last; fi
    break
  done
  trap 'terminated=1' TERM
  end_step
  end_as "$code"
}

# End as the command did: srun gives a job the highest exit code, and if a rank fails with 7, the 143
# of others that were terminated because of it would hide that.
end_as() { # exit code
  if (($1 > 128 && $1 < 160)); then
    ulimit -c 0
    trap - "$(($1 - 128))" 2>/dev/null || true
    kill -s "$(($1 - 128))" $$
  fi
  exit "$1"
}

# shellcheck disable=SC2317,SC2329 # called by a trap
pass_on() { # signal, process id
  if [[ $1 == TERM ]]; then terminated=1; fi
  # Slurm signals every process of a step; others reach only the one that they started.
  if [[ -z ${SLURM_TASK_PID:-} ]]; then kill -s "$1" "$2" 2>/dev/null || true; fi
}

end_step() {
  trap - EXIT
  if [[ -n $terminated ]]; then
    # The other ranks had the same signal, and may still be writing in the container: they end first.
    await_ranks
  else
    await_joined
    if [[ -n $tool_holds ]]; then
      # Not by the leader itself: Slurm ends a step by the exit status of each rank, so none may wait
      # for another. Slurm kills the rest when the step ends; removing the container cleans up.
      (trap '' HUP INT QUIT TERM && await_ranks && close_step) </dev/null >/dev/null 2>&1 {naps}<&0 &
      disown "$!"
      return
    fi
  fi
  close_step
  # After scancel nothing else will run here for this job.
  if [[ -n $terminated ]] && ! lives "$(job_of "$container")"; then
    settle_places
    remove_container "$container"
    delete_removed
  fi
}

close_step() {
  kill -KILL "$holder" 2>/dev/null || true
  rm -rf -- "$step" || true # no failure of the rank's
}

await_ranks() {
  local file pid begin
  for file in "$step"/rank.*; do
    [[ $file =~ rank\.[0-9]+$ ]] || continue
    read -r pid begin <"$file" || continue
    while alive "$pid" "$begin"; do nap 0.1; done
  done
}

# Keep the namespaces, and the ranks' files, until all of the node's ranks are inside and have read
# theirs, which takes no time but for the shortest of commands.
await_joined() {
  local file pid begin joined tasks begun=$SECONDS
  tasks=$(tasks_here)
  while [[ -z $terminated ]] && ((SECONDS - begun < patience)); do
    joined=0
    for file in "$step"/rank.*; do
      [[ $file =~ rank\.[0-9]+$ ]] || continue
      read -r pid begin <"$file" || continue
      # The file is removed inside, when it has been read.
      if ! alive "$pid" "$begin" || [[ ! -e $file.sh ]]; then joined=$((joined + 1)); fi
    done
    if ((joined >= tasks)); then return; fi
    nap 0.05
  done
}
