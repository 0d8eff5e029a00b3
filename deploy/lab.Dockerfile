# The lab: a real SGLang server on the CPU with a policy of 0.65 million parameters. About 3.5 GB.
#   docker build -f deploy/lab.Dockerfile -t strands-sglang-lab .
#   docker run --rm -p 30000:30000 strands-sglang-lab
FROM python:3.11-slim-bookworm

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 lab
WORKDIR /opt/strands-sglang
COPY lab lab
# One thread: with several, the threads of a small model wait for each other.
ENV STRANDS_SGLANG_LAB=/opt/lab OMP_NUM_THREADS=1
RUN mkdir /opt/lab && chown lab /opt/lab
USER 1000
RUN lab/setup --quiet tool-policy tool-policy-noncanonical && rm -rf /home/lab/.cache
EXPOSE 30000
HEALTHCHECK --start-period=120s --interval=30s \
    CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:30000/health', timeout=5)"]
ENTRYPOINT ["lab/serve", "--host", "0.0.0.0"]
CMD ["tool-policy"]
