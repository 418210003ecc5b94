#!/bin/bash
# Describes one node: runs once per node before a measured step, outside it. It prints JSON objects, in
# lines that srun does not split, and `gather` of nodes.bash joins those of all nodes.
#
#   describe.sh PART REFERENCE PYTHON [cpu]
#
# With `cpu` it asks about no GPU: the ranks compute on the CPU.
# PART is `image` (run inside the container), `host` (run outside) or `both` (no container). Equal nodes
# print equal objects. Unknown facts are left out, and nothing here ends a job: the exit status is 0,
# and a time limit ends a command that hangs.
# Bytes above 127 are written as \u0080 to \u00ff, one by one, so that any value is valid JSON.
# If a variable's name or form suggests a secret, only the name is written.
#
#   JSON            json, add, content, add_file, add_list
#   secrets         matching, find_secrets
#   in the image    environment, distribution, find_python, packages, libraries, image_part
#   on the host     processor, memory, network, gpus, host_part
#   GPUs by vendor  add_gpus, nvidia, amd, rocm, gaudi
#   the lines       print_lines, main

names=()
declare -A values=()
# The kernel's own list, because `< <(compgen -e)` would start a process.
while IFS= read -r -d '' name; do
  name=${name%%=*}
  if [[ $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]]; then names+=("$name") values[$name]=${!name-}; fi
done </proc/self/environ

LC_ALL=C
shopt -s nullglob extglob
exec </dev/null

part=${1:-both} reference=${2:-} python=${3:-python3} device=${4:-}
node=${SLURMD_NODENAME:-}
if [[ -z $node ]]; then IFS= read -r node </proc/sys/kernel/hostname || node=node; fi
node=${node//[^A-Za-z0-9._-]/_}

readonly LONGEST=4096 MOST=1000 PATIENCE=20 CHUNK=800
# The same expressions as in hpcbert/system/redact.py.
readonly NAMES='(SECRET|PASSW|PASSPHRASE|PASSCODE|CREDENTIAL|CREDS?_|TOKEN_|KEYS?_|[^YM]PASS_|[A-Z0-9]_PWD_|DBPWD_|_PW_|_PSK_|_SAS_|_[HT]?OTP_|_MFA_|_NGCCLI_$|CONNECTION_?STRING|AUTH_|AUTHORIZATION|COOKIE|_JWT_|BEARER|_PAT_|_SIG_|SIGNATURE|_DSN_|WEBHOOK)'
readonly FORMS='(^|[^A-Za-z0-9])(A(KIA|SIA|BIA|CCA|3T[A-Z0-9])[A-Z0-9]{16}|hf_[A-Za-z0-9]{16,}|nvapi-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|gl(pat|dt|ft|soat|rt|cbt|ptt|oas|agent|imt|ffct)-[A-Za-z0-9_-]{16,}|gl(sa|c)_[A-Za-z0-9_+/=]{16,}|GR1348941[A-Za-z0-9_-]{16,}|xox[abeoprs][-.][A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}|sk-[A-Za-z0-9_-]{16,}|gsk_[A-Za-z0-9]{16,}|xai-[A-Za-z0-9]{16,}|r8_[A-Za-z0-9]{30,}|AIza[A-Za-z0-9_-]{30,}|ya29[.][A-Za-z0-9_-]{10,}|GOCSPX-[A-Za-z0-9_-]{16,}|eyJ[A-Za-z0-9_=-]{8,}[.][A-Za-z0-9_=-]{4,}([.][A-Za-z0-9_.+/=-]*)?|(sk|rk|pk)_(live|test)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9+/=]{16,}|[0-9]{8,10}:[A-Za-z0-9_-]{35}|hv[sbr][.][A-Za-z0-9_-]{16,}|[A-Za-z0-9]{14}[.]atlasv1[.][A-Za-z0-9_-]{40,}|npm_[A-Za-z0-9]{30,}|pypi-Ag[A-Za-z0-9_-]{16,}|rubygems_[a-f0-9]{40,}|SG[.][A-Za-z0-9_-]{16,64}[.][A-Za-z0-9_-]{16,}|[0-9a-f]{32}-us[0-9]{1,2}|key-[0-9a-f]{32}|sq0[a-z]{3}-[A-Za-z0-9_-]{22,}|(AC|SK)[a-z0-9]{32}|AKC[A-Za-z0-9]{10,}|[MNO][A-Za-z0-9_-]{23,25}[.][A-Za-z0-9_-]{6}[.][A-Za-z0-9_-]{27,}|[A-Za-z0-9_.~-]{3}[0-9]Q~[A-Za-z0-9_.~-]{31,34}|do[opr]_v1_[a-f0-9]{32,}|dapi[a-f0-9]{32}|dckr_[a-z]{3}_[A-Za-z0-9_-]{16,}|shp(at|ca|pa|ss)_[a-fA-F0-9]{32}|ATATT3x[A-Za-z0-9_=-]{30,}|PMAK-[A-Za-z0-9-]{30,}|NRAK-[A-Z0-9]{20,}|tskey-[A-Za-z0-9-]{16,}|pscale_[a-z]+_[A-Za-z0-9_.-]{16,}|pul-[a-f0-9]{40}|sntry[su]_[A-Za-z0-9+/=_-]{16,}|AGE-SECRET-KEY-1[A-Z0-9]{40,}|https?://hooks[.]slack[.]com/[a-z]+/[A-Za-z0-9_/+-]{16,}|https?://(ptb[.]|canary[.])?discord(app)?[.]com/api/webhooks/[0-9]+/[A-Za-z0-9_-]+|https?://[a-z0-9-]{1,64}[.]webhook[.]office[.]com/[A-Za-z0-9@/_-]+|https?://api[.]softlayer[.]com/soap/v3([.]1)?/[a-z0-9]{32,})'
readonly OTHERS='(PRIVATE KEY|PuTTY-User-Key|://[^/@]*:[^/@]*@|://[^/@:]{20,}@|(^|[[:space:]])(-u|--user|--proxy-user)[[:space:]=]*[^[:space:]:]+:[^[:space:]])'
readonly WORDS='(SECRET|PASSW|PASSPHRASE|PASSCODE|CREDENTIAL|CREDS?|TOKEN|KEYS?|[^YM]PASS|[A-Z0-9][^A-Z0-9]PWD|DBPWD|CONNECTION_?STRING|AUTH|AUTHORIZATION|COOKIE|[^A-Z0-9]JWT|BEARER|[^A-Z0-9]PAT|[^A-Z0-9]SIG|SIGNATURE|[^A-Z0-9]DSN|WEBHOOK)'
readonly INSIDE=$WORDS'[A-Z0-9_.-]*["'\'']?[[:space:]]*[=:]|(BEARER|BASIC)[[:space:]]|[[:space:]]-[A-Z0-9_-]*'$WORDS'[A-Z0-9_-]*[[:space:]]'

# --- JSON: each function leaves its text in REPLY ----------------------------------------------
json() { # text -> "text"
  local text=${1:0:LONGEST} out='' char code at
  text=${text//\\/\\\\} text=${text//\"/\\\"}
  text=${text//$'\n'/\\n} text=${text//$'\t'/\\t} text=${text//$'\r'/\\r}
  if [[ $text == *[^\ -~]* ]]; then
    text=${text:0:LONGEST/4}
    for ((at = 0; at < ${#text}; at++)); do
      char=${text:at:1}
      if [[ $char == [^\ -~] ]]; then
        printf -v code '%d' "'$char"
        printf -v char '\\u%04x' "$((code & 255))"
      fi
      out+=$char
    done
    text=$out
  fi
  REPLY="\"$text\""
}

# An object is made by begin, add and end; an empty text is not added.
object=''
add() { # key text
  [[ -n $2 ]] || return 0
  json "$2"
  object+=",\"$1\":$REPLY"
}

content() { # file -> its first line
  REPLY=''
  { IFS= read -r REPLY <"$1"; } 2>/dev/null || true
}

add_file() { # key file
  content "$2"
  add "$1" "$REPLY"
}

add_list() { # key text ...
  (($# > 1)) || return 0
  local out='' text
  for text in "${@:2}"; do
    json "$text"
    out+=",$REPLY"
  done
  object+=",\"$1\":[${out:1}]"
}

# --- What holds inside and outside -------------------------------------------------------------
# bash compiles an expression each time that it uses it, which takes 1 ms for FORMS. So all texts are
# matched at once, and halves of them only if one matches.
declare -A texts=() secret=()
matching() { # expression name ...; reads texts; adds to matched the names whose text matches
  local expression=$1 name text=''
  shift
  for name; do text+=$'\n'${texts[$name]}; done
  [[ $text =~ $expression ]] || return 0
  if (($# == 1)); then
    matched+=("$1")
  else
    matching "$expression" "${@:1:$#/2}"
    matching "$expression" "${@:$#/2+1}"
  fi
}

find_secrets() { # name ...; reads values; sets texts, secret
  local name matched=()
  for name; do
    texts[$name]=_${name^^}_
    texts[$name]=${texts[$name]//[^A-Z0-9]/_}
  done
  matching "$NAMES" "$@"
  for name; do texts[$name]=" ${values[$name]^^}"; done
  matching "$INSIDE" "$@"
  for name; do texts[$name]=${values[$name]}; done
  matching "$OTHERS" "$@"
  matching "$FORMS" "$@"
  for name in "${matched[@]}"; do secret[$name]=yes; done
}

environment() { # prints the ranks' variables
  local name value count=0 out=''
  for name in "${names[@]}"; do
    # Variables that this step and shell set themselves say nothing about the ranks, and differ by node.
    case $name in
      SLURM_STEP* | SLURM_SRUN_* | SLURM_TASK_PID | SLURMD_NODENAME | SLURM_NODEID | SLURM_PROCID | SLURM_GTIDS | SLURM_TOPOLOGY_ADDR | HOSTNAME | SHLVL | _)
        continue
        ;;
    esac
    ((++count > MOST)) && break
    value=${values[$name]}
    if [[ -n $value && -n ${secret[$name]-} ]]; then value='<redacted>'; fi
    json "$value"
    out+=",\"$name\":$REPLY"
  done
  print_lines "{\"image\":{\"environment\":{${out:1}}}}"
}

# --- Inside the image ---------------------------------------------------------------------------
distribution() {
  local name value
  while IFS='=' read -r name value; do
    if [[ $name == PRETTY_NAME ]]; then add os "${value//\"/}"; fi
  done </etc/os-release
}

# The site's "Python" may be a program that does more than Python: it is added by its name alone.
found_python='' # its path; `command -v` would need a process to keep what it says
find_python() {
  local path
  if [[ $python == */* ]]; then
    if [[ -x $python && ! -d $python ]]; then found_python=$python; fi
  elif hash -- "$python"; then
    found_python=${BASH_CMDS[$python]}
  fi
  path=$found_python
  if [[ -L $path ]]; then path=$(readlink -f -- "$path"); fi
  add python "${path##*/}"
}

# Versions from the names of installed packages' metadata, without starting Python.
packages() {
  local path name=$found_python roots=(/usr/local /usr /opt/conda) found=()
  case $name in /usr/local/bin/* | /usr/bin/* | /opt/conda/bin/*) ;; */*) roots=("${name%/*}/.." "${roots[@]}") ;; esac
  for path in "${roots[@]/%//lib/python3}"; do
    for name in "$path"*/{site,dist}-packages/*.{dist,egg}-info; do
      name=${name##*/}
      case ${name,,} in
        torch-* | torchvision-* | triton-* | tensorflow*-* | jax-* | jaxlib-* | numpy-* | deepspeed-* | oneflow* | \
          paddlepaddle* | mindspore* | mxnet* | horovod-* | apex-* | transformer_engine* | megatron* | flash_attn* | \
          transformers-* | nvidia_cublas* | nvidia_cuda_runtime* | nvidia_cudnn* | nvidia_nccl* | nvidia_dali* | mpi4py-*)
          name=${name%.dist-info}
          found+=("${name%.egg-info}")
          ;;
      esac
    done
  done
  add_list packages "${found[@]}"
}

# Libraries that carry their version in a file's name: libnccl.so.2.21.5. A folder may have thousands of
# files: one pattern for all names reads it once.
libraries() {
  local path name file files found=() stems='nccl|cudart|cudnn|cublas|rccl|amdhip64|rocblas|MIOpen|mpi|pmix|ucp'
  for path in /usr/lib/*-linux-gnu /usr/lib64 /usr/local/lib /usr/local/cuda/lib64 \
    /usr/local/cuda/targets/*/lib /opt/rocm/lib; do
    files=("$path"/lib@($stems).so.*.*)
    for name in ${stems//|/ }; do
      for file in "${files[@]##*/}"; do
        if [[ $file == "lib$name.so."* ]]; then found+=("$file"); fi
      done
    done
  done
  add_list libraries "${found[@]}"
}

image_part() {
  object=''
  find_python
  values['.reference']=$reference # no variable has this name
  find_secrets .reference "${names[@]}"
  if [[ -n ${secret['.reference']-} ]]; then reference='<redacted>'; fi
  add reference "$reference"
  distribution
  packages
  libraries
  add_file rocm /opt/rocm/.info/version
  print_lines "{\"image\":{${object:1}}}"
  environment
}

# --- Outside of the image -------------------------------------------------------------------------
processor() {
  local line count=0
  while IFS= read -r line && ((++count < 64)); do
    case $line in
      'model name'*) add cpu "${line#*: }" && break ;;
      'CPU part'*) add cpu "ARM part ${line#*: }" && break ;;
    esac
  done </proc/cpuinfo
  add_file cpus /sys/devices/system/cpu/present
  add_file governor /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor
  add_file smt /sys/devices/system/cpu/smt/active
  local domains=(/sys/devices/system/node/node[0-9]*)
  add numa_nodes "${#domains[@]}"
  content /proc/meminfo # its first line is MemTotal
  memory "${REPLY//[^0-9]/}"
}

# The kernel keeps a few percent to itself, not the same on equal nodes: rounded up to four bits.
memory() { # KiB
  local step=1
  while ((10#${1:-0} / step >= 16)); do step=$((step * 2)); done
  add memory_kb "$(((10#${1:-0} + step - 1) / step * step))"
}

network() {
  local path name kind found=() speed mtu state
  for path in /sys/class/net/*; do
    name=${path##*/} kind=virtual
    [[ $name == lo || ! -d $path ]] && continue
    [[ -e $path/device ]] && kind=physical
    content "$path/speed" && speed=$REPLY
    content "$path/mtu" && mtu=$REPLY
    content "$path/operstate" && state=$REPLY
    found+=("$name $kind ${speed:--1} ${mtu:-0} ${state:-unknown}")
    ((${#found[@]} >= 64)) && break
  done
  add_list network "${found[@]}"
  found=()
  for path in /sys/class/infiniband/*/ports/*; do
    name=${path#/sys/class/infiniband/}
    content "$path/link_layer" && kind=$REPLY
    content "$path/rate" && speed=$REPLY
    content "$path/state" && state=$REPLY
    found+=("${name/\/ports\//:}|$kind|$speed|$state")
  done
  add_list infiniband "${found[@]}"
  if ((${#found[@]} > 0)); then add memlock "$(ulimit -l)"; fi
}

# nvidia-smi is slow: three questions at once. Older versions have fewer fields.
readonly FIELDS=index,name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory
readonly MORE=persistence_mode,ecc.mode.current,mig.mode.current,compute_mode,pcie.link.width.current,vbios_version
nvidia() {
  local full version topology line lines=() fields=$FIELDS,$MORE
  exec {full}< <(ask --query-gpu="$fields" --format=csv,noheader,nounits)
  exec {version}< <(ask --version)
  exec {topology}< <(ask topo -m)
  mapfile -t -n 64 lines <&"$full"
  if [[ ${lines[0]-} != [0-9]*,* ]]; then
    fields=$FIELDS
    mapfile -t -n 64 lines < <(ask --query-gpu="$fields" --format=csv,noheader,nounits)
  fi
  if [[ ${lines[0]-} == [0-9]*,* ]]; then add_gpus "$fields" "${lines[@]}"; fi
  mapfile -t -n 16 lines <&"$version"
  for line in "${lines[@]}"; do
    if [[ ${line^^} == *CUDA*VERSION*:* ]]; then add cuda_driver "${line##*: }"; fi
  done
  mapfile -t -n 64 lines <&"$topology"
  if ((${#lines[@]} > 1)); then add_list topology "${lines[@]}"; fi
}

ask() { timeout "$PATIENCE" nvidia-smi "$@" 2>/dev/null; }

add_gpus() { # fields, one line per GPU; fails without lines
  (($# > 1)) || return 1
  add gpu_fields "$1"
  add_list gpus "${@:2}"
}

# Other vendors' GPUs are recorded as nvidia-smi would: the same fields, one line per GPU.
readonly AMD_FIELDS=index,name,driver_version,memory.total,power.limit,partition.current

# Sections of indented `NAME: value` below `GPU: number` (amd-smi 24 to 26; its --csv prints nothing
# in ROCm 7.2: ROCm/amdsmi issue 177).
amd() {
  local line section='' index='' name='' driver='' memory='' power='' partition='' found=()
  amd_line() {
    if [[ -n $index && -n $name ]]; then
      found+=("$index, ${name//, / }, ${driver:-N/A}, ${memory:-N/A}, ${power:-N/A}, ${partition:-N/A}")
    fi
    index=$1 name='' driver='' memory='' power='' partition=''
  }
  while IFS= read -r line; do
    case $line in
      'GPU: '[0-9]*) amd_line "${line#GPU: }" ;;
      *[[:space:]][A-Z]*:) section=${line//[[:space:]:]/} ;;
      *MARKET_NAME:*) name=${line#*: } ;;
      *VERSION:*) if [[ $section == DRIVER ]]; then driver=${line#*: }; fi ;;
      *SIZE:*) if [[ $section == VRAM ]]; then memory=${line//[^0-9]/}; fi ;;
      *SOCKET_POWER*:*W*) if [[ -z $power ]]; then power=${line#*: } power=${power%% *}; fi ;;
      *ACCELERATOR_PARTITION:* | *COMPUTE_PARTITION:*) partition=${line#*: }${partition:+/$partition} ;;
      *MEMORY_PARTITION:*) partition+=${partition:+/}${line#*: } ;;
    esac
  done < <(timeout "$PATIENCE" amd-smi static --asic --driver --limit --vram --partition 2>/dev/null)
  amd_line ''
  add_gpus "$AMD_FIELDS" "${found[@]}"
}

# Tables with a header, whose columns have had several names; the driver is the system's, not a card's.
rocm() {
  local line header=() row=() place name model driver memory power found=()
  while IFS=, read -r name driver; do
    if [[ $name == *system ]]; then break; fi
  done < <(timeout "$PATIENCE" rocm-smi --showdriverversion --csv 2>/dev/null)
  while IFS= read -r line; do
    IFS=, read -r -a row <<<"$line"
    case $line in device,*) header=("${row[@]}") ;; esac
    if [[ ${row[0]-} != card[0-9]* ]]; then continue; fi
    name='' model='' memory='' power=''
    for place in "${!row[@]}"; do
      case ${header[place],,} in
        'card series') name=${row[place]} ;;
        'card model') model=${row[place]} ;;
        'vram total memory (b)') memory=${row[place]//[^0-9]/} ;;
        'max graphics package power (w)') power=${row[place]} ;;
      esac
    done
    # Either of the two may be the number of the device.
    case $name in '' | 0x* | N/A) name=$model ;; esac
    if [[ -n $memory ]]; then memory=$((10#${memory:0:17} / 1048576)); fi
    found+=("${row[0]#card}, ${name:-N/A}, ${driver:-N/A}, ${memory:-N/A}, ${power:-N/A}, N/A")
  done < <(timeout "$PATIENCE" rocm-smi --showproductname --showmeminfo vram --showmaxpower --csv 2>/dev/null)
  add_gpus "$AMD_FIELDS" "${found[@]}"
}

gaudi() {
  local lines=() fields=index,name,driver_version,memory.total
  mapfile -t -n 64 lines < <(timeout "$PATIENCE" hl-smi -Q "$fields" -f csv,noheader,nounits 2>/dev/null)
  if [[ ${lines[0]-} == [0-9]*,* ]]; then add_gpus "$fields" "${lines[@]% MiB}"; fi
}

gpus() {
  if [[ $device == cpu ]]; then return 0; fi
  if hash nvidia-smi; then nvidia; fi
  [[ $object != *'"gpus":'* ]] || return 0
  if hash amd-smi && amd; then return 0; fi
  if hash rocm-smi && rocm; then return 0; fi
  if hash hl-smi; then gaudi; fi
}

host_part() {
  object=''
  add_file kernel /proc/sys/kernel/osrelease
  add machine "$HOSTTYPE"
  processor
  gpus
  print_lines "{\"host\":{${object:1}}}"
  object=''
  network
  print_lines "{\"host\":{${object:1}}}"
}

# --- The lines --------------------------------------------------------------------------------
# srun joins the lines of all nodes, and splits those of more than 1,024 bytes (SLURM_IO_MAX_MSG_LEN of
# Slurm's io_hdr.h). Each has the node, the place of its text in the object, and the object's length.
print_lines() { # object
  local at
  for ((at = 0; at < ${#1}; at += CHUNK)); do
    printf 'hpcbert-node %s %d %d <%s>\n' "$node" "$at" "${#1}" "${1:at:CHUNK}"
  done
}

main() {
  if [[ $part != host ]]; then image_part; fi
  if [[ $part != image ]]; then host_part; fi
}

main 2>/dev/null
exit 0
