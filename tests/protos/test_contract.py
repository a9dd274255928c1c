"""The contract: generated code that is up to date, every RPC served, every field explained."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from learner.serving.service import METHOD
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc

ROOT = Path(__file__).parents[2]
PROTO = "protos/inference.proto"
GENERATED = ("inference_pb2.py", "inference_pb2.pyi", "inference_pb2_grpc.py")


def protoc(*arguments: str) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *arguments, PROTO]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make protos` would write to, and the file's descriptor with its comments."""
    folder = tmp_path_factory.mktemp("generated")
    protoc(
        *(f"--{kind}={folder}" for kind in ("python_out", "pyi_out", "grpc_python_out")),
        "--include_source_info",
        f"--descriptor_set_out={folder}/descriptor",
    )
    return folder


@pytest.mark.parametrize("name", GENERATED)
def test_the_committed_code_is_what_the_contract_generates(generated: Path, name: str) -> None:
    committed = (ROOT / "protos" / name).read_bytes()
    assert committed == (generated / "protos" / name).read_bytes(), "run `make protos`"


def test_the_service_serves_what_the_contract_has() -> None:
    (method,) = pb.DESCRIPTOR.services_by_name["Inference"].methods
    assert method.full_name == "seedbed.v1.Inference.Act"
    assert METHOD == "/seedbed.v1.Inference/Act"
    served = inference_pb2_grpc.InferenceStub(Channel())
    assert served.Act == METHOD


class Channel:
    """Tells which method a generated client calls."""

    def stream_stream(self, method: str, **_: object) -> str:
        return method


def uncommented(file: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    """Names of the services, RPCs, messages, fields, enums and values that no comment explains.

    A field whose type is a message or enum of this file is explained there.
    """
    paths = {
        tuple(location.path)
        for location in file.source_code_info.location
        if location.leading_comments.strip() or location.trailing_comments.strip()
    }
    for m, message in enumerate(file.message_type):
        if (4, m) not in paths:
            yield message.name
        for f, field in enumerate(message.field):
            if (4, m, 2, f) not in paths and not field.type_name:
                yield f"{message.name}.{field.name}"
    for e, enum in enumerate(file.enum_type):
        if (5, e) not in paths:
            yield enum.name
        for v, value in enumerate(enum.value):
            # The value 0 of an enum of bits is no bit.
            if (5, e, 2, v) not in paths and value.name != "STEP_FLAG_NONE":
                yield f"{enum.name}.{value.name}"
    for s, service in enumerate(file.service):
        if (6, s) not in paths:
            yield service.name
        for r, rpc in enumerate(service.method):
            if (6, s, 2, r) not in paths:
                yield f"{service.name}.{rpc.name}"


def test_everything_in_the_contract_has_a_comment(generated: Path) -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString((generated / "descriptor").read_bytes())
    assert list(uncommented(files.file[0])) == []
