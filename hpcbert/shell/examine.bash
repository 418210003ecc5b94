# What an examination does before its ranks start. Its script sources this after job.bash.
#
#   examine_nodes   check each node before anything depends on it, then how soon it sees files of others
#
# The script sets `looked`, arguments of look.sh, and `probed`, those of probe.sh or none.
# shellcheck shell=bash disable=SC2154,SC2317,SC2329

unset -v probed # an exported one of the caller
probed=()

examine_nodes() { # reads step, node_names
  local text='' lines names
  IFS= read -r -d '' text <"$library/look.sh" || true
  lines=$("${step[@]}" bash -c "$text" look node "$campaign" "${looked[@]}" -- "${node_names[@]}" </dev/null) || true
  printf '%s\n' "$lines"
  mapfile -t names < <(sed -n $'s/\truns\tok\t.*//p' <<<"$lines")
  "${step[@]}" bash -c "$text" look late "$campaign" "${names[@]}" </dev/null || true
  if ((${#probed[@]})); then "${step[@]}" bash "$library/probe.sh" "${probed[@]}" </dev/null || true; fi
}
