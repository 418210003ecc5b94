#!/bin/bash
# How enter.sh and image.sh use Apptainer, or SingularityCE if that is installed; both source this and
# list what it must define. Tested with Apptainer 1.4.5.
#
#   settings    settle_variables, tool_settings, tool_usable
#   container   tool_has, tool_make, tool_retire
#   mounts      mountable, csv, mounted; working_directory
#   entering    tool_prepare, tool_start, tool_join, tool_brings
#   images      tool_temp, tool_version, tool_clean, tool_whole, tool_import, tool_build
#
# Apptainer gives each `exec` a user namespace of its own, unless it is installed setuid. So the ranks
# join the leader's namespaces, by nsenter: whoever made a user namespace may enter it. Under setuid
# there is none, ranks can read each other's memory anyway, and each has an `exec` of its own.
# shellcheck disable=SC2034,SC2154 # variables of enter.sh and image.sh
# shellcheck disable=SC2317,SC2329 # both call what they need

readonly tool_names='@(APPTAINER|SINGULARITY)*' tool_end=.sif
# Where a process of Apptainer's serves the image's files (FUSE), they are gone when the holder ends.
readonly tool_holds=yes
apptainer=$(command -v apptainer || command -v singularity || true)
readonly tool_programs=("${apptainer:-apptainer}")

# Users' variables for Apptainer (APPTAINER_BIND, APPTAINERENV_*, SINGULARITY_*) would change what
# ranks find: only those for its directories and its login may come from outside.
settle_variables() {
  local variable
  for variable in "${!APPTAINER@}" "${!SINGULARITY@}"; do
    [[ $variable =~ ^(APPTAINER|SINGULARITY)_(CACHEDIR|TMPDIR|CONFIGDIR|AUTHFILE|NOHTTPS|DOCKER_.*|LIBRARY)$ ]] || unset "$variable"
  done
  # The entrypoint gets its words unchanged, not through a shell.
  export APPTAINER_NO_EVAL=1 SINGULARITY_NO_EVAL=1
}
settle_variables

# --- Containers: for enter.sh -----------------------------------------------------------------
tool_settings() {
  # Not in a home directory, which all nodes share and some can't write: nothing in it is needed here.
  export APPTAINER_CONFIGDIR=$base/config SINGULARITY_CONFIGDIR=$base/config
  if [[ -n $scratch ]]; then
    export APPTAINER_CACHEDIR=$base/cache SINGULARITY_CACHEDIR=$base/cache
    export APPTAINER_TMPDIR=$base/temp SINGULARITY_TMPDIR=$base/temp
    mkdir -p -- "$base/temp" || fail "container.scratch, $scratch, can't be written"
  fi
}

tool_usable() {
  local printed
  [[ -n $apptainer ]] || fail 'there is neither apptainer nor singularity on PATH'
  printed=$("$apptainer" version 2>&1) || fail "$apptainer can't be used: ${printed##*$'\n'}"
}

tool_has() { [[ -e $state/root ]]; }
tool_retire() { # into the directory that goes with the job's container, if not before
  rm -f -- "$state/root"
  retire "$state/unpacked"
}

# Whether the image can be mounted here: by a setuid starter, or by users with FUSE. Otherwise
# Apptainer would unpack it again each time that it is entered.
mountable() {
  local place
  [[ ! -d $image ]] || return 0
  place=$("$apptainer" buildcfg LIBEXECDIR 2>/dev/null) || place=
  if [[ -u $place/apptainer/bin/starter-suid || -u $place/singularity/bin/starter-suid ]]; then return 0; fi
  [[ -r /dev/fuse && -w /dev/fuse ]] &&
    PATH=$PATH:$place/apptainer/bin:$place/singularity/bin command -v squashfuse_ll squashfuse >/dev/null
}

# An image records Docker's WORKDIR, but `exec` does not go there.
working_directory() {
  local id
  [[ -d $image ]] || "$apptainer" sif list "$image" 2>/dev/null | sed -n 's/^\([0-9]*\) .*JSON\.Generic.*/\1/p' |
    while read -r id; do
      "$apptainer" sif dump "$id" "$image" 2>/dev/null | sed -n 's/.*"WorkingDir":"\(\/[^"\\]*\)".*/\1/p'
    done | tail -n 1
}

tool_make() {
  mkdir -p -- "$state/home" || return # below a directory that is the user's alone
  working_directory >"$state/directory"
  [[ -s $state/directory ]] || echo / >"$state/directory"
  if mountable; then
    ln -sfn -- "$(readlink -e -- "$image")" "$state/root"
  else
    say "images can't be mounted here: $image is unpacked"
    quietly "$apptainer" build --sandbox "$state/unpacked" "$image" || return
    ln -sfn unpacked "$state/root"
  fi
}

# A mount is a line of comma-separated values: one with a comma or a quote stands in quotes.
csv() { # name=value
  local text=$1
  if [[ $text == *[\",]* ]]; then text=\"${text//\"/\"\"}\"; fi
  printf '%s' "$text"
}

mounted() { # source, target, further fields
  options+=(--mount "type=bind,$(csv "source=$1"),$(csv "destination=$2")${3:-}")
  # Apptainer makes mount points in the image's place, not in another mount's.
  local place=
  case $2 in
    "$HOME"/*) if [[ $home == n ]]; then place=$state/home/${2#"$HOME"/}; fi ;;
    /tmp/*) place=$step/tmp/${2#/tmp/} ;;
    /var/tmp/*) place=$step/tmp/${2#/var/tmp/} ;;
  esac
  if [[ -z $place || -e $place ]]; then return; fi
  if [[ -d $1 ]]; then mkdir -p -- "$place"; else mkdir -p -- "${place%/*}" && : >>"$place"; fi
}

tool_prepare() {
  local spec source target flags flag more directory=
  options=(--cleanenv --env LANG= --no-mount 'cwd,tmp' --pwd "$(<"$state/directory")")
  HOME=${HOME:-~}
  case $home in
    n) directory=$state/home ;;
    y) directory=$HOME ;;
  esac
  if [[ -n $directory ]]; then options+=(--home "$directory:$HOME"); fi
  if [[ $writable == y ]]; then options+=(--writable-tmpfs); fi
  if [[ $remap_root == y ]]; then options+=(--fakeroot); fi
  if [[ -n $gpus ]]; then
    if [[ -e /dev/kfd && ! -e /dev/nvidiactl ]]; then options+=(--rocm); else options+=(--nv); fi
  fi
  mkdir -p -- "$step/tmp"
  mounted "$step/tmp" /tmp
  mounted "$step/tmp" /var/tmp
  # Once more: it may lie below those.
  if [[ -n $directory ]]; then mounted "$directory" "$HOME"; fi
  for spec in ${mounts[@]+"${mounts[@]}"}; do
    read_mount "$spec"
    more=
    for flag in ${flags//+/ }; do
      case $flag in
        ro) more=,ro ;;
        rw | rbind | nosuid | nodev | nofail | x-create=*) ;; # how Apptainer mounts anyway
        *) fail "mount $spec: Apptainer has no flag $flag" ;;
      esac
    done
    [[ $source == /* && $target != ..* ]] || fail "mount $spec: Apptainer mounts directories and files, on a path in the container"
    if [[ -e $source ]]; then mounted "$source" "${target#.}" "$more"; fi
  done
  if pmix_server; then mounted "$PMIX_SERVER_TMPDIR" "$PMIX_SERVER_TMPDIR"; fi
  # Ranks find their environment there.
  mounted "$step" "$step"
}

tool_start() {
  local action=exec
  if [[ $entrypoint == yes ]]; then action='run'; fi
  # Apptainer stays the parent of what it starts. The words are those of the shell inside.
  # shellcheck disable=SC2016
  exec "$apptainer" --silent "$action" "${options[@]}" "$(readlink -f -- "$state/root")" \
    sh -c 'echo $$ >"$1"; kill -STOP $$; exit 0' sh "$step/holder"
}

tool_join() {
  joined_in=$(readlink -- "/proc/$holder/cwd")
  if [[ /proc/$holder/ns/user -ef /proc/self/ns/user ]]; then
    if ((rank != 0)); then tool_prepare; fi
    joining=("$apptainer" --silent exec "${options[@]}" "$(readlink -f -- "$state/root")" env -i)
  else
    joining=(env -i "PATH=$PATH" nsenter --target "$holder" --user --mount --preserve-credentials --)
  fi
}

# A joining process lacks the container's environment. LANG is empty if the image has none, and
# the prompts are Apptainer's own.
tool_brings() { # name, value
  case $1=$2 in
    PWD=* | OLDPWD=* | SHLVL=* | _=* | PS1=* | PROMPT_COMMAND=* | LANG=) return 1 ;;
  esac
}

# --- Images: for image.sh ---------------------------------------------------------------------
# Layers are unpacked in TMPDIR. They are kept only if a variable names a place: by default it would be
# the home directory, which is small on most clusters, and only the finished image is needed.
tool_temp() { printf '%s' "${APPTAINER_TMPDIR:-${SINGULARITY_TMPDIR:-${TMPDIR:-/tmp}}}"; }
tool_version() { "$apptainer" version 2>/dev/null; }
tool_clean() { :; } # what a build makes lies in its scratch directory

# The header of a SIF file (apptainer/sif, pkg/sif/sif.go: a launch line of 32 bytes, then the magic).
tool_whole() { [[ $(dd if="$1" bs=1 skip=32 count=9 status=none 2>/dev/null) == SIF_MAGIC ]]; }

tool_import() {
  local options=(--disable-cache)
  if [[ -n ${APPTAINER_CACHEDIR:-${SINGULARITY_CACHEDIR:-}} ]]; then options=(); fi
  export APPTAINER_TMPDIR=$scratch SINGULARITY_TMPDIR=$scratch
  run "$apptainer" pull ${options[@]+"${options[@]}"} "$partial" "$uri" ||
    fail "${apptainer##*/} pull $reference ended with status $?" "$?"
}

# As in a Dockerfile: no entrypoint, no GPU, the first command that fails ends it.
tool_build() {
  local mount tree=$scratch/tree options=(--fakeroot --writable --cleanenv --no-home --no-mount 'cwd,tmp' --pwd /)
  export APPTAINER_TMPDIR=$scratch SINGULARITY_TMPDIR=$scratch
  run "$apptainer" build --sandbox "$tree" "$base" || fail "unpacking ${base##*/} ended with status $?" "$?"
  for mount in ${mounts[@]+"${mounts[@]}"}; do
    mkdir -p -- "$tree/${mount##*:}"
    options+=(--mount "type=bind,$(csv "source=${mount%:*}"),$(csv "destination=${mount##*:}"),ro")
  done
  run "$apptainer" exec "${options[@]}" "$tree" bash -euo pipefail -c "$commands" ||
    fail "an install command ended with status $?" "$?"
  run "$apptainer" build "$partial" "$tree" || fail "packing the image ended with status $?" "$?"
}
