# Runs episodes: a driver, a Ray worker, or the gateway. Needs no GPU. Add your agents in an image of yours, or mount them.
#   docker build -f deploy/worker.Dockerfile -t strands-sglang-worker .
#   docker run --rm strands-sglang-worker strands-sglang --version
FROM python:3.11-slim-bookworm

# bubblewrap: the Python sandbox, and agents without network.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 worker
WORKDIR /opt/strands-sglang
COPY pyproject.toml README.md LICENSE ./
COPY src src
# hadolint ignore=DL3013
RUN pip install --no-cache-dir '.[arrow,images,progress,ray]'
USER 1000
# Where your agents are, and the runs. Python finds modules of this folder; Ray's workers import them, too.
WORKDIR /work
ENV PYTHONPATH=/work PYTHONUNBUFFERED=1
CMD ["strands-sglang", "--help"]
