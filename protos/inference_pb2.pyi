from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ValueKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VALUE_KIND_UNSPECIFIED: _ClassVar[ValueKind]
    NUMERIC: _ClassVar[ValueKind]
    CATEGORICAL: _ClassVar[ValueKind]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    TRAIN: _ClassVar[Mode]
    EVALUATE: _ClassVar[Mode]

class StepFlag(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_FLAG_NONE: _ClassVar[StepFlag]
    TERMINATED: _ClassVar[StepFlag]
    TRUNCATED: _ClassVar[StepFlag]
    FIRST: _ClassVar[StepFlag]
VALUE_KIND_UNSPECIFIED: ValueKind
NUMERIC: ValueKind
CATEGORICAL: ValueKind
MODE_UNSPECIFIED: Mode
TRAIN: Mode
EVALUATE: Mode
STEP_FLAG_NONE: StepFlag
TERMINATED: StepFlag
TRUNCATED: StepFlag
FIRST: StepFlag

class ClientMessage(_message.Message):
    __slots__ = ("open", "step", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: Open
    step: Step
    close: Close
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("opened", "actions")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    actions: Actions
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., actions: _Optional[_Union[Actions, _Mapping]] = ...) -> None: ...

class ArraySpec(_message.Message):
    __slots__ = ("name", "shape", "dtype", "kind", "minimum", "maximum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    kind: ValueKind
    minimum: bytes
    maximum: bytes
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., kind: _Optional[_Union[ValueKind, str]] = ..., minimum: _Optional[bytes] = ..., maximum: _Optional[bytes] = ...) -> None: ...

class EnvironmentSpec(_message.Message):
    __slots__ = ("observation", "action")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    observation: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    action: ArraySpec
    def __init__(self, observation: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ..., action: _Optional[_Union[ArraySpec, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol_version", "num_environments", "spec", "mode", "resume_token", "client", "client_version", "protocol_minor")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MINOR_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    num_environments: int
    spec: EnvironmentSpec
    mode: Mode
    resume_token: bytes
    client: str
    client_version: str
    protocol_minor: int
    def __init__(self, protocol_version: _Optional[int] = ..., num_environments: _Optional[int] = ..., spec: _Optional[_Union[EnvironmentSpec, _Mapping]] = ..., mode: _Optional[_Union[Mode, str]] = ..., resume_token: _Optional[bytes] = ..., client: _Optional[str] = ..., client_version: _Optional[str] = ..., protocol_minor: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session_token", "resumed", "lease_ttl_ms", "slots", "policy_version")
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    session_token: bytes
    resumed: bool
    lease_ttl_ms: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    policy_version: int
    def __init__(self, session_token: _Optional[bytes] = ..., resumed: bool = ..., lease_ttl_ms: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., policy_version: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("sequence", "environment", "reward", "flags", "observation")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    environment: bytes
    reward: bytes
    flags: bytes
    observation: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, sequence: _Optional[int] = ..., environment: _Optional[bytes] = ..., reward: _Optional[bytes] = ..., flags: _Optional[bytes] = ..., observation: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Actions(_message.Message):
    __slots__ = ("sequence", "action", "policy_version")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    action: bytes
    policy_version: int
    def __init__(self, sequence: _Optional[int] = ..., action: _Optional[bytes] = ..., policy_version: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...
