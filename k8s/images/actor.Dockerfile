# The actor: environments and no TensorFlow. Built from the repository's root: make images.
#
# checkov:skip=CKV_DOCKER_2:Kubernetes has probes of its own, and does not look at HEALTHCHECK
# Pinned by its version. A digest is better: add the one that your registry says.
FROM docker.io/library/python:3.11.13-slim-bookworm AS base

FROM base AS build
WORKDIR /source
COPY k8s/images/install.sh k8s/images/requirements-build.txt k8s/images/requirements-actor.txt k8s/images/
RUN k8s/images/install.sh dependencies actor /opt/seedbed
COPY . .
RUN k8s/images/install.sh program . /opt/seedbed

FROM base
COPY --from=build /opt/seedbed /opt/seedbed
# The root file system is read-only: what libraries keep in a home goes to /tmp, where a volume is.
ENV PATH=/opt/seedbed/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["seedbed-actor"]
