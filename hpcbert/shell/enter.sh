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
# Contents: arguments, directories, the container's files, verbs. join.sh has what `enter` does, sweep.sh
# what `remove` and the next job do. Set here for them and for the tool's file: node, the options'
# values, container (name and node), base (the user's directory), states, state (the container's
# directory in it) and step (the step's in that).
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
#   tool_has           whether this node has the files of $container
#   tool_make          make them, from $image; tool_retire: rename those of an earlier attempt
#   tool_prepare       what can fail before the start
#   tool_start         be replaced by a shell in the container that stops itself; one that has another
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
# Squashfs tools and getent lie there on some nodes.
PATH=$PATH:/usr/sbin:/sbin

unset LD_LIBRARY_PATH LD_PRELOAD BASH_ENV CDPATH # meant for the ranks, not for the tool
LC_ALL=C                                         # bytes, not characters

node=${SLURMD_NODENAME:-$(uname -n)}
readonly no_container=125

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
if [[ $verb == enter ]] && ((! $#)); then fail "enter needs a command"; fi

beside=$(dirname -- "${BASH_SOURCE[0]}")
[[ $tool =~ ^[a-z]+$ && -r $beside/$tool.sh ]] || fail "there is no $tool.sh next to enter.sh"
# shellcheck source=/dev/null # enroot.sh or apptainer.sh
. "$beside/$tool.sh"
# shellcheck source=/dev/null
. "$beside/sweep.sh"
# shellcheck source=/dev/null
. "$beside/join.sh"

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
    if [[ -f $state/image ]] && tool_has; then return 0; fi
    fail "there is no container $container, and no image to make it from"
  fi
  # Path, size and time: a file that was replaced under the same name is another image.
  identity=$(readlink -e -- "$image" && stat -Lc '%s %Y' -- "$image") || fail "the image $image is not on this node"
  [[ -r $image ]] || fail "the image $image can't be read on this node"
  if [[ -f $state/image ]] && tool_has; then
    [[ $(<"$state/image") == "$identity" ]] ||
      fail "the container $container was made from another image: $(head -n 1 "$state/image")"
    return 0
  fi
  rm -f -- "$state/image"
  tool_retire
  tool_make || fail "the container can't be made from $image"
  printf '%s' "$identity" >"$state/image"
}

make_locked() {
  (
    flock 9
    make
  ) 9>"$state/lock"
}

# --- Verbs -----------------------------------------------------------------------------------
# What jobs of other runtimes left may lie where enroot is configured to keep containers, the rest where
# this job keeps its own.
settle_places() {
  add_places_below "${scratch:-/tmp}"
  [[ $tool != enroot ]] || add_enroot || say "enroot does not name the directory of its containers: $container stays"
}

case $verb in create | remove) add_enroot 2>/dev/null || true ;; esac
settle_settings
case $verb in
  place) printf '%s\n' "$base" ;;
  create)
    settle_state
    settle_places
    sweep # first, because it may need the space
    make_locked || exit
    ;;
  enter)
    settle_state
    enter "$@"
    ;;
  remove)
    settle_places
    remove_container "$container"
    sweep
    ;;
esac
