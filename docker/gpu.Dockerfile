# bertlab for NVIDIA GPUs. CUDA comes with JAX's wheels; the host needs NVIDIA's driver and its container toolkit.
# Not built here: no builder was at hand.
#   docker build -f docker/gpu.Dockerfile -t bertlab-gpu .
#   docker run --rm --gpus=all --user "$(id -u):$(id -g)" -v "$PWD":/work bertlab-gpu \
#     train --config=experiments/pretrain/bert.py:size=base --workdir=runs/x
FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY bertlab bertlab
COPY experiments experiments
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.13-slim
COPY --from=build /dist /dist
RUN pip install --no-cache-dir "$(ls /dist/*.whl)[cuda]" && rm -r /dist
# Any user may run it, so what it writes below /work is theirs (--user).
ENV HOME=/work
WORKDIR /work
ENTRYPOINT ["bertlab"]
CMD ["--help"]
