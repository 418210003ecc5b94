# Notices that a job was suspended, which Slurm's accounting may not record; job.bash sources this.
#
#   watch, unwatch   start and end a process that watches the time for a repeat or its measured step
#   watch_time       that process; look_at_time, report_pause: what it does
#
# Reads status, attempt (of `mark`); sets pause, watcher.
# shellcheck shell=bash disable=SC2154,SC2317,SC2329

watch() { # what: only short pauses of the measured `step` are summed; sets pause, watcher
  # Waiting here for a line needs no process; only the end of the watch writes here.
  if [[ -z ${pause:-} ]]; then exec {pause}<> <(:); fi
  watch_time "$1" </dev/null >/dev/null &
  watcher=$!
}

unwatch() { # reads pause; clears watcher
  if [[ -z $watcher ]]; then return 0; fi
  printf '\n\n' >&"$pause" # bash's `read` can lose the line that comes just when its time is up
  wait "$watcher" || true
  while read -rt 0 -u "$pause"; do read -r -u "$pause" _; done # what it left would end the next watch
  watcher=''
}

# A suspended job continues as if nothing had happened, and accounting may be down or have forgotten it.
# Ten times a second this reads the clock that runs on meanwhile, in hundredths of a second, and subtracts
# the time that a busy machine made it wait for a processor. A stopped process gets SIGCONT: then a
# gap of half a second is enough to be sure; without the signal it takes five. Shorter gaps are summed.
look_at_time() { # reads and sets seen, queued_for, continued, begun, short of watch_time
  local now waited missing least=500 noticed=clock
  read -r now _ </proc/uptime
  { read -r _ waited _ </proc/self/schedstat; } 2>/dev/null || waited=0
  # Read after the clock: the next look sees a stop that falls between the two.
  if ((continued > 0)); then least=50 noticed=signal continued=$((continued - 1)); fi
  now=$((10#${now/./})) waited=$((waited / 10000000))
  missing=$((now - seen - 10 - (waited - queued_for)))
  if ((seen == 0)); then
    begun=$now
  elif ((missing > least)); then
    report_pause "$missing" "$noticed"
  elif ((missing > 5)); then
    short=$((short + missing))
  fi
  seen=$now queued_for=$waited
}

report_pause() { # hundredths of a second, how it was noticed; by `mark`
  local gone
  printf -v gone '%d.%02d' $(($1 / 100)) $(($1 % 100))
  mark suspended ",\"seconds\":$gone,\"noticed\":\"$2\""
}

# A separate process for the length of a repeat, while the script itself waits for the step. Slurm
# suspends a job by stopping all its processes, so this one misses the same time and can report it.
# The end of the watch is no signal: `read` can lose a trap, too, that comes when its time is up. No
# command substitution, here or above: if bash 5.2 runs a trap while it reads one, it takes the
# trap's words for a part of it and reports `unexpected EOF`.
watch_time() { # what; reads pause; sets what look_at_time reads
  local seen=0 queued_for=0 continued=0 begun=0 short=0
  trap 'continued=2' CONT
  look_at_time
  while kill -0 $$ 2>/dev/null && ! read -rt 0.1 -u "$pause"; do
    look_at_time
  done
  look_at_time
  # More than a hundredth of the step in pauses that are too short to be reported alone.
  if [[ ${1:-} == step ]] && ((short > 30 && short * 100 > seen - begun)); then report_pause "$short" sum; fi
}
