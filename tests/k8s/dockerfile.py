"""Dockerfiles as lists of instructions."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.k8s.rendering import K8S


class Instruction(NamedTuple):
    """One line, continuations joined: `COPY . .` is ("COPY", ". .")."""

    name: str
    rest: str


def read(role: str) -> list[Instruction]:
    """The instructions of an image's Dockerfile, without comments."""
    text = (K8S / "images" / f"{role}.Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [
        Instruction(*line.split(maxsplit=1))
        for line in "\n".join(lines).replace("\\\n", " ").split("\n")
    ]


def last_stage(role: str) -> list[Instruction]:
    """What the image itself is made of, without the stages that it copies from."""
    instructions = read(role)
    begins = [index for index, each in enumerate(instructions) if each.name == "FROM"]
    return instructions[begins[-1] :]


def environment(role: str) -> Mapping[str, str]:
    """The variables that the image sets, but for PATH."""
    settings = " ".join(each.rest for each in last_stage(role) if each.name == "ENV")
    return {name: value for name, value in re.findall(r"(\w+)=(\S+)", settings) if name != "PATH"}


def entrypoint(role: str) -> Sequence[str]:
    """The image's program, and the words that come before a container's arguments."""
    (words,) = [json.loads(each.rest) for each in last_stage(role) if each.name == "ENTRYPOINT"]
    return [str(word) for word in words]
