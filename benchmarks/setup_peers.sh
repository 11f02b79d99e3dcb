#!/usr/bin/env bash
# Builds the two peers of compare.py from their source distributions, for this very CPU, each in a
# virtual environment of its own: FOLDER/llama and FOLDER/ik. Needs a C++ compiler and cmake; takes
# 10 to 40 minutes on two cores. An environment that is already complete is left as it is.
# With `avx2` also FOLDER/llama-avx2, llama.cpp without AVX-512, the peer of `llamba avx2`.
set -euo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ] || [ "${2:-avx2}" != avx2 ]; then
  echo "usage: $0 FOLDER [avx2]" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
# The published wheels are built for an older CPU: only a build of one's own is a fair peer.
# (-w: ik_llama.cpp's warnings alone fill 100 MB.)
quiet="-DCMAKE_C_FLAGS=-w -DCMAKE_CXX_FLAGS=-w"
export CMAKE_ARGS="-DGGML_NATIVE=ON $quiet"

complete() { # NAME PACKAGE VERSION
  "$folder/$1/bin/python" -c \
    "from importlib.metadata import version; assert version('$2') == '$3'" 2>/dev/null
}

build() { # NAME PIP-ARGUMENT...
  local name=$1
  shift
  "${PYTHON:-python3}" -m venv "$folder/$name"
  echo "$name: building (log: $folder/$name.log)"
  "$folder/$name/bin/python" -m pip install --no-cache-dir --verbose "$@" \
    >"$folder/$name.log" 2>&1 || { tail -n 20 "$folder/$name.log" >&2; exit 1; }
}

complete llama llama-cpp-python 0.3.36 ||
  build llama --no-binary llama-cpp-python llama-cpp-python==0.3.36

if ! complete ik ik-llama-cpp-python 0.1.5; then
  # This source distribution lacks one file of its build, the script that writes the version's
  # constants into build-info.cpp; without it the build stops half way.
  source=$folder/ik-source
  rm -rf "$source"
  mkdir -p "$source"
  "${PYTHON:-python3}" -m venv "$folder/ik"
  "$folder/ik/bin/python" -m pip download --no-deps --no-binary ik-llama-cpp-python \
    --dest "$source" ik-llama-cpp-python==0.1.5
  tar -xzf "$source"/*.tar.gz -C "$source" --strip-components 1
  common=$source/vendor/ik_llama.cpp/common
  if [ ! -e "$common/cmake/build-info-gen-cpp.cmake" ]; then
    mkdir -p "$common/cmake"
    cat >"$common/cmake/build-info-gen-cpp.cmake" <<'END'
set(BUILD_NUMBER 0)
set(BUILD_COMMIT "sdist")
set(BUILD_COMPILER "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
set(BUILD_TARGET "native")
configure_file(common/build-info.cpp.in common/build-info.cpp)
END
  fi
  build ik "$source"
fi

if [ "${2:-}" = avx2 ] && ! complete llama-avx2 llama-cpp-python 0.3.36; then
  export CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON \
-DGGML_BMI2=ON -DGGML_AVX512=OFF $quiet"
  build llama-avx2 --no-binary llama-cpp-python llama-cpp-python==0.3.36
fi

complete llama llama-cpp-python 0.3.36 && complete ik ik-llama-cpp-python 0.1.5
echo "peers are ready in $folder"
