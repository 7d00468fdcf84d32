#!/bin/sh
# Resolves the locks for every supported Python at once, each package with the digests of its files.
# The CUDA packages of torch are left out: torch brings those that its build needs.
# fasttext-predict is left out: it installs a module over fasttext.
set -eu
cd "$(dirname "$0")/.."
omit="fasttext-predict triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc
 nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse
 nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx"
flags="--universal --python-version 3.11 --no-annotate --no-header --generate-hashes -q --extra lid --group build"
for name in $omit; do flags="$flags --no-emit-package $name"; done
uv pip compile pyproject.toml $flags -o requirements.lock
uv pip compile pyproject.toml $flags --extra dev -c requirements.lock -o requirements-dev.lock
