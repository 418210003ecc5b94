# The largest batch: the first repeat finds it, one probe after another on its nodes. A script with
# `--batch-size max` sources this after job.bash.
#
#   readable, says, too_large, last_words   read a probe's log
#   tell, limit_probe, run_probe, recall record a probe's result, end one, run one, read the record
#   find_largest, refuse_size            the search, which ends without an answer: sets `batch`, which the script's ranks start with
#   record_shortage                      a measured step that lacked memory all the same
#
# Each probe is a fresh start of the program for a few iterations: of `probe` in the script. Each result
# is recorded, so that a repeat continues where an ended job stopped, and later repeats read the result.
# The script sets:
#   search               the record, a path in the campaign
#   iterations, memory   expressions of an iteration, and of too little memory
#   exits                exit statuses that mean too little memory
#   granularity, start, most   step of sizes, the first one to try, the largest one
#   samples              samples of a device in one step, of which the size must be a divisor; or empty
#   leader               the point whose jobs find the size for this one; empty if its own do
# shellcheck shell=bash disable=SC2034,SC2154,SC2317,SC2329

program=train # the function that a rank runs
iterations='' exits='' samples='' leader=''
limit=${HPCBERT_PROBE_SECONDS:-900} # of a probe

# Prints a log without colours, and each update of a progress bar on its own line.
readable() { # log
  sed -e $'s/\033\\[[0-9;]*[A-Za-z]//g' -- "$1" | tr '\r' '\n'
}

says() { # log, Perl regular expression; prints the first line that matches
  # No pipe: its end would hide what grep found.
  LC_ALL=C grep -aiPm1 -e "$2" < <(readable "$1")
}

tell() { # event, its fields; reads search, repeat
  local status=$campaign/$search
  mark "$1" ",\"repeat\":$repeat,\"point\":\"$point\",$2"
}

too_large() { # exit status, log; prints what says so; reads exits, memory
  if [[ " $exits " == *" $1 "* ]]; then
    echo "exit status $1"
  else
    says "$2" "$memory"
  fi
}

# The last words of a log that sound like an error, else its last ones.
last_words() { # log
  local line
  line=$(readable "$1" | LC_ALL=C grep -ai 'error' | tail -n 1) || true
  if [[ -z $line ]]; then line=$(readable "$1" | LC_ALL=C grep -a '[^ ]' | tail -n 1) || true; fi
  echo "${line:0:200}"
}

# Ends a probe that hangs, as ranks do that wait for one which failed. No child outlives it.
limit_probe() { # process; reads limit
  local idle
  exec {idle}<> <(:)
  read -rt "$limit" -u "$idle" || kill -TERM "$1" 2>/dev/null || return 0
  read -rt 30 -u "$idle" || kill -KILL "$1" 2>/dev/null || true
}

run_probe() { # samples per device; reads iterations, limit; sets step_pid; fails without an answer
  local code=0 log=$campaign/logs/search/$point.b$1.log said batch=$1 program=probe limiter start=$SECONDS
  launch {pause}>&- &
  step_pid=$!
  limit_probe "$step_pid" {pause}>&- &
  limiter=$!
  wait_for_step || code=$?
  step_pid=''
  kill "$limiter" 2>/dev/null || true
  wait "$limiter" || true
  settle "$code" || code=$?
  if [[ -n $stopped ]]; then exit 143; fi
  if ((code != 0 && SECONDS - start >= limit)); then code=124; fi
  if ((code == 0)) && { [[ -z $iterations ]] || says "$log" "$iterations" >/dev/null; }; then
    echo "hpcbert: $1 samples per device fit"
    tell probe "\"size\":$1,\"fits\":true"
  elif said=$(too_large "$code" "$log"); then
    echo "hpcbert: $1 samples per device are too many: $said"
    quoted "${said:0:200}"
    tell probe "\"size\":$1,\"fits\":false,\"said\":$REPLY"
  else
    said="a probe of $1 samples per device ended with status $code: $(last_words "$log")"
    if ((code == 124)); then said="a probe of $1 samples per device did not end within $limit s: $(last_words "$log")"; fi
    if ((code == 0)); then said="a probe of $1 samples per device ended with status 0, and its log has no iteration"; fi
    echo "hpcbert: $said" >&2
    quoted "$said"
    tell stopped "\"size\":$1,\"reason\":$REPLY"
    return 1
  fi
}

# Reads the record: the most samples that fitted, and the fewest that did not.
recall() { # reads search; sets low, high, known
  local line seen=() fits too_many='"size":([0-9]{1,9}),"fits":(true|false)'
  low=0 high=0 known=0
  while read -r line; do
    if [[ $line =~ $too_many ]]; then
      fits=${BASH_REMATCH[2]}
      if [[ $fits == true ]]; then
        seen+=("$((10#${BASH_REMATCH[1]}))")
      elif ((high == 0 || 10#${BASH_REMATCH[1]} < high)); then
        high=$((10#${BASH_REMATCH[1]}))
      fi
    elif [[ $line =~ \"event\":\"found\".*\"size\":([0-9]{1,9}) ]]; then
      known=$((10#${BASH_REMATCH[1]}))
    fi
  done < <(cat -- "$campaign/$search" 2>/dev/null)
  for fits in ${seen[@]+"${seen[@]}"}; do
    if ((fits > low && (high == 0 || fits < high))); then low=$fits; fi
  done
}

refuse_size() { # size, reason
  echo "hpcbert: $2" >&2
  tell stopped "\"size\":$1,\"reason\":\"$2\""
}

# Doubles from the recipe's own size until one is too large, then halves the gap.
find_largest() { # sets batch; reads granularity, start, most
  local low high known next
  mkdir -p "$campaign"/logs/search
  if ! LC_ALL=C grep -qP x <<<x; then
    echo "hpcbert: grep on this node does not support -P, which the search for the largest batch needs" >&2
    return 1
  fi
  while true; do
    recall
    if [[ -n $leader ]] && ((known == 0)); then
      refuse_size 0 "$leader found no size"
      return 1
    fi
    if ((high == 0)); then
      next=$((low ? 2 * low : start))
    elif ((low == 0)); then
      next=$((high / 2))
    else
      next=$(((low + high) / 2 / granularity * granularity))
      if ((next <= low)); then next=$((low - low % granularity + granularity)); fi
      if ((next >= high)); then break; fi
    fi
    if ((next == 0 || next > most)); then
      local why="not even one sample per device fits"
      if ((next)); then why="$low samples per device still fit, and more than $most are not tried"; fi
      refuse_size "$next" "$why"
      return 1
    fi
    run_probe "$next" || return 1
  done
  batch=$low
  if [[ -n $samples ]]; then
    while ((samples % batch)); do batch=$((batch - 1)); done
    if ((batch == samples)); then
      refuse_size "$batch" "$batch samples per device, all of a step, fit at once: give --batch-size $batch"
      return 1
    fi
  fi
  if ((known != batch)); then tell found "\"size\":$batch"; fi
  echo "hpcbert: the largest batch is $batch samples per device"
}

# The search ran a few iterations only, and all of them may need more memory.
record_shortage() { # exit status of the measured step; reads log, batch
  local said
  if said=$(too_large "$1" "$log"); then
    quoted "${said:0:200}"
    tell probe "\"size\":$batch,\"fits\":false,\"said\":$REPLY"
  fi
}
