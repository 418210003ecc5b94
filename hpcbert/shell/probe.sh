#!/bin/bash
# Checks what containers need of this machine. Leaves nothing behind but the directories that enroot
# creates with every command.
#
#   probe.sh [--enroot|--apptainer] [--scratch DIRECTORY] [--images DIRECTORY] [--image FILE]... [--data DIRECTORY]...
#
#   --enroot             the enroot command itself runs here: for the enroot runtime and for `prepare`
#   --apptainer          the same for Apptainer, or for Singularity if that is installed
#   --scratch DIRECTORY  where they are to unpack images; left out: their own default
#   --images DIRECTORY   the directory of prepared images
#   --image FILE         an image that must be readable here
#   --data DIRECTORY     training data that must be readable here
#
# Prints a line for each finding: node, name, status (ok, warn, fail) and detail, between tabs.
# hpcbert/commands/findings.toml has what to change. Always exits with 0: an unknown fact is a finding too.
#
#   findings   tell, last_line
#   kernel     setting, check_user_namespaces, check_mounting, check_fuse, check_capabilities
#   user       check_user, check_tools
#   tools      check_enroot, check_apptainer, check_gpu_hook; check_leftovers of jobs that are over
#   files      check_room, check_image
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin # getcap and the squashfs tools lie there on some systems
export LC_ALL=C

node=${SLURMD_NODENAME:-$(uname -n)}
tool='' scratch='' images='' image_files=() data=()
while (($#)); do
  case $1 in
    --enroot | --apptainer) tool=${1#--} ;;
    --scratch) scratch=$2 && shift ;;
    --images) images=$2 && shift ;;
    --image) image_files+=("$2") && shift ;;
    --data) data+=("$2") && shift ;;
  esac
  shift
done

tell() { # name, status, detail: of any bytes, on one line
  local detail=${3//[[:cntrl:]]/ }
  printf '%s\t%s\t%s\t%s\n' "$node" "$1" "$2" "$detail"
}

last_line() { # of what a command printed
  local text=${1%"${1##*[![:space:]]}"}
  printf '%s' "${text##*$'\n'}"
}

setting() { # of the kernel: name=value, or nothing where there is none
  local path=/proc/sys/${1//.//}
  if [[ -r $path ]]; then printf ' %s=%s' "$1" "$(<"$path")"; fi
}

check_user_namespaces() {
  local output
  if output=$(unshare --user --map-root-user --mount true 2>&1); then
    tell user-namespaces ok 'users can make them'
  else
    tell user-namespaces fail "$(last_line "$output");$(setting user.max_user_namespaces)$(setting kernel.unprivileged_userns_clone)$(setting kernel.apparmor_restrict_unprivileged_userns)"
  fi
}

check_tools() {
  local tool missing=()
  for tool in unsquashfs mksquashfs; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  if ((${#missing[@]})); then
    tell squashfs-tools fail "not on PATH: ${missing[*]}"
  else
    tell squashfs-tools ok "$(last_line "$(unsquashfs -version 2>&1 | head -n 1)")"
  fi
}

check_user() {
  if getent passwd "$(id -u)" >/dev/null; then
    tell account ok "$(id -un)"
  else
    tell account fail "user $(id -u) has no entry in passwd on this node"
  fi
}

check_fuse() {
  if [[ ! -e /dev/fuse ]]; then
    tell fuse warn '/dev/fuse is missing: images can be unpacked, not mounted'
  elif [[ -r /dev/fuse && -w /dev/fuse ]]; then
    if command -v squashfuse >/dev/null; then
      tell fuse ok '/dev/fuse and squashfuse'
    else
      tell fuse warn 'squashfuse is missing: images can be unpacked, not mounted'
    fi
  else
    tell fuse warn "/dev/fuse has mode $(stat -c %a /dev/fuse): images can be unpacked, not mounted"
  fi
}

# File capabilities let users import images; without them only what others imported can be used.
check_capabilities() {
  local helper found missing=()
  if ! command -v getcap >/dev/null; then
    tell capabilities warn 'no getcap here to look with'
    return
  fi
  for helper in enroot-aufs2ovlfs enroot-mksquashovlfs; do
    found=$(command -v "$helper") || continue
    [[ $(getcap "$found" 2>/dev/null) == *cap_sys_admin* ]] || missing+=("$helper")
  done
  if ((${#missing[@]})) && ((EUID != 0)); then
    tell capabilities warn "${missing[*]}: no file capabilities, so that users can't import images here"
  else
    tell capabilities ok 'users can import images'
  fi
}

check_enroot() {
  local output base
  if ! command -v enroot >/dev/null; then
    tell enroot fail 'no such program on PATH'
    return
  fi
  if output=$(enroot version 2>&1); then
    tell enroot ok "$(last_line "$output")"
  else
    tell enroot fail "$(last_line "$output")"
  fi
  if [[ -n $scratch ]]; then
    base=$scratch/hpcbert-$EUID
    # A directory of another user does not hinder a job, which makes up another name, nor this check.
    if [[ -L $base || (-e $base && ! -O $base) ]]; then base=$(mktemp -d -- "$base.XXXXXXXXXX") || true; fi
    export ENROOT_DATA_PATH=$base/data ENROOT_CACHE_PATH=$base/cache
    export ENROOT_TEMP_PATH=$base/temp ENROOT_RUNTIME_PATH=$base/run
    check_room scratch "$scratch"
  else
    check_room temp "${ENROOT_TEMP_PATH:-${TMPDIR:-/tmp}}"
  fi
  # Whatever the command, enroot makes its directories first and fails where it can't.
  if output=$(enroot list 2>&1 </dev/null); then
    tell directories ok "RUNTIME, CACHE and DATA can be written"
    check_leftovers "$output"
  else
    tell directories fail "$(last_line "$output")"
  fi
  check_capabilities
}

check_leftovers() { # names of containers
  local name found=() id answer
  while IFS= read -r name; do
    if [[ $name =~ ^(hpcbert-|pyxis_|pyxis_hpcbert-)([0-9]+) ]]; then
      id=${BASH_REMATCH[2]}
      answer=$(squeue --noheader --format=%i --jobs="$id" 2>&1) && [[ $answer =~ (^|$'\n')$id(_|\+|$'\n'|$) ]] && continue
    elif [[ $name != hpcbert-removed.* ]]; then
      continue
    fi
    found+=("$name")
  done <<<"$1"
  if ((${#found[@]})); then tell leftovers warn "containers of jobs that are over: ${found[*]}"; fi
}

# Report whether a directory can be written, its file system and its free space.
check_room() { # name, directory
  local place=$2 kind room
  while [[ ! -e $place && $place == */* && $place != / ]]; do
    place=${place%/*}
    place=${place:-/}
  done
  if [[ ! -d $place || ! -w $place || ! -x $place ]]; then
    tell "$1" fail "$2 can't be written"
    return
  fi
  kind=$(stat -f -c %T -- "$place" 2>/dev/null) || kind=unknown
  room=$(df -Pk -- "$place" 2>/dev/null | awk 'END { print $4 }')
  room=$((${room:-0} / 1048576))
  case $1:$kind in
    scratch:nfs* | scratch:lustre | scratch:gpfs | temp:nfs* | temp:lustre | temp:gpfs | temp:overlay*)
      tell "$1" fail "$2 lies on $kind, which can't hold an image's layers; $room GiB free"
      ;;
    *)
      if ((room < 20)); then
        tell "$1" warn "$2: $room GiB free on $kind"
      else
        tell "$1" ok "$2: $room GiB free on $kind"
      fi
      ;;
  esac
}

check_image() { # file
  local output
  if [[ ! -r $1 ]]; then
    tell image fail "$1 can't be read on this node"
  elif [[ $tool == apptainer ]]; then
    if [[ -d $1 ]]; then
      tell image ok "$1, a directory"
    elif [[ $(dd if="$1" bs=1 skip=32 count=9 status=none) == SIF_MAGIC ]]; then
      tell image ok "$1, SIF"
    else
      tell image fail "$1 is not a SIF image"
    fi
  elif ! command -v unsquashfs >/dev/null; then
    if [[ $(head -c 4 -- "$1") == hsqs ]]; then tell image ok "$1"; else tell image fail "$1 is not a squashfs file"; fi
  elif output=$(unsquashfs -s "$1" 2>&1); then
    tell image ok "$1, $(awk '/^Compression/ { print $2; exit }' <<<"$output")"
  else
    tell image fail "$1: $(last_line "$output")"
  fi
}

check_gpu_hook() {
  if [[ -e /dev/nvidiactl ]] && ! command -v nvidia-container-cli >/dev/null; then
    tell nvidia-container-cli warn 'there is a driver, and no nvidia-container-cli to bring it into containers'
  fi
}

check_apptainer() {
  local program output place temp=${APPTAINER_TMPDIR:-${SINGULARITY_TMPDIR:-${TMPDIR:-/tmp}}}
  program=$(command -v apptainer || command -v singularity) || {
    tell apptainer fail 'neither apptainer nor singularity is on PATH'
    return
  }
  if ! output=$("$program" version 2>&1); then
    tell apptainer fail "$(last_line "$output")"
    return
  fi
  output="${program##*/} $(last_line "$output")"
  if [[ -n $scratch ]]; then check_room scratch "$scratch"; else check_room temp "$temp"; fi
  place=$("$program" buildcfg LIBEXECDIR 2>/dev/null) || place=''
  if [[ -u $place/apptainer/bin/starter-suid || -u $place/singularity/bin/starter-suid ]]; then
    tell apptainer ok "$output, setuid: the kernel mounts images"
    return
  fi
  tell apptainer ok "$output, without setuid: in user namespaces"
  PATH=$PATH:$place/apptainer/bin:$place/singularity/bin check_mounting
}

check_mounting() {
  if ! command -v squashfuse squashfuse_ll >/dev/null; then
    tell mounting warn 'squashfuse is missing: each job unpacks its image on each node'
  elif [[ ! -r /dev/fuse || ! -w /dev/fuse ]]; then
    tell mounting warn '/dev/fuse is missing or closed to users: each job unpacks its image on each node'
  else
    tell mounting ok '/dev/fuse and squashfuse'
  fi
}

check_user_namespaces
check_user
case $tool in
  enroot)
    check_tools
    check_enroot
    check_fuse
    check_gpu_hook
    ;;
  apptainer) check_apptainer ;;
esac
if [[ -n $images ]]; then check_room images "$images"; fi
for file in ${image_files[@]+"${image_files[@]}"}; do check_image "$file"; done
for folder in ${data[@]+"${data[@]}"}; do
  if [[ -r $folder && -x $folder ]]; then tell data ok "$folder"; else tell data fail "$folder can't be read on this node"; fi
done
exit 0
