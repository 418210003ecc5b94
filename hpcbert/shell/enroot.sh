#!/bin/bash
# How enter.sh and image.sh use the enroot command; both source this and list what it must define.
#
#   settings    tool_settings, tool_usable
#   container   tool_has, tool_make, tool_retire
#   mounts      escaped, mount_lines, check_blanks
#   entering    configuration, defaults, hooks, skip_entrypoint; tool_prepare, tool_start, tool_join,
#               tool_brings
#   images      setting, tool_temp, tool_version, tool_whole, settle_times, tool_import, tool_build, tool_clean
#
# shellcheck disable=SC2034,SC2154 # variables of enter.sh and image.sh
# shellcheck disable=SC2317,SC2329 # both call what they need

readonly tool_names='ENROOT_*' tool_holds='' tool_end=.sqsh
readonly tool_programs=(unsquashfs enroot)

# --- Containers: for enter.sh -----------------------------------------------------------------
# Only the places of enroot and of its files may come from outside, not the way it makes containers.
tool_settings() {
  local variable
  for variable in "${!ENROOT_@}"; do
    [[ $variable == ENROOT_*_PATH ]] || unset "$variable"
  done
  if [[ -n $scratch ]]; then
    export ENROOT_DATA_PATH=$base/data ENROOT_CACHE_PATH=$base/cache
    export ENROOT_TEMP_PATH=$base/temp ENROOT_RUNTIME_PATH=$base/run
    mkdir -p -- "$ENROOT_TEMP_PATH" || fail "container.scratch, $scratch, can't be written"
  fi
  export ENROOT_LOGIN_SHELL=n # /etc/profile of a login shell replaces the image's PATH
  if [[ -n $home ]]; then export ENROOT_MOUNT_HOME=$home; fi
  if [[ -n $remap_root ]]; then export ENROOT_REMAP_ROOT=$remap_root; fi
  if [[ -n $writable ]]; then export ENROOT_ROOTFS_WRITABLE=$writable; fi
}

tool_usable() {
  local printed
  printed=$(enroot list 2>&1) || fail "enroot can't be used: ${printed##*$'\n'} (container.scratch in the site.toml names a place for its files)"
}

tool_has() { enroot list 2>/dev/null | grep -Fxq -- "$container"; }
tool_make() { quietly enroot create --name "$container" -- "$image"; }
tool_retire() { if add_enroot; then retire "$enroot_data/$container"; fi; }

escaped() { # text: as a field of fstab
  local text=${1//\\/\\134}
  printf '%s' "${text// /\\040}"
}

# One line of enroot's mount configuration for each mount, or the reason why not.
mount_lines() {
  local spec source target flags options own=x-create=dir,bind,rw,nosuid,noexec,nodev,private
  for spec in ${mounts[@]+"${mounts[@]}"}; do
    read_mount "$spec"
    case $source in
      tmpfs) options=x-create=dir ;;
      umount) options=x-detach ;;
      *) options=x-create=auto,rbind ;;
    esac
    printf '%s %s %s\n' "$(escaped "$source")" "$(escaped "$target")" "$options${flags:+,${flags//+/,}}"
  done
  # As enroot's own 50-slurm-pmi.sh does if a site enables it.
  if pmix_server; then
    printf '%s %s %s\n' "$(escaped "$PMIX_SERVER_TMPDIR")" "$(escaped "$PMIX_SERVER_TMPDIR")" "$own"
  fi
  # Ranks find their environment there.
  printf '%s %s %s\n' "$(escaped "$step")" "$(escaped "$step")" "$own"
}

# Report a mount that an older enroot put elsewhere: before 4.2 it may not read escaped blanks.
check_blanks() { # holder
  local spec target
  for spec in ${mounts[@]+"${mounts[@]}"}; do
    target=${spec#*:}
    target=${target%%:*}
    if [[ $target == *' '* && $spec != umount:* && ! -e /proc/$1/root/$target ]]; then
      fail "mount $spec: this enroot can't mount on a path with a blank"
    fi
  done
}

# What `enroot start --conf` sources. All of it is text in quotes: nothing expands there.
configuration() {
  local lines variable value
  lines=$(mount_lines) || exit
  printf 'mounts() {\n  printf "%%s\\n" %s\n}\n' "${lines@Q}"
  # Without a login shell, an image that does not set these has none of them.
  cat <<'CONF'
defaults() {
  echo PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  echo TERM=dumb
  awk -F: -v uid="$(id -u)" '$3 == uid { print "HOME=" $6 "\nSHELL=" $7 "\nUSER=" $1 "\nLOGNAME=" $1; exit }' "${ENROOT_ROOTFS}/etc/passwd"
}
hooks() {
  local line
  while IFS= read -r line; do
    if ! grep -q "^${line%%=*}=" "${ENROOT_ENVIRON}"; then printf '%s\n' "${line}" >>"${ENROOT_ENVIRON}"; fi
  done < <(defaults)
  if declare -F skip_entrypoint >/dev/null; then skip_entrypoint; fi
}
CONF
  if [[ $entrypoint == no ]]; then
    # /etc/rc, which enroot makes of an image's settings, sources /etc/rc.local before it would run
    # the entrypoint. A link there would lead out of the container.
    cat <<'CONF'
skip_entrypoint() {
  if [ -f "${ENROOT_ROOTFS}/etc/rc" ]; then
    rm -f "${ENROOT_ROOTFS}/etc/rc.local"
    printf '%s\n' 'exec "$@"' >"${ENROOT_ROOTFS}/etc/rc.local"
  fi
}
CONF
  fi
  printf 'environ() {\n  :\n'
  for variable in ${listed[@]+"${listed[@]}"}; do
    value=${!variable-}
    # The entrypoint sees these; enroot reads single lines only, but ranks get the whole value.
    if [[ -n $value && $value != *$'\n'* ]]; then
      value=$variable=$value
      printf '  printf "%%s\\n" %s\n' "${value@Q}"
    fi
  done
  printf '}\n'
}

tool_prepare() {
  (umask 077 && configuration >"$step/conf") || exit
}

# Each command of the chain replaces the one before: the process that stops is the shell inside.
tool_start() {
  # shellcheck disable=SC2016 # the words of the shell inside
  exec enroot start --conf "$step/conf" -- "$container" sh -c 'kill -STOP $$; exit 0'
}

tool_join() {
  if ((rank == 0)); then check_blanks "$holder"; fi
  joining=(enroot exec "$holder")
}

tool_brings() { false; }

# --- Images: for image.sh ---------------------------------------------------------------------
setting() { # of enroot: its own report if it gives one, else as it would find it
  local value
  value=$(enroot info 2>/dev/null | sed -n "s/^ *$1=//p") || true
  printf '%s' "${value:-$2}"
}

# enroot unpacks there and writes the image from there.
tool_temp() { setting ENROOT_TEMP_PATH "${ENROOT_TEMP_PATH:-${TMPDIR:-/tmp}}"; }
tool_version() { enroot version 2>/dev/null; }
tool_whole() { unsquashfs -s "$1" >/dev/null 2>&1; }

# Two imports of an image shall be the same file, but enroot writes some of its own, as /etc/rc, with the
# time of the import. With SOURCE_DATE_EPOCH it gives one time to all files: then Python finds that no
# .pyc file fits its source, and compiles at each start (import torch: 2.6 s, not 1.2). So mksquashfs gets
# the variable, which lowers later times only, without enroot: the time of the image's newest file.
settle_times() {
  local real
  real=$(command -v mksquashfs) || return 0
  mkdir -- "$scratch/bin"
  touch -d '1 second ago' -- "$scratch/began"
  cat >"$scratch/bin/mksquashfs" <<SCRIPT
#!/bin/bash
if [[ \$* == *-time* ]]; then exec ${real@Q} "\$@"; fi # somebody's own choice
newest=\$(find "\$1" ! -newer ${scratch@Q}/began -printf '%Ts\n' 2>/dev/null | sort -n | tail -n 1)
SOURCE_DATE_EPOCH=\${newest:-0} exec ${real@Q} "\$@"
SCRIPT
  chmod 700 -- "$scratch/bin/mksquashfs"
}

tool_import() {
  settle_times
  PATH=$scratch/bin:$PATH ENROOT_TEMP_PATH=$scratch run enroot import --output "$partial" -- "$uri" ||
    fail "enroot import $reference ended with status $?" "$?"
}

# As in a Dockerfile: no entrypoint, no GPU, the first command that fails ends it.
tool_build() {
  local mount options=()
  # shellcheck disable=SC2016 # for the container's shell
  printf 'cd /\nexport HOME="${HOME:-/root}"\nexec "$@"\n' >"$scratch"/rc
  for mount in ${mounts[@]+"${mounts[@]}"}; do options+=(--mount "$mount:x-create=dir,rbind,ro"); done
  export NVIDIA_VISIBLE_DEVICES=void ENROOT_LOGIN_SHELL=n
  run enroot create --name "$container" -- "$base" || fail "enroot create ended with status $?" "$?"
  run enroot start --rw --root --rc "$scratch"/rc ${options[@]+"${options[@]}"} -- "$container" \
    bash -euo pipefail -c "$commands" || fail "an install command ended with status $?" "$?"
  run enroot export --output "$partial" -- "$container" || fail "enroot export ended with status $?" "$?"
  run enroot remove -f -- "$container" || true
}

tool_clean() { # what builds that died left: the names of containers
  local name
  for name in $(enroot list 2>/dev/null); do
    if [[ $name == "$1"* ]]; then enroot remove -f -- "$name" >/dev/null 2>&1 || true; fi
  done
}
