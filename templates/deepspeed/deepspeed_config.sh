#!/bin/bash
# Writes into a directory what the program reads: itself with two changes, the vocabulary, and the
# configurations of the model and of DeepSpeed.
#
#   deepspeed_config.sh DIRECTORY NAME=VALUE ...
#
#   program, vocabulary        files
#   hidden, layers             of the model
#   learning_rate, workers     of its training; workers: processes that read the data
#   batch, global_batch        samples of a rank's micro-batch, and of a step
#   precision, device
set -euo pipefail

work=$1 device='' precision=''
for word in "${@:2}"; do printf -v "${word%%=*}" %s "${word#*=}"; done
# shellcheck disable=SC2154 # the words above
case $device in
  cpu) log='"log_level": "info",' adam='"torch_adam": true' ;;
  *) log='' adam='"bias_correction": false' ;;
esac
if [[ $precision == fp16 ]]; then fp16=true; else fp16=false; fi

# The program with two changes; each must find the line that it was written for. The lines have DOS
# line ends.
# shellcheck disable=SC2154
sed -E \
  -e 's/^( +)if args\.fp16:\r?$/\1lr_this_step = optimizer.param_groups[0]["lr"]\n&/' \
  -e 's/^( +)# Call DeepSpeed engine step on micro steps\r?$/\1epoch_step += 1\n&/' \
  "$program" >"$work"/deepspeed_train.py
count() { # lines of a file that match
  grep -cE -- "$2" "$1" || true
}
if [[ $(count "$program" '^ +epoch_step \+= 1\s*$') != 1 ||
  $(count "$work"/deepspeed_train.py '^ +epoch_step \+= 1\s*$') != 2 ||
  $(count "$work"/deepspeed_train.py '^ +lr_this_step = optimizer\.param_groups\[0\]\["lr"\]$') != 1 ]]; then
  echo "hpcbert: $program is not the one of commit ba63ad0f: the changes to it don't apply" >&2
  exit 1
fi

# shellcheck disable=SC2154
ln -s -- "$vocabulary" "$work"/vocab.txt
if [[ ! -s $work/vocab.txt ]]; then
  echo "hpcbert: there is no vocabulary at $vocabulary" >&2
  exit 1
fi

# shellcheck disable=SC2154
cat >"$work"/model.json <<JSON
{
  "name": "bing_bert_base",
  "bert_token_file": "vocab.txt",
  "bert_model_file": "bert-base-uncased",
  "bert_model_config": {
    "vocab_size_or_config_json_file": 30522,
    "hidden_size": $hidden,
    "num_hidden_layers": $layers,
    "num_attention_heads": $((hidden / 64)),
    "intermediate_size": $((4 * hidden)),
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02
  },
  "data": {
    "flags": {"pretrain_dataset": true, "pretrain_type": "wiki"},
    "mixed_seq_datasets": {"128": {"pretrain_dataset": ""}}
  },
  "mixed_seq_training": {
    "128": {
      "num_epochs": 1,
      "warmup_proportion": 1.0,
      "learning_rate": $learning_rate,
      "num_workers": $workers,
      "async_worker": true,
      "decay_rate": 0.99,
      "decay_step": 520,
      "total_training_steps": 125000
    }
  },
  "validation": {"path": "validation_set/"}
}
JSON
# shellcheck disable=SC2154
cat >"$work"/deepspeed.json <<JSON
{
  "train_batch_size": $global_batch,
  "train_micro_batch_size_per_gpu": $batch,
  "steps_per_print": 1,
  $log
  "prescale_gradients": false,
  "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "weight_decay": 0.01, $adam}},
  "gradient_clipping": 1.0,
  "wall_clock_breakdown": false,
  "fp16": {"enabled": $fp16, "loss_scale": 0}
}
JSON
