#!/usr/bin/env bash
# An ARM64 Python with llamba's dependencies, run by user-mode emulation on another Debian machine.
#
# usage: [PYTHON=python3] tests/arm/setup.sh [FOLDER]    (default: .arm, which git ignores)
# then:  FOLDER/python -cpu cortex-a72 -m pytest tests/quant/test_cpu_formats.py
#
# Nothing is booted or registered: Debian's packages and the wheels are unpacked into the folder.
# apt installs the emulator if it isn't there, which needs root. $PYTHON must have llamba's
# dependencies: it compiles the kernels.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dir=${1:-$root/.arm}
python=$(command -v "${PYTHON:-python3}")
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
echo '*' >"$dir/.gitignore"

if ! command -v qemu-aarch64-static >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-user-static
fi

# Packages for ARM64 by the machine's own sources, as if nothing were installed.
mkdir -p "$dir"/lists/partial "$dir"/debs/partial "$dir/root" "$dir/site"
options=(
  -oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oDir::State::status=/dev/null
  -oDir::State::Lists="$dir/lists" -oDir::Cache="$dir" -oDir::Cache::archives="$dir/debs"
  -oAPT::Sandbox::User=root -oDebug::NoLocking=1 -oAcquire::Languages=none
)
apt-get "${options[@]}" update -qq
apt-get "${options[@]}" install -y -qq --no-install-recommends --download-only \
  python3 libstdc++6 libgomp1 >/dev/null
for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" "$dir/root"; done
version=$(basename "$(find "$dir/root/usr/lib" -maxdepth 1 -name 'python3.*' | head -n 1)")

"$python" -m pip download --quiet --only-binary=:all: --implementation cp \
  --python-version "${version#python}" --platform manylinux_2_28_aarch64 \
  --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
  --platform manylinux2014_aarch64 --dest "$dir/wheels" \
  click jinja2 llvmlite numba numpy prompt_toolkit rich gguf hypothesis pytest
for wheel in "$dir"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$dir/site"; done

ln -sfn "$root" "$dir/site/llamba"
mkdir -p "$dir/link"
ln -sfn "$root" "$dir/link/llamba"

# What compiles kernels for the emulated Python, much faster than it could: this machine's own.
cat >"$dir/cross" <<END
#!/bin/sh
unset PYTHONHOME NUMBA_CPU_NAME NUMBA_CPU_FEATURES QEMU_CPU
export PYTHONPATH="$dir/link"
exec "$python" "\$@"
END
cat >"$dir/site/sitecustomize.py" <<END
import os, sys
sys.executable = os.environ.get("LLAMBA_CROSS") or sys.executable
END

# Its own name as argv[0]: what Python starts as sys.executable runs emulated, too, where LLAMBA_CROSS
# is empty. QEMU_CPU is the CPU, for its children as well.
cat >"$dir/python" <<END
#!/bin/sh
if [ "\${1:-}" = -cpu ]; then
  export QEMU_CPU="\$2" LLAMBA_TARGET="\${LLAMBA_TARGET-\$2}"
  shift 2
fi
export LLAMBA_CROSS="\${LLAMBA_CROSS-$dir/cross}" LLAMBA_CACHE="\${LLAMBA_CACHE-$dir/cache}"
export PYTHONHOME="$dir/root/usr" PYTHONPATH="$dir/site\${PYTHONPATH:+:\$PYTHONPATH}"
exec qemu-aarch64-static -0 "\$0" -L "$dir/root" "$dir/root/usr/bin/$version" "\$@"
END
chmod +x "$dir/python" "$dir/cross"
"$dir/python" -c 'import platform, numpy; print(platform.machine(), platform.python_version())'
