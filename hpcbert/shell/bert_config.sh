#!/bin/bash
# Prints the configuration of a BERT model, as Google's programs and their heirs read it.
#
#   bert_config.sh HIDDEN LAYERS [HEADS]    without HEADS: 64 wide each
set -euo pipefail
cat <<JSON
{
  "attention_probs_dropout_prob": 0.1,
  "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1,
  "hidden_size": $1,
  "initializer_range": 0.02,
  "intermediate_size": $((4 * $1)),
  "max_position_embeddings": 512,
  "num_attention_heads": ${3:-$(($1 / 64))},
  "num_hidden_layers": $2,
  "type_vocab_size": 2,
  "vocab_size": 30522
}
JSON
