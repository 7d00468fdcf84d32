# textmill with its locked requirements, for pods, work pools and single runs:
#   docker build --tag textmill .
#   docker run --rm textmill textmill run run=demo orchestrator=none
# torch of PyPI for Linux brings CUDA along; nodes need the driver and their runtime's GPU support.
ARG BASE=docker.io/library/debian:bookworm-slim

# Both stages have one base, so an environment made in the first one runs in the second.
FROM ${BASE} AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ make python3-dev python3-venv
COPY . /opt/textmill
WORKDIR /opt/textmill
RUN make setup

FROM ${BASE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libgomp1 python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 textmill \
    && install --directory --owner=textmill /work
# Owned by the user: compiled kernels are kept beside their sources.
COPY --from=build --chown=textmill /opt/textmill /opt/textmill
# What jobs start, `python -m llm_core.training.train`, needs the folder on the path.
ENV PATH=/opt/textmill/.venv/bin:$PATH PYTHONPATH=/opt/textmill PYTHONUNBUFFERED=1
USER textmill
WORKDIR /work
CMD ["textmill", "--help"]
