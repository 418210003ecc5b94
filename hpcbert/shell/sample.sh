#!/bin/bash
# Records the power and the memory use of this node's GPUs until a line arrives on its input: GPUS SECONDS.
# One process outside the ranks, which sleeps between two looks; without a vendor's tool, none. Then it
# prints JSON lines, short enough for srun to keep each whole: seconds, watts of the GPUS that drew the
# most in all, and the MiB of the fullest of these. The last line has the number of samples.
set -u
gpus=$1 seconds=$2
node=${SLURMD_NODENAME:-}
if [[ -z $node ]]; then IFS= read -r node </proc/sys/kernel/hostname || node=node; fi
node=${node//[^A-Za-z0-9._-]/_}
raw=$(mktemp) && exec {looks}>"$raw" && rm -f "$raw" || exit 0
looked=''

summarize() {
  # shellcheck disable=SC2016 # awk's words
  awk -F', *' -v node="$node" -v most="$gpus" '
    function reading(gpu, watts, mib) {
      if (watts !~ /^[0-9]+([.][0-9]+)?$/ || mib !~ /^[0-9]+([.][0-9]+)?$/ || watts > 1e5 || mib > 1e8) return
      if (!second) { total[gpu] += watts; return }
      in_look[gpu] = 1
      if (gpu in chosen) { count++; power += watts; if (mib > memory) memory = mib }
    }
    function begin_look(time) {
      end_look()
      now = time; count = 0; power = 0; memory = 0; split("", in_look)
    }
    function end_look() {
      if (!second || !size || count != size) return
      if (!samples++) origin = now
      line = line (line == "" ? "" : ",") sprintf("[%.3f,%.2f,%.0f]", now - origin, power, memory)
      if (length(line) > 700) { print_line() }
    }
    function print_line() {
      if (line != "") printf "{\"node\":\"%s\",\"samples\":[%s]}\n", node, line
      line = ""
    }
    function choose(  gpu, best, place) {
      for (place = 0; place < most; place++) {
        best = ""
        for (gpu in total) if (!(gpu in chosen) && (best == "" || total[gpu] > total[best])) best = gpu
        if (best == "") break
        chosen[best] = 1; size++
      }
      second = 1; day = 0; clock = 0; stamped = ""
    }
    FNR == 1 && NR > 1 { choose() }
    NF == 1 && /^[0-9]+[.][0-9]+$/ { begin_look($1); next }
    $1 == "device" {
      power_column = memory_column = 0
      for (column = 2; column <= NF; column++) {
        if (!power_column && index($column, "Power (W)")) power_column = column
        if (!memory_column && index($column, "Used Memory (B)")) memory_column = column
      }
      width = NF
      next
    }
    NF == 4 && split($1, part, /[\/ :]/) == 6 && part[1] ~ /^[0-9]+$/ && part[6] ~ /^[0-9.]+$/ {
      time = part[4] * 3600 + part[5] * 60 + part[6]
      if (time < clock - 43200) day += 86400
      clock = time
      if (stamped == "" || ($2 in in_look)) { begin_look(day + time); stamped = 1 }
      reading($2, $3, $4)
      in_look[$2] = 1
      next
    }
    width && NF == width && power_column && memory_column { reading($1, $power_column, int($memory_column / 1048576)) }
    END {
      if (!second) exit
      end_look()
      print_line()
      printf "{\"node\":\"%s\",\"gpus\":%d,\"count\":%d}\n", node, size, samples
    }' "/proc/$$/fd/$looks" "/proc/$$/fd/$looks"
}

finish() {
  if [[ -n $looked ]]; then kill "$looked" 2>/dev/null; fi
  LC_ALL=C summarize
}
trap finish EXIT
trap 'exit 0' TERM

if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=timestamp,index,power.draw,memory.used --format=csv,noheader,nounits \
    --loop="$seconds" >&"$looks" </dev/null &
  looked=$!
  read -r
elif command -v rocm-smi >/dev/null; then
  while true; do
    printf '%s\n' "${EPOCHREALTIME/,/.}"
    rocm-smi --showpower --showmeminfo vram --csv </dev/null
    read -rt "$seconds"
    if (($? <= 128)); then break; fi
  done >&"$looks"
fi
