# Containers by pyxis, with every flag explicit, whatever the site's defaults. A script sources this
# after `begin_job`, sets `mounts` and `enter`, and calls `create_container IMAGE`.
#
#   check_mounts       refuse what pyxis can't mount
#   create_container   make it on every node
#   prove_container, keep_defaults: what that step runs inside
#   leave              remove it when the job ends
#
# Sets marker, a path that exists only inside the container. The script may set `scratch`,
# container.scratch, where jobs of other runtimes may have left something.
# shellcheck shell=bash disable=SC2034,SC2154,SC2317,SC2329

# Variables for enroot in the caller's environment would override the flags on the nodes.
for variable in "${!ENROOT_@}"; do unset "$variable"; done
marker=/.hpcbert-$SLURM_JOB_ID
# By default PMIx 5 keeps a node's data in shared memory, in files outside the container.
export PMIX_MCA_gds=hash
hand_over PMIX_MCA_gds

check_mounts() { # reads mounts
  local mount
  for mount in "${mounts[@]}"; do
    if [[ $mount == *[,\"\$\`\\]* || $mount == *:*:*:* ]]; then
      echo "hpcbert: pyxis can't mount $mount: it has a comma, a colon, or a character that a shell would expand" >&2
      exit 125
    fi
  done
}

# The first step creates the container on every node; no measurement includes its time. A node without
# the plugin would silently run it, and all that follows, on the bare host (NVIDIA/pyxis#29).
#
# The later steps enter without a login shell: /etc/profile of most images replaces the PATH that the
# image sets, and a mounted home's .profile anything. But then enroot sets no defaults (enroot-switchroot.c,
# sys_login), and pyxis leaves the host's PATH and HOME where the image has none. So the first step is a
# login shell, and keeps what it gives there in the file that enroot reads the image's variables from.
create_container() { # image; reads step, enter, marker, status
  check_mounts
  # A job that was requeued in the middle of the first step has left half a container, which pyxis
  # would enter.
  if ((${SLURM_RESTART_COUNT:-0})); then leave || true; fi
  local flag=--container
  ENROOT_LOGIN_SHELL=y "${step[@]}" --kill-on-bad-exit=0 --container-image="$1" \
    "${enter[@]/#$flag-readonly/$flag-writable}" \
    bash -c "$(declare -f keep_defaults prove_container); prove_container \"\$@\"" prove_container "$marker/${status##*/}" </dev/null || {
    echo "hpcbert: the container was not entered on every node (srun ended with $?)" >&2
    exit 125
  }
  export ENROOT_LOGIN_SHELL=n
  mark container
}

prove_container() { # marker; in the container
  if [[ ! -e $1 ]]; then
    echo "hpcbert: ${SLURMD_NODENAME:-$(uname -n)}: not in the container: this node has no pyxis in its plugstack.conf" >&2
    exit 125
  fi
  keep_defaults /etc/environment
}

keep_defaults() { # file of the image's variables; adds those that it lacks
  local name image=''
  if [[ -e $1 ]]; then image=$(<"$1"); fi
  for name in PATH HOME SHELL USER LOGNAME; do
    if [[ -n ${!name-} && ! $'\n'$image =~ $'\n'[[:space:]]*$name= ]]; then
      printf '\n%s=%s\n' "$name" "${!name}" >>"$1" || return
    fi
  done
}

# A named container outlives its job, unless plugstack.conf has container_scope=job. pyxis.sh removes
# the job's own, and those of the user's dead jobs.
leave() { # reads step, scratch
  timeout --kill-after=10 60 "${step[@]}" bash -p "$library/pyxis.sh" remove "hpcbert-$SLURM_JOB_ID" ${scratch:+"$scratch"} </dev/null || report_cut "$?"
}
