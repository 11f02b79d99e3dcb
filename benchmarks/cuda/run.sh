#!/usr/bin/env bash
# Everything that needs a GPU: the tests marked so, then the benchmarks; their tables, and one of
# what passed. Usage: benchmarks/cuda/run.sh [MODELS]
#
# MODELS is a folder for the files that engine.py loads (7 GB, made by models.py when absent);
# without it engine.py and decode_profile.py are left out. PYTHON names the interpreter; it needs
# NumPy, pytest and what llamba itself does, but neither the CUDA toolkit nor PyTorch. Kernels are
# compiled by Numba, or come from LLAMBA_KERNEL_PATH.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

python=${PYTHON:-python3}
models=${1:-}
package=$(mktemp -d) # `import llamba` is this checkout, whatever its folder is called
trap 'rm -rf "$package"' EXIT
ln -s "$PWD" "$package/llamba"
export PYTHONPATH="$package${PYTHONPATH:+:$PYTHONPATH}" LLAMBA_TEST_CUDA=1
summary=()

step() { # NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  if "$@"; then result=passed; else result="FAILED ($?)"; fi
  summary+=("| $name | $result | $((SECONDS - start)) |")
}

finish() {
  printf '\n| step | result | seconds |\n|---|---|--:|\n'
  printf '%s\n' "${summary[@]}"
  case "${summary[*]}" in *FAILED*) exit 1 ;; esac
  exit 0
}

if ! "$python" - <<'EOF'; then
import sys
from llamba.runtime.cuda.driver import available, version_text
found, why = available()
for gpu in found:
    print(f"{gpu.name}: {gpu.total_bytes / 1e9:.0f} GB, compute capability "
          f"{version_text(gpu.architecture, 10)}, CUDA {version_text(gpu.driver_version)}")
sys.exit(f"no GPU that can be used: {why}" if not found else 0)
EOF
  exit 2
fi

step "smoke" "$python" benchmarks/cuda/smoke.py
step "tests" "$python" -m pytest -q -p no:cacheprovider -m gpu tests
for script in benchmarks/cuda/*.py; do
  case "$(basename "$script" .py)" in
    package | models | smoke | engine | decode_profile) ;;
    *) step "$(basename "$script" .py)" "$python" "$script" ;;
  esac
done
if [ -n "$models" ]; then
  mkdir -p "$models"
  for name in 8b-q4_k_m 1b-q4_k_m 1b-q8_0; do
    [ -e "$models/$name.gguf" ] || step "$name" "$python" benchmarks/cuda/models.py "$models" "$name"
  done
  step "engine" "$python" benchmarks/cuda/engine.py "$models"
  step "decode_profile" "$python" benchmarks/cuda/decode_profile.py "$models/8b-q4_k_m.gguf"
else
  echo "engine.py and decode_profile.py are left out: no folder for their models was named"
fi
finish
