"""What actors and the learner share: the wire contract, specs, tensors, errors and option parsing."""

PROTOCOL_VERSION = 1
"""Version of the message order and contents in inference.proto; `Open.protocol_version`."""

PROTOCOL_MINOR = 1
"""Goes up with each field that is added, within one `PROTOCOL_VERSION`; `Open.protocol_minor`."""
