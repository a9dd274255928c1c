# The learner, for CPUs or, with --build-arg DEVICE=gpu, for GPUs of NVIDIA. Built from the root: make images.
#
# CUDA comes as Python packages, so both have one base image; the node needs the driver and NVIDIA's container toolkit.
# checkov:skip=CKV_DOCKER_2:Kubernetes has probes of its own, and does not look at HEALTHCHECK
# Pinned by its version. A digest is better: add the one that your registry says.
FROM docker.io/library/python:3.11.13-slim-bookworm AS base

FROM base AS build
ARG DEVICE=cpu
WORKDIR /source
COPY k8s/images/install.sh k8s/images/requirements-build.txt k8s/images/requirements-learner-${DEVICE}.txt k8s/images/
RUN k8s/images/install.sh dependencies learner-${DEVICE} /opt/seedbed
COPY . .
RUN k8s/images/install.sh program . /opt/seedbed

FROM base
COPY --from=build /opt/seedbed /opt/seedbed
# The root file system is read-only: what libraries keep in a home goes to /tmp, where a volume is.
ENV PATH=/opt/seedbed/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Read by NVIDIA's container toolkit alone.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["seedbed", "learner"]
