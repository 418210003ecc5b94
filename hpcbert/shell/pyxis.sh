#!/bin/bash
# Removes the containers that pyxis keeps on this node for hpcbert's jobs: one task a node, outside them.
#
#   pyxis.sh remove NAME [SCRATCH]
#
# NAME is what the job gave to --container-name; SCRATCH is container.scratch, where this user's jobs of
# other runtimes may have left something. A named container outlives its job, unless plugstack.conf has
# container_scope=job. So this removes the job's own, and those of the user's dead jobs, in which no step
# can start any more. Reports what it leaves (sweep.sh), and ends with 0: no measurement depends on it.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
LC_ALL=C

node=${SLURMD_NODENAME:-$(uname -n)}
say() { printf 'hpcbert: %s: %s\n' "$node" "$*" >&2; }
if [[ ${1:-} != remove || ! ${2:-} =~ ^[A-Za-z0-9][A-Za-z0-9_.-]*$ ]]; then
  say 'use: pyxis.sh remove NAME [SCRATCH]'
  exit 64
fi
name=$2 scratch=${3:-/tmp}
# shellcheck source=/dev/null
. "$(dirname -- "${BASH_SOURCE[0]}")/sweep.sh"

add_enroot || say "enroot does not name the directory of its containers: $name stays"
add_places_below "$scratch"
# With container_scope=job, the name has the job's number in front.
for container in "pyxis_$name" "pyxis_${SLURM_JOB_ID:-0}_$name"; do remove_container "$container"; done
sweep
