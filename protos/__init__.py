"""What actors and the learner share: the wire contract, specs, tensors, errors and option parsing."""

PROTOCOL_VERSION = 1
"""Version of the message order and contents in inference.proto; `Open.protocol_version`."""
