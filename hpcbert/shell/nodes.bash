# What the nodes of a job are, and what their GPUs draw; job.bash sources this.
#
#   gather                 joins what nodes print
#   describe               asks each node what it is, before the measured step
#   sample, end_sampling   samples of the GPUs during the measured step
#   add_samples            the samples of all nodes together
#
# Reads the script's settings and those of its scheduler; sets sampler, samples.
# shellcheck shell=bash disable=SC2154,SC2317,SC2329

# Joins what nodes print (print_lines of describe.sh) into one file: each object once, with the names of
# the nodes that sent it. An object that lacks a part is left out; what containers print stays output.
gather() { # file; reads lines; ends its process
  local LC_ALL=C line name text
  local node=$'^(\033\\[[0-9;]*[A-Za-z])*hpcbert-node ([A-Za-z0-9._-]+) ([0-9]{1,9}) ([0-9]{1,9}) <(.*)>$'
  local -A texts=() names=()
  while IFS= read -r line; do
    if [[ ! $line =~ $node ]]; then
      printf '%s\n' "$line"
      continue
    fi
    name=${BASH_REMATCH[2]} text=${BASH_REMATCH[5]}
    if ((10#${BASH_REMATCH[3]} > 0)); then text=${texts[$name]-}$text; fi
    texts[$name]=$text
    if ((${#text} == 10#${BASH_REMATCH[4]})); then names[$text]+=" $name"; fi
  done
  if ((${#names[@]} == 0)); then exit 0; fi
  line=${1%/*}/.${1##*/} # hidden until it is whole
  { for text in "${!names[@]}"; do
    printf '{"nodes":"%s",%s\n' "${names[$text]# }" "${text#\{}"
  done >"$line"; } 2>/dev/null || exec rm -f -- "$line"
  exec mv -f -- "$line" "$1" 2>/dev/null
}

# Writes what the nodes are: one file per attempt, outside every measurement.
describe() { # repeat; ends its process; reads step, surroundings, enter, image, python, environment, device
  local text='' limit=(timeout --kill-after=10 60) words=("$image" "$python")
  IFS= read -r -d '' text <"$library/describe.sh" || true
  if [[ $device == cpu ]]; then words+=(cpu); fi
  if [[ -z $text ]]; then exit 0; fi
  if ((${#enter[@]} + ${#surroundings[@]} == 0)); then
    exec "${limit[@]}" "${step[@]}" env "${environment[@]}" bash -c "$text" describe both "${words[@]}"
  fi
  "${limit[@]}" "${step[@]}" "${surroundings[@]}" "${enter[@]}" env "${environment[@]}" bash -c "$text" describe image "${words[@]}" || true
  exec "${limit[@]}" "${step[@]}" bash -c "$text" describe host "${words[@]}"
}

# Records what the GPUs draw meanwhile: one process per node, outside the ranks. It prints its samples
# when a line arrives on its input.
sample() { # repeat; sets sampler, sampling_end, samples, reads sampling, beside, tasks_per_node, devices_per_task
  local text=''
  samples=$campaign/env/$point.$1.$attempt.power.jsonl
  if ! command -v nvidia-smi >/dev/null && ! command -v rocm-smi >/dev/null; then return 0; fi
  IFS= read -r -d '' text <"$library/sample.sh" || true
  exec {sampling_end}<> <(:)
  "${beside[@]}" bash -c "$text" sample "$((tasks_per_node * devices_per_task))" "$sampling" <&"$sampling_end" >"$samples" 2>/dev/null &
  sampler=$!
}

end_sampling() { # reads sampling_end, samples; clears sampler
  local tries idle
  if [[ -z $sampler ]]; then return 0; fi
  echo >&"$sampling_end"
  exec {idle}<> <(:) # nothing ever comes: waiting needs no process
  for ((tries = 0; tries < 400; tries++)); do
    kill -0 "$sampler" 2>/dev/null || break
    read -rt 0.05 -u "$idle" || true
  done
  kill "$sampler" 2>/dev/null || true
  exec {sampling_end}>&- {idle}>&-
  sampler=''
  { add_samples <"$samples" >"${samples%l}" || rm -f -- "${samples%l}"; } 2>/dev/null
  gzip -nf -- "$samples" 2>/dev/null || true
}

# Adds up the samples of all nodes, the first of each node, the second and so on: all samplers start in
# one step. The watts are those of all nodes, the memory that of the fullest GPU. Prints nothing if a
# node's last line, with the number of its samples, is missing or says another number.
add_samples() { # reads the lines of sample.sh
  # shellcheck disable=SC2016 # awk's words
  LC_ALL=C awk -F'"' '
    $6 == "samples" {
      text = substr($0, index($0, "[[") + 2)
      sub(/\]\]\}$/, "", text)
      size = split(text, rows, /\],\[/)
      for (at = 1; at <= size; at++) {
        place = ++counts[$4]
        split(rows[at], row, ",")
        if (!(place in times)) times[place] = row[1]
        watts[place] += row[2]
        if (row[3] > memory[place] + 0) memory[place] = row[3]
      }
      next
    }
    $8 == "count" && match($0, /"gpus":[0-9]+/) {
      gpus += substr($0, RSTART + 7, RLENGTH - 7)
      match($0, /"count":[0-9]+/)
      ended[$4] = substr($0, RSTART + 8, RLENGTH - 8) + 0
      if (!nodes++ || ended[$4] < least) least = ended[$4]
      next
    }
    { broken = 1 }
    END {
      for (node in counts) if (!(node in ended)) broken = 1
      for (node in ended) if (ended[node] != counts[node] + 0) broken = 1
      if (broken || !nodes) exit 1
      printf "{\"nodes\":%d,\"gpus\":%d,\"samples\":[", nodes, gpus
      for (at = 1; at <= least; at++) printf "%s[%s,%.2f,%d]", (at > 1 ? "," : ""), times[at], watts[at], memory[at]
      print "]}"
    }'
}
