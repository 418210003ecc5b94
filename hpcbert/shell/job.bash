# How hpcbert keeps the record of a job. A job's script sets `campaign`, sources this file and the
# one of its scheduler (slurm.bash or local.bash), sets its variables, calls `begin_job`, defines how its
# ranks start in `measure`, and ends with `run_repeats`. Some scripts source further files.
#
#   settings     set_path, check_environment, hand_over, join, begin_job
#   record       mark, quoted, field, moment, job, taken, begin, end, apart
#   signals      on_signal, on_exit, report_cut, wait_for_step
#   hold-back    baseline_is_well, hold_back
#   nodes        drop_caches, free_port
#   repeats      run_repeat, run_repeats
#
# The script sets:
#   campaign, point, logs       its directory, the point's key, and the stem of its logs in the campaign
#   repeats, offset             numbers of the repeats of this job; what an array's index lacks to one
#   first_attempt, array_name   the number of the first attempt; the array's name in the record
#   nodes, tasks_per_node       how many, and
#   devices_per_task, device    how many devices each task drives: gpu, cpu or tpu
#   environment, handed_over    variables of every rank as NAME=VALUE; names that enter the container
#   python                      the ranks' interpreter, which the description of the nodes asks
#   baseline, sampling          the point that must have succeeded; seconds between two samples
#   caches, surroundings        words that drop the page caches; options of srun around the ranks
# Files of the same folder: watch.bash (suspensions), nodes.bash (what the nodes are), describe.sh, sample.sh.
# shellcheck shell=bash disable=SC2034,SC2154 # variables of the script and of other files
# shellcheck disable=SC2317,SC2329 # the script and traps call what they need

library=${BASH_SOURCE[0]%/*}
# shellcheck source=/dev/null
. "$library/watch.bash"
# shellcheck source=/dev/null
. "$library/nodes.bash"

# What the script need not set. Its caller may have exported variables of these names.
unset -v environment handed_over caches surroundings
environment=() handed_over=() caches=() surroundings=()
offset=0 baseline='' sampling='' python=python3 scratch=''
status='' step_pid='' stopped='' pause='' watcher='' sampler='' clock='' fields='' worst=0
ahead=null # whole seconds by which the controller's clock is ahead of this node's
image='' enter=() step=() beside=() batch=''

# --- Settings -------------------------------------------------------------------------------

# A job may find any PATH or none, and `ip` is in a sbin folder on many systems.
set_path() { # sets PATH
  local folder
  for folder in /usr/local/bin /usr/bin /bin /usr/sbin /sbin; do
    if [[ :${PATH-}: != *:$folder:* ]]; then PATH=${PATH:+$PATH:}$folder; fi
  done
  export PATH
}

# File names and bash's arithmetic contain these, and arithmetic would run a command in brackets. A
# variable of pyxis would override srun's options, and may have put this script in a container.
check_environment() { # unsets PYXIS_*
  local name
  for name in SLURM_JOB_ID SLURM_ARRAY_TASK_ID SLURM_RESTART_COUNT SLURM_JOB_START_TIME; do
    if [[ ! ${!name-0} =~ ^[0-9]*$ ]]; then
      echo "hpcbert: $name is not a number" >&2
      exit 125
    fi
  done
  if [[ -n ${PYXIS_CONTAINER_IMAGE:-}${PYXIS_CONTAINER_NAME:-} && -n ${SLURM_JOB_ID:-} ]] && ! command -v srun >/dev/null; then
    echo "hpcbert: PYXIS_CONTAINER_IMAGE or PYXIS_CONTAINER_NAME put the job's script in a container without srun: unset it and submit again" >&2
    exit 125
  fi
  for name in "${!PYXIS_@}"; do unset "$name"; done
}

# What a container gets of the job's environment, apart from the site's own variables.
hand_over() { # name ...; adds to handed_over; reads device, tasks, devices_per_task
  handed_over=("$@" HPCBERT_NODES HPCBERT_NODE_IPS MASTER_ADDR MASTER_PORT "${handed_over[@]}")
  if [[ $device == gpu ]] && ((tasks * devices_per_task > 1)); then handed_over+=(HPCBERT_NCCL_LOG); fi
  if [[ $device == cpu ]]; then
    # Leave the driver and its devices out of the container.
    export NVIDIA_VISIBLE_DEVICES=void
    handed_over+=(NVIDIA_VISIBLE_DEVICES)
  fi
}

join() { # word ... -> one list with commas
  local IFS=,
  echo "$*"
}

# Starts the record of the first repeat, then asks whether it is needed at all. From here on the record
# shows that the job runs, and on_exit ends the repeat with the status of whatever fails.
begin_job() { # reads the script's settings; sets host, attempt, tasks, repeats
  local repeat free=() folder missing=()
  set_path
  umask o-w # the umask of the submission decides who else can read what the job writes
  check_environment
  IFS= read -r host </proc/sys/kernel/hostname # HOSTNAME may be inherited from the submit host
  attempt=$((first_attempt + ${SLURM_RESTART_COUNT:-0}))
  tasks=$((nodes * tasks_per_node))
  for folder in "$campaign"/status "$campaign"/env "$campaign/${logs%/*}"; do
    if [[ ! -d $folder ]]; then missing+=("$folder"); fi
  done
  if ((${#missing[@]})); then mkdir -p "${missing[@]}"; fi
  # The script records a signal and passes it to the step; then it continues, to record how the step
  # ended as well. Slurm's SIGKILL comes KillWait seconds later.
  trap 'on_signal TERM' TERM
  trap 'on_signal INT' INT
  trap on_exit EXIT
  for repeat in "${repeats[@]}"; do
    repeat=$((repeat + offset))
    if ! taken "$repeat"; then free+=("$repeat"); fi
  done
  if [[ -z ${free[*]-} ]]; then exit 125; fi
  repeats=("${free[@]}")
  begin "${repeats[0]}"
  if [[ -n $baseline ]]; then hold_back; fi
  if ((${#repeats[@]} == 1)) && declare -F enough >/dev/null && enough "${repeats[0]}"; then
    end 0
    exit 0
  fi
  prepare_nodes
}

# --- The job's own record: one JSON object per line ------------------------------------------
# A process takes as long as hundreds of commands of the shell, and five repeats start each of them
# five times. So functions leave their text in REPLY, where $( ) would start a process.

mark() { # event [,"key":value ...]; reads status, attempt
  printf '{"event":"%s","time":%(%s)T,"attempt":%d%s}\n' "$1" -1 "$attempt" "${2:-}" >>"$status" ||
    echo "hpcbert: can't write $status" >&2
}

quoted() { # text -> REPLY: as a JSON string
  local LC_ALL=C text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  printf -v REPLY '"%s"' "${text//[^ -~]/?}"
}

field() { # key text; adds to fields, those of the event that is about to be written
  quoted "$2"
  fields+=",\"$1\":$REPLY"
}

# The time now by this node's clocks. Both must be read at the same moment: if something came between,
# this tries again. Time stamps in a log are compared with it.
moment() { # -> REPLY
  local before after wall tries=0
  while true; do
    read -r before _ </proc/uptime || true
    wall=${EPOCHREALTIME:-$(date +%s.%N)}
    read -r after _ </proc/uptime || true
    if [[ $before == "$after" ]] || ((++tries == 9)); then break; fi
  done
  wall=${wall/,/.}
  if [[ ! $wall =~ ^[0-9]+[.][0-9]+$ ]]; then wall=null; fi
  printf -v REPLY ',"at":%s,"uptime":%s,"zone":"%(%z)T"' "$wall" "${before:-null}" -1
}

job() { # repeat; reads offset -> REPLY: the job's id with the array's index
  REPLY="${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID:-$$}}_$(($1 - offset))"
}

# A user may requeue a job after a retry has replaced it, or run a retry's script again. An attempt
# that another job has begun belongs to that job, and so do the attempts after it.
taken() { # repeat; reads attempt, first_attempt and the repeat's record
  local line begun='"event":"start".*"attempt":([0-9]{1,9}),"job":"([^"]*)"'
  local mine from=$((first_attempt > 0 ? first_attempt : 1))
  if ((attempt == 0)) || [[ ! -f $campaign/status/$point.$1.jsonl ]]; then return 1; fi
  job "$1"
  mine=$REPLY
  while read -r line; do
    if [[ $line =~ $begun && ${BASH_REMATCH[2]} != "$mine" ]] && ((10#${BASH_REMATCH[1]} >= from)); then
      echo "hpcbert: attempt ${BASH_REMATCH[1]} of repeat $1 belongs to job ${BASH_REMATCH[2]}: nothing is run" >&2
      return 0
    fi
  done <"$campaign/status/$point.$1.jsonl"
  return 1
}

begin() { # repeat; reads attempt, array_name, host; sets status, log, fields
  status=$campaign/status/$point.$1.jsonl
  log=$campaign/${logs}_$1.log
  if ((attempt > 0)); then log=${log%.log}.r$attempt.log; fi
  fields=''
  job "$1"
  field job "$REPLY"
  field array "$array_name"
  field host "$host"
  field nodelist "${SLURM_JOB_NODELIST:-$host}"
  fields+=",\"pid\":$$,\"watched\":true"
  # What the queue gave the job; empty if its environment does not say.
  field partition "${SLURM_JOB_PARTITION:-}"
  field account "${SLURM_JOB_ACCOUNT:-}"
  field qos "${SLURM_JOB_QOS:-}"
  mark start "$fields,\"scheduled\":$((10#${SLURM_JOB_START_TIME:-0})),\"restarts\":$((10#${SLURM_RESTART_COUNT:-0}))"
  echo "hpcbert: repeat $1 attempt $attempt on ${SLURM_JOB_NODELIST:-$host}, log $log"
  watch repeat
}

end() { # exit status; clears status
  end_sampling
  unwatch
  mark end ",\"exit\":$1"
  status=''
}

# Rank 0 reports before its program starts if ranks see fewer GPUs than their node has.
apart() { # reads log, device, devices_per_task, tasks_per_node -> REPLY: a field
  REPLY=''
  if [[ $device != gpu ]] || ((devices_per_task > 1 || tasks_per_node == 1)); then return 0; fi
  if grep -qsm1 '^hpcbert: ranks see ' < <(head -c 65536 -- "$log"); then REPLY=',"apart":true'; fi
}

# --- Signals --------------------------------------------------------------------------------

on_signal() { # name; sets stopped, reads step_pid
  stopped=$1
  mark signal ",\"signal\":\"$1\""
  if [[ -n $step_pid ]]; then kill -TERM "$step_pid" 2>/dev/null || true; fi
}

# Whatever ends the script early also ends the current repeat.
on_exit() { # reads stopped, status
  local code=$?
  if ((code != 0)) && [[ -z $stopped ]] && declare -F give_up >/dev/null; then give_up; fi
  if [[ -n $status ]]; then end "$code"; fi
  if declare -F leave >/dev/null; then leave || true; fi
}

report_cut() { # status of a removal: nodes that did not end in time could not report what they left
  if (($1 == 124 || $1 == 137)); then
    echo "hpcbert: removal was cut after 60 s: your next job on ${SLURM_JOB_NODELIST:-$host} goes on with it" >&2
  fi
}

# A trap interrupts `wait`: this waits until the step is really over, then returns its status.
wait_for_step() { # reads step_pid
  local code
  while true; do
    code=0
    wait "$step_pid" || code=$?
    kill -0 "$step_pid" 2>/dev/null || return "$code"
  done
}

# --- Held back where all repeats of the smallest shape failed --------------------------------

# They have ended by now, because each point waits for the one before it.
baseline_is_well() { # reads baseline
  grep -qs '"event":"step-end".*"exit":0[,}]' "$campaign/status/$baseline".*.jsonl
}

# A file system may show late what another node wrote.
hold_back() { # reads repeats, baseline, patience
  local repeat
  if baseline_is_well || { sleep "$patience" && baseline_is_well; }; then return 0; fi
  echo "hpcbert: held back: all repeats of $baseline failed" >&2
  for repeat in "${repeats[@]}"; do
    if [[ -z $status ]]; then begin "$repeat"; fi
    quoted "$baseline"
    mark held ",\"baseline\":$REPLY"
    end 125
  done
  exit 125
}

# --- Nodes ----------------------------------------------------------------------------------

# Prints the first of as many free ports in a row as the node has devices. Consecutive jobs start the
# search at different ports. The kernel's tables list all listeners, whoever owns them.
free_port() { # number of the job; reads tasks_per_node, devices_per_task; prints the port
  local devices=$((tasks_per_node * devices_per_task)) table line lines rank tries
  local port=$((10000 + $1 * devices % 20000)) taken=' '
  for table in /proc/net/tcp /proc/net/tcp6; do
    if [[ ! -r $table ]]; then continue; fi
    mapfile -t lines <"$table"
    for line in "${lines[@]:1}"; do
      line=${line#*: *:} line=${line%% *} # what follows the number of the line, and the address
      if [[ $line == [0-9A-F][0-9A-F][0-9A-F][0-9A-F] ]]; then taken+="$((16#$line)) "; fi
    done
  done
  for ((tries = 0; tries < 1000; tries++)); do
    for ((rank = 0; rank < devices; rank++)); do
      if [[ $taken == *" $((port + rank)) "* ]]; then break; fi
    done
    if ((rank == devices)); then break; fi
    port=$((10000 + (port - 10000 + 7919) % 20000))
  done
  echo "$port"
}

# Every repeat reads its files from disk, as the first one did.
drop_caches() { # reads step, caches
  timeout --kill-after=10 300 "${step[@]}" "${caches[@]}" </dev/null >/dev/null ||
    echo "hpcbert: the page caches were not dropped on every node" >&2
}

# --- The measured steps ---------------------------------------------------------------------

# Runs everything in the background and waits for it: bash would run the trap of a signal only after a
# step in the foreground has ended.
run_repeat() { # repeat; reads caches, sampling, device, batch; sets step_pid, clock, ahead, worst
  local code=0 ended
  gather "$campaign/env/$point.$1.$attempt.nodes.jsonl" < <(describe "$1" </dev/null) &
  step_pid=$!
  wait_for_step || true
  step_pid=''
  if [[ -n $clock ]]; then
    read -r ahead <&"$clock" || ahead=null
    exec {clock}<&-
    clock=''
  fi
  if [[ -n $stopped ]]; then exit 143; fi
  if ((${#caches[@]})); then drop_caches; fi
  if [[ $device == gpu ]] && ((tasks * devices_per_task > 1)); then
    export HPCBERT_NCCL_LOG=$campaign/env/$point.$1.$attempt.nccl
  fi
  if [[ -n $sampling ]]; then sample "$1"; fi
  unwatch
  watch step
  moment
  mark step "$REPLY,\"ahead\":$ahead${batch:+,\"batch\":$batch}"
  launch {pause}>&- &
  step_pid=$!
  wait_for_step || code=$?
  moment
  ended=$REPLY
  step_pid=''
  unwatch
  # The end time is taken first, so that it does not include the time that settle takes.
  settle "$code" || code=$?
  if ((code != 0)) && [[ -z $stopped ]] && declare -F record_shortage >/dev/null; then record_shortage "$code"; fi
  apart
  mark step-end ",\"exit\":$code$ended$REPLY"
  end "$code"
  if ((code != 0)); then worst=$code; fi
}

run_repeats() { # reads repeats; sets repeat, worst; exits with the status of the last repeat that failed
  for repeat in "${repeats[@]}"; do
    if [[ -z $status ]]; then begin "$repeat"; fi
    if ((${#repeats[@]} > 1)) && declare -F enough >/dev/null && enough "$repeat"; then
      end 0
    elif declare -F find_largest >/dev/null && ! find_largest; then
      end 1
      worst=1
    else
      run_repeat "$repeat"
    fi
  done
  exit "$worst"
}
