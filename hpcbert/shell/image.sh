#!/bin/bash
# Puts one container image into a directory that many hosts share: once, however often it is called.
#
#   image.sh [--with TOOL] import URI DIRECTORY STEM
#   image.sh [--with TOOL] build REFERENCE DIRECTORY STEM BASE [MOUNT...] <commands
#
# TOOL is enroot (if left out) or apptainer: the file TOOL.sh next to this one has its actions.
# import fetches URI; build runs the commands on stdin,
# as root in a writable container made from the image file BASE, and keeps that; a MOUNT is SRC:DST.
# Both print the path of the finished file, <STEM>+<12 digits of its SHA-256>, which ends in .sqsh
# (enroot) or .sif (apptainer); everything else goes to stderr. The file's pointer, <STEM>.json, is in
# the same directory and is renamed into place last: it always names a whole image, and an unfinished
# file never has either name.
#
# HPCBERT_PROVENANCE   one line of JSON for the pointer
# HPCBERT_STALE_AFTER  seconds without a sign of life after which an importer counts as dead (60)
#
#   arguments      say, usage, without_user
#   what is there  field, hit
#   the lock       born, here, glimpse, dead, end_session, end_orphans, take_over, pass_on_failure,
#                  acquire, beat, release
#   ends           remove_tree, clean_up, fail
#   work           redact, follow, run, sweep, import, build, publish
#
# Exits with 0, 1 if it can't get the image, 64 for wrong arguments, 143 when terminated.
# shellcheck disable=SC2034,SC2154 # shared with the tool's file
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

say() { printf 'hpcbert: %s\n' "$*" >&2; }
usage() {
  say "$1"
  exit 64
}

# --- Arguments ------------------------------------------------------------------------------
tool=enroot
if [[ ${1:-} == --with ]]; then
  tool=${2:-}
  shift "$(($# < 2 ? $# : 2))"
fi
beside=$(dirname -- "${BASH_SOURCE[0]}")
[[ $tool =~ ^[a-z]+$ && -r $beside/$tool.sh ]] || usage "there is no $tool.sh next to image.sh"
# shellcheck source=/dev/null # enroot.sh or apptainer.sh
. "$beside/$tool.sh"
(($# >= 4)) || usage 'use: image.sh import URI DIRECTORY STEM'
verb=$1 uri=$2 directory=$3 stem=$4
shift 4
[[ $verb == import || $verb == build ]] || usage "$verb: neither import nor build"
[[ $stem =~ ^[A-Za-z0-9_][A-Za-z0-9._+@-]*$ ]] || usage "$stem: not a name for an image file"
[[ $uri =~ ^[a-z]+:[]A-Za-z0-9._~:/?#[@\!\$\&\'\(\)*+,\;=%-]+$ ]] || usage 'not an image reference'

# A user may stand before the registry. A password may not: enroot reads it from its own file.
without_user() {
  local rest=${uri#*://} head
  head=${rest%%[#/]*}
  if [[ $uri == *://* && $head == *@* && ${head#*@} != sha256:* ]]; then
    [[ $head != *:*@* ]] || usage "an image reference can't contain a password; enroot reads it from its .credentials"
    rest=${head##*@}${rest#"$head"}
    printf '%s://%s' "${uri%%://*}" "$rest"
  else
    printf '%s' "$uri"
  fi
}
reference=$(without_user) || exit
base='' mounts=()
if [[ $verb == build ]]; then
  base=${1:?image.sh build wants the image to build on}
  shift
  mounts=("$@")
  commands=$(cat)
fi

stale=${HPCBERT_STALE_AFTER:-60}
[[ $stale =~ ^[1-9][0-9]*$ ]] || usage "HPCBERT_STALE_AFTER=$stale: no number of seconds"
host=$(uname -n)
token=$host-$$-$RANDOM$RANDOM
pointer=$directory/$stem.json
lock=$directory/.$stem~lock
failure=$directory/.$stem~failed
partial=$directory/.$stem~$token.partial
draft=$directory/.$stem~$token.json
aside=$directory/.$stem~$token.done # our lock, before it has its name and after
container=hpcbert-build.$stem.$token
space=$(readlink /proc/self/ns/pid) # in which process ids can be compared
own=hpcbert-import.$EUID.$host.${space//[^0-9]/}
held='' child='' heart='' scratch=''

# --- What is there already ------------------------------------------------------------------
field() { # of the pointer, which has one key a line
  sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$pointer" 2>/dev/null
}

# Print the path of the image that the pointer names, if it is whole.
hit() {
  local name
  [[ -s $pointer ]] || return 1
  name=$(field file)
  [[ -n $name && $name != */* && $(stat -Lc %s -- "$directory/$name" 2>/dev/null) == "$(field bytes)" ]] &&
    tool_whole "$directory/$name" &&
    printf '%s\n' "$directory/$name"
}

# --- The lock: a directory, its holder, and a heart that beats ----------------------------------
# flock means nothing between hosts on many shared file systems; a rename is atomic on all of them.
born() { # process id: the moment it was started, in ticks of the machine; nothing if it is gone
  local line words shift=0
  line=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  read -ra words <<<"${line##*) }"
  # A time namespace shifts it (time_namespaces(7)): 100 ticks a second, on every kernel.
  shift=$(awk '$1 == "boottime" { print $2 * 100 + int($3 / 10000000) }' /proc/self/timens_offsets 2>/dev/null) || true
  printf '%s' $((words[19] - ${shift:-0}))
}
here() { # kernel, process id space and user
  printf '%s/%s/%s' "$(cat /proc/sys/kernel/random/boot_id)" "$space" "$EUID"
}

# Who holds the lock and when its heart last beat. Opening the file makes an NFS client ask the
# server instead of its cache; no clock of another host is compared with ours.
glimpse() { # lock
  cat "$1"/holder 2>/dev/null || echo unknown
  stat -c %y "$1"/holder 2>/dev/null || stat -c %y "$1" 2>/dev/null || true
}
dead() { # glimpse: whether its process ran on this kernel and is gone
  local place pid start
  read -r _ _ place pid start <<<"$1" || return 1
  [[ -n $start && $place == "$(here)" && $(born "$pid") != "$start" ]]
}

# Kill all processes of a session. A group is not enough: GNU parallel gives each job its own.
end_session() { # id, the moment its leader was born
  local file line words
  # A leader that was born at another time is somebody else's; while a session has members, no new
  # process gets its number.
  [[ ! -d /proc/$1 || $(born "$1") == "$2" ]] || return 0
  for file in /proc/[0-9]*/stat; do
    { read -r line <"$file"; } 2>/dev/null || continue
    read -ra words <<<"${line##*) }"
    if [[ ${words[3]} == "$1" ]]; then kill -KILL "${file//[!0-9]/}" 2>/dev/null || true; fi
  done
}

# Kill what a dead importer's tool has started, which outlives both.
end_orphans() { # lock, token of its holder
  local session start whose
  { read -r session start <"$1"/session && read -r whose _ <"$1"/holder; } 2>/dev/null || return 0
  if [[ $whose == "$2" ]]; then end_session "$session" "$start"; fi
}

take_over() { # glimpse of a holder that is dead
  local grave=$directory/.$stem~$token.dead
  mv -T -- "$lock" "$grave" 2>/dev/null || return 0 # another was faster
  if [[ $(glimpse "$grave") != "$1" ]]; then
    # The lock changed hands in between; its new owner may have removed this.
    mv -nT -- "$grave" "$lock" 2>/dev/null || true
    return 0
  fi
  say "the importer before died (${1%%$'\n'*}): starting again"
  if dead "$1"; then end_orphans "$grave" "${1%% *}"; fi
  rm -rf -- "$grave"
}

# Passes on the failure of an importer that this one waited for: trying the same again would not help.
pass_on_failure() { # token of the holder
  local whose status
  [[ -s $failure ]] || return 0
  { read -r whose && read -r status; } <"$failure" || return 0
  [[ $whose == "$1" ]] || return 0
  say "the importer that this one waited for failed:"
  tail -n +3 -- "$failure" >&2
  exit "$status"
}

# The lock appears with its holder: take_over may look at it, and put it back, at any moment. A
# directory that is not empty is never replaced by a rename.
take() {
  if [[ -e $lock ]]; then return 1; fi
  mkdir -- "$aside" || return
  printf '%s %s %s %s %s\n' "$token" "$host" "$(here)" $$ "$(born $$)" >"$aside"/holder &&
    mv -T -- "$aside" "$lock" && return
  rm -rf -- "$aside"
  return 1
}

acquire() {
  local seen='' silence=0 looked=$SECONDS told=-60 refused=0 now holder trouble
  until trouble=$(take 2>&1); do
    if hit; then exit 0; fi
    now=$(glimpse "$lock")
    if [[ ! -d $lock ]]; then # released a moment ago, or it can't be made at all
      if [[ -n $seen ]]; then pass_on_failure "${seen%% *}"; fi
      ((++refused < 20)) || fail "$directory can't be locked: $trouble"
      sleep 0.1
      continue
    fi
    refused=0
    read -r _ holder _ <<<"$now" || true
    # A look counts for a second at most: a process that stood still between two saw no heart stop.
    silence=$((silence + (SECONDS > looked))) looked=$SECONDS
    if [[ $now != "$seen" ]]; then seen=$now silence=0; fi
    if dead "$now" || ((silence >= stale)); then
      take_over "$now"
      continue
    fi
    if ((SECONDS - told >= 60)); then
      say "waiting for $stem, which ${holder:-another host} is importing"
      told=$SECONDS
    fi
    sleep "0.$((RANDOM % 5 + 3))"
  done
  held=yes
  if [[ -n $seen ]]; then pass_on_failure "${seen%% *}"; fi
}

# The heart stops with its owner, however that ends: an orphan has another parent.
beat() {
  local parent=$$ line words silence
  exec {silence}<> <(:) # reading it waits, without a process of its own
  while true; do
    read -r line <"/proc/$BASHPID/stat" || return 0
    read -ra words <<<"${line##*) }"
    if [[ ${words[1]} != "$parent" ]]; then
      end_orphans "$lock" "$token"
      return 0
    fi
    touch -c -- "$lock"/holder || true
    read -rt "$((stale > 12 ? stale / 6 : 1))" -u "$silence" || true
  done
}

release() {
  local whose=''
  read -r whose _ 2>/dev/null <"$lock"/holder || true
  held=''
  [[ -z $whose || $whose == "$token" ]] || return 0 # taken over while we slept
  mv -T -- "$lock" "$aside" 2>/dev/null || return 0
  rm -rf -- "$aside"
}

# --- Ends -----------------------------------------------------------------------------------
remove_tree() { # layers may hold directories that their owner can't enter
  chmod -fR u+rwX -- "$1" 2>/dev/null || true
  rm -rf -- "$1" 2>/dev/null || true
}

# shellcheck disable=SC2317,SC2329 # called by the trap
clean_up() {
  trap '' TERM INT HUP
  if [[ -n $child ]]; then
    # Its session may not have begun yet.
    kill -TERM -- "-$child" 2>/dev/null || kill -TERM "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true # the tool removes what it made
    end_session "$child" ''
  fi
  if [[ $verb == build && -n $held ]]; then tool_clean "$container"; fi
  if [[ -n $scratch ]]; then remove_tree "$scratch"; fi
  rm -rf -- "$partial" "$draft" "$aside"
  if [[ -n $heart ]]; then kill "$heart" 2>/dev/null || true; fi
  if [[ -n $held ]]; then release; fi
}
trap clean_up EXIT
trap 'exit 143' TERM INT HUP

# A tool that was killed says nothing about the image: those that wait try it themselves.
fail() { # sentence: why there is no image, for this process and for those that wait; the tool's status
  say "$1"
  if [[ -n $held && ${2:-1} != 137 && ${2:-1} != 143 ]] && {
    printf '%s\n1\n%s\n' "$token" "hpcbert: $1"
    if [[ -s $scratch/log ]]; then tail -n 20 -- "$scratch"/log; fi
  } >"$draft"; then
    mv -T -- "$draft" "$failure"
  fi
  exit 1
}

# --- Work -----------------------------------------------------------------------------------
# No credential that a program may print leaves this script; nor does mksquashfs's summary.
redact() {
  sed -uE -e '/^Exportable Squashfs /,$d' \
    -e 's#(://)[^/@[:space:]]*:[^/@[:space:]]*@#\1***@#g' \
    -e 's#([Aa]uthorization: *[A-Za-z]+) +[^[:space:]"]+#\1 ***#g' \
    -e 's#([?&](token|access_token|password|sig|signature)=)[^&[:space:]"]+#\1***#gI'
}

# Run a program in a session of its own: a signal is seen at once and reaches all it starts, and nothing
# of it survives it. If enroot alone is killed, its mksquashfs would go on for minutes.
follow() {
  local code=0 start
  setsid "$@" <&0 &
  child=$!
  start=$(born "$child")
  printf '%s %s\n' "$child" "$start" >"$lock"/session || true
  wait "$child" || code=$?
  end_session "$child" "$start"
  child=''
  return "$code"
}

run() { # a program of the tool's
  local code=0 reader log
  exec {log}> >(redact | tee -a -- "$scratch"/log >&2)
  reader=$!
  follow "$@" >&"$log" 2>&1 </dev/null || code=$?
  exec {log}>&-
  wait "$reader" || true
  return "$code"
}

sweep() { # what dead importers of this image left here, and on this host
  local path pid
  for path in "$directory/.$stem~"*.{partial,json,dead,done} "$failure"; do
    if [[ -e $path && $path != "$partial" ]]; then rm -rf -- "$path"; fi
  done
  for path in "$1/$own".*; do
    pid=${path##*"$own".}
    pid=${pid%%.*}
    if [[ -d $path && $pid =~ ^[0-9]+$ && ! -d /proc/$pid ]]; then remove_tree "$path"; fi
  done
  if [[ $verb == build ]]; then tool_clean "hpcbert-build.$stem."; fi
}

import() {
  say "importing $reference"
  tool_import
}

build() {
  say "building $stem on ${base##*/}"
  tool_build
}

publish() {
  local sum name size
  say "checking and naming the image"
  tool_whole "$partial" || fail "$tool did not write a valid image"
  follow sync -- "$partial" || true
  follow sha256sum -- "$partial" >"$scratch"/sum
  read -r sum _ <"$scratch"/sum
  sum=${sum#\\} # a name with a backslash is escaped, and said to be
  name=$stem+${sum:0:12}$tool_end
  size=$(stat -c %s -- "$partial")
  if hit >/dev/null; then return; fi # we were thought dead, and another was faster
  mv -T -- "$partial" "$directory/$name"
  cat >"$draft" <<JSON
{
 "schema": 1,
 "reference": "$reference",
 "file": "$name",
 "sha256": "$sum",
 "bytes": $size,
 "created": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
 "$tool": "$(tool_version || true)",
 "provenance": ${HPCBERT_PROVENANCE:-null}
}
JSON
  sync -- "$draft" 2>/dev/null || true
  mv -T -- "$draft" "$pointer"
  say "$name: $(numfmt --to=iec-i --suffix=B --round=nearest --format=%.1f -- "$size")"
}

if hit; then exit 0; fi
mkdir -p -- "$directory"
for program in "${tool_programs[@]}" sha256sum; do
  command -v "$program" >/dev/null || fail "there is no $program on $host"
done
acquire
beat </dev/null >/dev/null 2>&1 &
heart=$!
if hit; then exit 0; fi
temp=$(tool_temp)
sweep "$temp"
scratch=$temp/$own.$$.$RANDOM
mkdir -m 700 -- "$scratch" || fail "$tool's TEMP, $temp, can't be written"
"$verb"
publish
hit
