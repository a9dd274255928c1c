# syntax=docker/dockerfile:1.7
# The actor: environments and no TensorFlow. Built from the repository's root: make images.
#
# The base image is pinned by its version; a registry of your own may pin it by digest: --build-arg PYTHON_IMAGE=...
ARG PYTHON_IMAGE=docker.io/library/python:3.11.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /source
COPY k8s/images/install.sh k8s/images/requirements-build.txt k8s/images/requirements-actor.txt k8s/images/
RUN k8s/images/install.sh dependencies actor /opt/seedbed
COPY . .
RUN k8s/images/install.sh program . /opt/seedbed

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/seedbed /opt/seedbed
# The root file system is read-only: what libraries keep in a home goes to /tmp, where a volume is.
ENV PATH=/opt/seedbed/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["seedbed-actor"]
