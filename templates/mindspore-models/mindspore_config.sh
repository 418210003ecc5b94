#!/bin/bash
# Prints the program's own configuration with the point's network instead of its "base".
#
#   mindspore_config.sh FILE LENGTH HIDDEN LAYERS HEADS TYPE
set -euo pipefail
config=$(sed -E '/^base_net_cfg:/,/^# nezha/{
  s/^( +seq_length):.*/\1: '"$2"'/
  s/^( +vocab_size):.*/\1: 30522/
  s/^( +hidden_size):.*/\1: '"$3"'/
  s/^( +num_hidden_layers):.*/\1: '"$4"'/
  s/^( +num_attention_heads):.*/\1: '"$5"'/
  s/^( +intermediate_size):.*/\1: '"$((4 * $3))"'/
  s/^( +compute_type):.*/\1: mstype.'"$6"'/
}' "$1")
base=$(sed '/^# nezha/q' <<<"$config")
if [[ $base != *"vocab_size: 30522"*"hidden_size: $3"*"compute_type: mstype."* ]]; then
  echo "hpcbert: $1 is not the one of commit 9d99f64: the point's network can't be written into it" >&2
  exit 1
fi
printf '%s\n' "$config"
