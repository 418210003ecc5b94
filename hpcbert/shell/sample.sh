# shellcheck shell=bash
# Records the power and the memory use of this node's GPUs until it is ended: FOLDER LABEL SECONDS.
# One process outside the ranks, which sleeps between two looks; without a vendor's tool, none.
set -u
folder=$1 label=$2 seconds=$3
node=${SLURMD_NODENAME:-}
if [[ -z $node ]]; then IFS= read -r node </proc/sys/kernel/hostname || node=node; fi
file=$folder/$label.${node//[^A-Za-z0-9._-]/_}.csv

if command -v nvidia-smi >/dev/null; then
  exec nvidia-smi --query-gpu=timestamp,index,power.draw,memory.used --format=csv,noheader,nounits \
    --loop="$seconds" >"$file"
elif command -v rocm-smi >/dev/null; then
  exec {pause}<> <(:) # nothing ever comes: waiting needs no process
  while true; do
    printf '%s\n' "${EPOCHREALTIME/,/.}"
    rocm-smi --showpower --showmeminfo vram --csv
    read -rt "$seconds" -u "$pause" || true
  done >"$file"
fi
