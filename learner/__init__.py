"""The learner: owns the policy, serves it to actors, and trains it."""

import protos  # noqa: F401 - before gRPC, whose settings it has
