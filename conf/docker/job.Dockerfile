# syntax=docker/dockerfile:1
# A Spark job in local mode, with Java: job.py, which streams a feed into files. Build it from the top folder of the checkout:
#   docker build -f conf/docker/job.Dockerfile -t zeh-spark-job .
# It runs as user 10001, and writes to /var/lib/zeh-spark-job and /tmp only. /tmp must not be mounted noexec, because Java
# loads libraries from there: docker run --tmpfs /tmp:exec.

FROM python:3.13-slim-bookworm AS build
WORKDIR /src
COPY setup.py pyproject.toml README.md LICENSE pyspark_zeroeventhub.py ./
COPY zeh_spark zeh_spark
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim-bookworm
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
# Hadoop, which Spark uses for files, refuses a user without a name.
RUN groupadd --gid 10001 zeh-spark \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/zeh-spark-job --shell /usr/sbin/nologin zeh-spark \
    && install -d -m 0700 -o 10001 -g 10001 /var/lib/zeh-spark-job
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "pyspark[sql]==4.2.0" "pandas<3" /wheels/*.whl
COPY --chmod=0444 conf/docker/job.py /usr/local/lib/zeh-spark/job.py

# Spark in local mode needs no address that others reach, nor a host name that is resolved.
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SPARK_LOCAL_IP=127.0.0.1 \
    FOLDER=/var/lib/zeh-spark-job
USER 10001:10001
WORKDIR /var/lib/zeh-spark-job
VOLUME /var/lib/zeh-spark-job
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "/usr/local/lib/zeh-spark/job.py"]
