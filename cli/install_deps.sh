#!/usr/bin/env bash
# Installs the Debian packages that building, testing and the demo need; does nothing, quickly, when all are there.
set -euo pipefail

packages=(
  cmake ninja-build g++ pkg-config
  libhdf5-dev libzstd-dev libdeflate-dev libxxhash-dev libdnnl-dev ocl-icd-opencl-dev libopenmpi-dev openmpi-bin  # oneDNN's CMake files ask for OpenCL
  libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libfmt-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  python3 python3-h5py python3-numpy python3-xxhash python3-zstandard hdf5-tools strace util-linux
)

missing=()
if command -v dpkg-query >/dev/null; then
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
  for package in "${packages[@]}"; do
    grep -qx "installed $package" <<<"$installed" || missing+=("$package")
  done
fi
[ ${#missing[@]} -eq 0 ] && command -v dpkg-query >/dev/null && exit 0

if ! command -v apt-get >/dev/null; then
  echo "install_deps.sh: error: apt-get: not found; install what these Debian packages hold by other means: ${packages[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_deps.sh: error: ${missing[*]}: not installed; run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "Installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# Package lists may be old or absent; they are fetched only when something is missing.
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
