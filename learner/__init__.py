"""The learner: owns the policy, serves it to actors, and trains it."""

import os

import protos  # noqa: F401 - before gRPC, whose settings it has

BLAS_THREADS = "OPENBLAS_NUM_THREADS"

# Before NumPy is imported, which reads it only then: one thread for a product of matrices. With two, the
# second takes as much CPU time and saves nearly nothing: products are small, and actors and updates have
# use for the core (docs/decisions/0026-numpy.md). What the user has set stays.
SET_HERE = frozenset() if BLAS_THREADS in os.environ else frozenset({BLAS_THREADS})
"""Environment variables that are for this process, and not for those that it starts."""
os.environ.setdefault(BLAS_THREADS, "1")
