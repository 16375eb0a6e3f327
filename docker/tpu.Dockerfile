# bertlab for TPUs, for `bertlab manifest --image=`. The TPU's compiler and driver come with JAX's wheels.
# Not built here: no builder was at hand.
#   docker build -f docker/tpu.Dockerfile -t REGISTRY/bertlab-tpu . && docker push REGISTRY/bertlab-tpu
#   bertlab manifest --name=x --topology=v5e:4x4 --image=REGISTRY/bertlab-tpu --claim=C -- \
#     bertlab train --config=experiments/pretrain/bert.py:size=base --workdir=/runs/x
FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY bertlab bertlab
COPY experiments experiments
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.13-slim
COPY --from=build /dist /dist
RUN pip install --no-cache-dir "$(ls /dist/*.whl)[tpu,gs]" && rm -r /dist
# Any user may run it, so what it writes below /work is theirs (--user).
ENV HOME=/work
WORKDIR /work
ENTRYPOINT ["bertlab"]
CMD ["--help"]
