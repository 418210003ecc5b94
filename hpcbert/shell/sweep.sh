#!/bin/bash
# Removes containers of jobs that are over, in two steps: a rename, then the deletion of what was renamed.
#
# The rename is atomic and needs no space, so nothing of a job that is killed meanwhile lies under a name
# that a container could have. Deleting takes a minute and more for a gigabyte on a busy disk: it has a
# time limit, and what it leaves is deleted by the next job of the same user on this node, of any runtime.
#
# Contents, and what each part reads and sets:
#   processes         look sets condition and moment; alive
#   places            add_enroot, add_places_below: fill `places`, the directories that hold containers
#   jobs              job_of reads node; lives asks Slurm
#   removal           remove_container renames; sweep renames what dead jobs left, and deletes; both read
#                     `places`, and container, which sweep leaves alone
#
# Sourced by enter.sh and pyxis.sh, which define `say` and `node`.
# HPCBERT_REMOVAL_LIMIT   the last second, from the start of the process, at which it deletes (45): a
#                         script gives its last step 60
# shellcheck disable=SC2034,SC2154 # shared with those
# shellcheck disable=SC2317,SC2329 # they call what they need

# With the node, because many may share a directory, and would all delete the same.
readonly removed=hpcbert-removed.$node
places=() silent=''

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

# --- Places ----------------------------------------------------------------------------------
add_place() { # directory
  local place
  for place in ${places[@]+"${places[@]}"}; do
    [[ ! $place -ef $1 ]] || return 0
  done
  if [[ -d $1 ]]; then places+=("$1"); fi
}

# Add the directories below hpcbert's own ones in a directory that everybody can write to.
add_places_below() { # directory
  local base
  for base in "$1/hpcbert-$EUID" "$1/hpcbert-$EUID".*; do
    if [[ -O $base && ! -L $base ]]; then
      add_place "$base/state"
      add_place "$base/data"
    fi
  done
}

# Add the directory in which enroot keeps containers, as $enroot_data; fail if enroot does not name it.
# Versions before 4 have no command for that, but each names it when it can't find what it shall remove.
add_enroot() {
  local name=hpcbert-absent.$$ answer
  enroot_data=''
  answer=$(enroot remove -f -- "$name" 2>&1 </dev/null) || true
  answer=${answer##*No such file or directory: }
  [[ $answer == /*"/$name" ]] || return 1
  enroot_data=${answer%"/$name"}
  add_place "$enroot_data"
}

# --- Jobs ------------------------------------------------------------------------------------
# Print the job of one of hpcbert's containers on this node: a number, or pPROCESS without Slurm. pyxis
# names its containers pyxis_NAME, or pyxis_JOB_NAME with container_scope=job.
job_of() { # name of a container
  if [[ $1 =~ ^pyxis_([0-9]+_)?hpcbert-([0-9]+)$ ]]; then
    printf '%s' "${BASH_REMATCH[2]}"
  elif [[ $1 == hpcbert-*-"$node" ]]; then
    set -- "${1%-"$node"}"
    printf '%s' "${1#hpcbert-}"
  fi
}

# Return whether a job still lives; also if that is unknown.
lives() { # job
  local answer
  case $1 in
    p*[!0-9]* | [!p0-9]* | '' | p) return 0 ;;
    p*) [[ -d /proc/${1#p} ]] && return 0 || return 1 ;;
    *[!0-9]*) return 0 ;;
  esac
  if [[ -n $silent ]]; then return 0; fi
  answer=$(timeout 10 squeue --noheader --states=all --format=%T --jobs="$1" 2>&1 </dev/null) || {
    if (($? == 124)); then silent=yes; fi # nor will it answer the next question
    [[ $answer != *'Invalid job id'* ]]
    return
  }
  # A job that is ending has no use for its container.
  [[ $answer =~ (^|$'\n')(PENDING|RUNNING|SUSPENDED|CONFIGURING|REQUEUE|RESIZING|SIGNALING|STOPPED) ]]
}

# --- Removal ---------------------------------------------------------------------------------
# Rename a directory, so that delete_removed deletes it. Of several processes that try, one succeeds.
retire() { # path
  local error
  if [[ ! -d $1 || -L $1 ]]; then return 0; fi
  error=$(mv -T -- "$1" "${1%/*}/$removed.${1##*/}.$$-$RANDOM" 2>&1) || [[ ! -e $1 ]] ||
    say "$1 can't be removed: $error"
}

# End what runs in a container, as enter.sh noted it, and retire its directories in all places.
remove_container() { # name
  local place file pid begin
  for place in ${places[@]+"${places[@]}"}; do
    for file in "$place/$1"/step-*/{ready,rank.*}; do
      [[ $file =~ /(ready|rank\.[0-9]+)$ && -f $file ]] || continue
      read -r pid begin <"$file" || continue
      if alive "$pid" "$begin"; then kill -KILL "$pid" 2>/dev/null || true; fi
    done
  done
  for place in ${places[@]+"${places[@]}"}; do retire "$place/$1"; done
}

# Delete a directory within some seconds; print the last error. Images may hold directories without
# permissions. `enroot remove` does the same.
delete() { # seconds, directory
  # shellcheck disable=SC2016 # the inner shell's words
  timeout --kill-after=5 "$1" bash -c '
    rm --one-file-system -rf -- "$1" 2>/dev/null && exit
    chmod -fR u+rwX -- "$1"
    rm --one-file-system -rf -- "$1" 2>&1 | tail -n 1' delete "$2" || true
}

# Delete what was renamed. Report what is left: there was no time for it, or the file system refused.
delete_removed() {
  local limit=${HPCBERT_REMOVAL_LIMIT:-45} begun=$SECONDS place path error='' left=()
  for place in ${places[@]+"${places[@]}"}; do
    for path in "$place/$removed".*; do
      [[ -d $path ]] || continue
      if ((SECONDS < limit)); then error=$(delete "$((limit - SECONDS))" "$path"); fi
      if [[ -d $path ]]; then left+=("$path"); fi
    done
  done
  if ((${#left[@]})); then
    say "removal was cut after $((SECONDS - begun)) s: your next job on this node goes on with ${left[*]}${error:+ ($error)}"
  fi
}

# Remove the remains of dead jobs on this node: killed by the machine, or too slow to end for Slurm.
sweep() {
  local place path job
  for place in ${places[@]+"${places[@]}"}; do
    for path in "$place"/{hpcbert-*,pyxis_*hpcbert-*}; do
      [[ -d $path && ${path##*/} != "${container-}" ]] || continue
      job=$(job_of "${path##*/}")
      if [[ -n $job ]] && ! lives "$job"; then remove_container "${path##*/}"; fi
    done
  done
  delete_removed
}
