#!/bin/bash
# Runs commands in a container without srun's plugin, with the meaning that pyxis gives srun's options.
#
#   enter.sh create OPTION...             make the container on this node: one task a node
#   enter.sh enter  OPTION... -- COMMAND  run a command in it: every rank of a step, any number a node
#   enter.sh remove --name NAME [--scratch DIRECTORY]
#                                         end what runs in it here, and remove it: one task a node
#   enter.sh place  --name NAME --scratch DIRECTORY
#                                         print this user's directory below it, which is made
#
#   --with TOOL           enroot (if left out) or apptainer: the file TOOL.sh next to this one
#   --name NAME           the job's container; the node's name is added to it
#   --image FILE          image file to make it from, where it is not there yet
#   --mount SPEC          SRC[:DST[:FLAG+FLAG]], tmpfs:DST[:FLAGS] or umount:DST
#   --workdir DIRECTORY   where commands start; the image's own working directory
#   --env NAME[,NAME]     variables whose value on the host wins over the image's
#   --home, --remap-root, --writable, --entrypoint, each also as --no-…
#                         left out: what this machine's settings say; entrypoint: no
#   --gpus                the machine's GPUs and their driver, if the tool has an option for them
#   --scratch DIRECTORY   where the tool keeps what it unpacks; left out: what its settings say
#
# How it works. One container for each node and step, because ranks in user namespaces of their own
# can't read each other's memory, which MPI and NCCL need (NVIDIA/enroot#49). Local rank 0 leads: it
# starts a shell in the container, which stops itself and so holds the namespaces open (as pyxis does:
# NVIDIA/pyxis 0.24.0, pyxis_slurmstepd.c, enroot_container_start); every rank joins it, with exit
# code, signals and stdin of the command itself. The command replaces every rank but the leader, which
# stays its command's parent, to clean up.
#
# What a tool's file defines:
#   tool_settings      its own environment and directories, below $base where --scratch is given
#   tool_usable        fails, saying why, where it can't be used at all
#   tool_has NAME, tool_make NAME, tool_remove NAME, tool_list
#                      the files of containers; make: from $image
#   tool_prepare       what can fail before the start; tool_start: be replaced by a shell in the container that stops itself; one that has another
#                      process id than the caller writes it into $step/holder
#   tool_join          set `joining` to the words that run a command in the holder's container
#   tool_brings NAME VALUE
#                      whether a joined command lacks this variable of the holder's
#   tool_names         pattern of the variables that are the tool's settings, and nobody else's
#   tool_holds         yes, if what has joined can't go on without the holder
#
# Exits with the command's code, or with 125 if the container can't be made or entered.
# shellcheck disable=SC2034,SC2154 # shared with the tool's file
set -euo pipefail

# What the host exported, before anything here changes it: /proc has it byte for byte.
mapfile -d '' -t host_environment <"/proc/$$/environ"
PATH=$PATH:/usr/sbin:/sbin # squashfs tools and getent lie there on some nodes
unset LD_LIBRARY_PATH LD_PRELOAD BASH_ENV CDPATH # meant for the ranks, not for the tool
LC_ALL=C                                         # bytes, not characters

node=${SLURMD_NODENAME:-$(uname -n)}
readonly no_container=125
readonly patience=120 # seconds that ranks give local rank 0 to begin

say() { printf 'hpcbert: %s: %s\n' "$node" "$*" >&2; }
fail() {
  say "$1"
  exit "$no_container"
}

# --- Arguments ------------------------------------------------------------------------------
verb=${1:-}
case $verb in create | enter | remove | place) shift ;; *) fail "enter.sh has no command '$verb'" ;; esac
tool=enroot name='' image='' workdir='' scratch='' entrypoint=no gpus=''
home='' remap_root='' writable=''
mounts=() listed=()
while (($#)); do
  case $1 in
    --with | --name | --image | --mount | --workdir | --env | --scratch)
      (($# > 1)) || fail "$1 needs a value"
      case $1 in
        --with) tool=$2 ;;
        --name) name=$2 ;;
        --image) image=$2 ;;
        --mount) mounts+=("$2") ;;
        --workdir) workdir=$2 ;;
        --scratch) scratch=$2 ;;
        --env) IFS=, read -ra more <<<"$2" && listed+=("${more[@]}") ;;
      esac
      shift
      ;;
    --home) home=y ;;
    --no-home) home=n ;;
    --remap-root) remap_root=y ;;
    --no-remap-root) remap_root=n ;;
    --writable) writable=y ;;
    --no-writable) writable=n ;;
    --gpus) gpus=yes ;;
    --entrypoint) entrypoint=yes ;;
    --no-entrypoint) entrypoint=no ;;
    --) shift && break ;;
    *) fail "enter.sh does not know $1" ;;
  esac
  shift
done
[[ $name =~ ^[A-Za-z0-9][A-Za-z0-9_.-]*$ ]] || fail "'$name' is not a name for a container"
for word in ${listed[@]+"${listed[@]}"}; do
  [[ $word =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || fail "--env: '$word' is not the name of a variable"
done
if [[ $verb == enter ]] && ((!$#)); then fail "enter needs a command"; fi

beside=$(dirname -- "${BASH_SOURCE[0]}")
[[ $tool =~ ^[a-z]+$ && -r $beside/$tool.sh ]] || fail "there is no $tool.sh next to enter.sh"
# shellcheck source=/dev/null # enroot.sh or apptainer.sh
. "$beside/$tool.sh"

# Several nodes may share one directory of containers, and one host may be several nodes.
readonly container=$name-$node

# --- Where things are kept -------------------------------------------------------------------
settle_settings() {
  if [[ -n $scratch ]]; then
    [[ $scratch == /* ]] || fail "--scratch $scratch: not an absolute path"
    # Other users of this node may need their own below it.
    # shellcheck disable=SC2174 # the mode is for the last directory
    (umask 022 && mkdir -p -m 1777 -- "$scratch") 2>/dev/null ||
      fail "container.scratch, $scratch, can't be written"
    settle_base "$scratch"
  else
    settle_base /tmp
  fi
  tool_settings
}

# Make a directory that nobody else can have prepared.
private() {
  mkdir -m 700 -- "$1" 2>/dev/null || own "$1"
}

own() { [[ -d $1 && -O $1 && ! -L $1 ]]; }

# This user's directory below one that everybody can write to. Anybody can take a predictable name: then
# this makes up one that can't be predicted. Every rank of a node finds the same directory: the one with
# the container, else the first that belongs to the user.
settle_base() { # directory
  local fixed=$1/hpcbert-$EUID one
  for one in "$fixed" "$fixed".*; do
    base=$one
    if own "$base" && [[ -d $base/state/$container ]]; then return; fi
  done
  base=$fixed
  if private "$base"; then return; fi
  for one in "$fixed".*; do
    base=$one
    if own "$base"; then return; fi
  done
  base=$(mktemp -d -- "$fixed.XXXXXXXXXX" 2>/dev/null) || fail "can't create a directory in $1"
}

# Ranks of a node exchange files in a directory of the node's own.
settle_state() {
  states=$base/state
  state=$states/$container
  # Without an id of a step this is the only task of one.
  step=$state/step-${SLURM_STEP_ID:-alone$$}-${SLURM_RESTART_COUNT:-0}
  if ! private "$states" || ! private "$state"; then fail "$base can't be written"; fi
}

# --- Processes: one is known by its id and the moment it was started -------------------------
# While they wait, ranks look without starting processes: on a node of many they would add up.
look() { # process id: sets condition and moment, in ticks; both empty if it is gone
  local line words tasks
  condition='' moment=''
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 0
  # Fields 3 and 22 of proc(5)'s stat, counted behind the name, which may hold blanks and brackets.
  read -ra words <<<"${line##*) }"
  if [[ ${words[0]} == Z ]]; then
    # A program of several threads that is being replaced looks dead until all of them are gone.
    tasks=("/proc/$1/task"/*)
    if ((${#tasks[@]} > 1)); then words[0]=R; fi
  fi
  if [[ ${words[0]} != [ZX] ]]; then condition=${words[0]} moment=${words[19]}; fi
}

alive() { # process id, moment
  local condition moment
  look "$1"
  [[ -n $2 && $moment == "$2" ]]
}

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

# --- The container's files -------------------------------------------------------------------
# Run a command of the tool whose output matters only when it fails.
quietly() {
  local output
  output=$("$@" 2>&1 </dev/null) || {
    printf '%s\n' "$output" | tail -n 20 >&2
    return 1
  }
}

# Make the container, or find it made. `create` is neither atomic nor safe among several (two pass its
# test of existence, a killed one leaves half a tree under the name): the lock and the note of the
# image, written last, make it both.
make() {
  local identity
  tool_usable
  if [[ -z $image ]]; then
    if [[ -f $state/image ]] && tool_has "$container"; then return 0; fi
    fail "there is no container $container, and no image to make it from"
  fi
  # Path, size and time: a file that was replaced under the same name is another image.
  identity=$(readlink -e -- "$image" && stat -Lc '%s %Y' -- "$image") || fail "the image $image is not on this node"
  [[ -r $image ]] || fail "the image $image can't be read on this node"
  if [[ -f $state/image ]] && tool_has "$container"; then
    [[ $(<"$state/image") == "$identity" ]] ||
      fail "the container $container was made from another image: $(head -n 1 "$state/image")"
    return 0
  fi
  rm -f -- "$state/image"
  if tool_has "$container"; then tool_remove "$container"; fi
  tool_make "$container" || fail "the container can't be made from $image"
  printf '%s' "$identity" >"$state/image"
}

make_locked() {
  (
    flock 9
    make
  ) 9>"$state/lock"
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
  if [[ -n $terminated ]] && ! lives "$name"; then remove_container "$container"; fi
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

# --- What is left behind ---------------------------------------------------------------------
# Return whether the job of a container still lives: hpcbert-JOB, or hpcbert-pPROCESS without Slurm.
# If that is unknown, it does.
lives() { # name without the node
  local id=${1#hpcbert-} answer
  case $id in
    p*[!0-9]* | [!p0-9]* | '' | p) return 0 ;;
    p*) [[ -d /proc/${id#p} ]] && return 0 || return 1 ;;
    *[!0-9]*) return 0 ;;
  esac
  answer=$(squeue --noheader --states=all --format=%T --jobs="$id" 2>&1) || {
    [[ $answer != *'Invalid job id'* ]]
    return
  }
  # A job that is ending has no use for its container.
  [[ $answer =~ (PENDING|RUNNING|SUSPENDED|CONFIGURING|REQUEUE|RESIZING|SIGNALING|STOPPED) ]]
}

remove_container() { # with the node's name
  local file pid begin
  for file in "$states/$1"/step-*/{ready,rank.*}; do
    [[ $file =~ /(ready|rank\.[0-9]+)$ && -f $file ]] || continue
    read -r pid begin <"$file" || continue
    if alive "$pid" "$begin"; then kill -KILL "$pid" 2>/dev/null || true; fi
  done
  if tool_has "$1"; then tool_remove "$1" || say "the container $1 can't be removed"; fi
  rm -rf -- "${states:?}/$1"
}

# Remove the remains of dead jobs on this node: killed by the machine, or too slow to end for Slurm.
sweep() {
  local one
  while IFS= read -r one; do
    if [[ $one == hpcbert-*-"$node" && $one != "$container" ]] && ! lives "${one%-"$node"}"; then
      remove_container "$one"
    fi
  done < <({ tool_list && ls -1 -- "$states"; } | sort -u)
}

settle_settings
if [[ $verb == place ]]; then
  printf '%s\n' "$base"
  exit
fi
settle_state
case $verb in
  create)
    make_locked || exit
    sweep
    ;;
  enter) enter "$@" ;;
  remove) remove_container "$container" ;;
esac
