# Containers by the command enroot or Apptainer, with the meaning of pyxis' options: enter.sh runs it.
# A script sources this after `begin_job`, sets `tool`, `image` and `enter`, and calls `create_container`.
#
#   import_image       an image of a registry, from the site's directory of images
#   create_container   make it on every node
#   leave              remove it when the job ends, by `on_exit`
#
# Sets container, the words that name it for enter.sh. The script may set `scratch` before.
# shellcheck shell=bash disable=SC2034,SC2154,SC2317,SC2329

container=(--with "$tool" --name "hpcbert-$job_name")
if [[ -n $scratch ]]; then container+=(--scratch "$scratch"); fi
hand_over

# Imports it once for all jobs.
import_image() { # image, directory of images, beginning of its files' names, NAME=FOLDER ...; sets image
  local reference=$1 images=$2 stem=$3 kept variable
  shift 3
  image=$(
    if [[ -n $scratch ]]; then
      kept=$(bash -p "$library/enter.sh" place --name hpcbert-images --scratch "$scratch") || exit
      for variable; do export "${variable%%=*}=$kept/${variable#*=}"; done
    fi
    bash -p "$library/image.sh" --with "$tool" import "$reference" "$images" "$stem" </dev/null
  ) || {
    echo "hpcbert: cannot get the image $reference" >&2
    exit 125
  }
}

# Every node creates and enters the container before anything is measured, and reports its own errors.
create_container() { # reads step, container, image, enter; records it
  local every=("${step[@]}")
  if ((${#step[@]})); then every+=(--kill-on-bad-exit=0); fi
  if ! "${every[@]}" bash -p "$library/enter.sh" create "${container[@]}" --image "$image" </dev/null ||
    ! "${every[@]}" "${enter[@]}" true </dev/null; then
    echo "hpcbert: the container was not entered on every node" >&2
    exit 125
  fi
  mark container
}

leave() { # reads step, container
  timeout --kill-after=10 60 "${step[@]}" bash -p "$library/enter.sh" remove "${container[@]}" </dev/null || report_cut "$?"
}
