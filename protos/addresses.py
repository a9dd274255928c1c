"""Addresses on a network, as options and environment variables say them."""

from pathlib import Path


def host_and_port(address: str) -> tuple[str, int] | None:
    """The parts of HOST:PORT; of IPv6, [ADDRESS]:PORT, without the brackets. None of anything else."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def chosen_port(address: str, port: int) -> str:
    """What the log adds to an address that is listened on: the port, where the system has chosen it."""
    return f" (port {port})" if address.endswith(":0") else ""


def located(address: str) -> str:
    """`address`, with the PATH of unix:PATH made absolute: it is the same in every current directory."""
    kind, _, path = address.partition(":")
    return f"unix:{Path(path).absolute()}" if kind == "unix" else address
