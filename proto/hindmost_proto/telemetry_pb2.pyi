from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentMessage(_message.Message):
    __slots__ = ("hello", "definitions", "batch", "clock", "goodbye", "relayed", "measured", "asked_ns")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    DEFINITIONS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    RELAYED_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    ASKED_NS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    definitions: Definitions
    batch: Batch
    clock: ClockSample
    goodbye: Goodbye
    relayed: Relayed
    measured: ClockSample
    asked_ns: int
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., definitions: _Optional[_Union[Definitions, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., clock: _Optional[_Union[ClockSample, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., relayed: _Optional[_Union[Relayed, _Mapping]] = ..., measured: _Optional[_Union[ClockSample, _Mapping]] = ..., asked_ns: _Optional[int] = ...) -> None: ...

class CollectorMessage(_message.Message):
    __slots__ = ("welcome", "ack", "need", "clock", "event_trace_request", "throttle", "stop", "returned")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NEED_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    EVENT_TRACE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    ack: Ack
    need: Need
    clock: ClockReply
    event_trace_request: EventTraceRequest
    throttle: Throttle
    stop: Stop
    returned: Returned
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., need: _Optional[_Union[Need, _Mapping]] = ..., clock: _Optional[_Union[ClockReply, _Mapping]] = ..., event_trace_request: _Optional[_Union[EventTraceRequest, _Mapping]] = ..., throttle: _Optional[_Union[Throttle, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., returned: _Optional[_Union[Returned, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "agent_id", "node", "boot_id", "version", "job_id", "monotonic_ns", "realtime_ns", "only_job", "only_node")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    MONOTONIC_NS_FIELD_NUMBER: _ClassVar[int]
    REALTIME_NS_FIELD_NUMBER: _ClassVar[int]
    ONLY_JOB_FIELD_NUMBER: _ClassVar[int]
    ONLY_NODE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    agent_id: str
    node: str
    boot_id: str
    version: str
    job_id: str
    monotonic_ns: int
    realtime_ns: int
    only_job: str
    only_node: bool
    def __init__(self, protocol: _Optional[int] = ..., agent_id: _Optional[str] = ..., node: _Optional[str] = ..., boot_id: _Optional[str] = ..., version: _Optional[str] = ..., job_id: _Optional[str] = ..., monotonic_ns: _Optional[int] = ..., realtime_ns: _Optional[int] = ..., only_job: _Optional[str] = ..., only_node: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "durable_sequence", "version", "received_sequence", "clock_with_batches", "short_columns")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    DURABLE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_WITH_BATCHES_FIELD_NUMBER: _ClassVar[int]
    SHORT_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    durable_sequence: int
    version: str
    received_sequence: int
    clock_with_batches: bool
    short_columns: bool
    def __init__(self, protocol: _Optional[int] = ..., durable_sequence: _Optional[int] = ..., version: _Optional[str] = ..., received_sequence: _Optional[int] = ..., clock_with_batches: _Optional[bool] = ..., short_columns: _Optional[bool] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Definitions(_message.Message):
    __slots__ = ("schemas", "ranks", "communicators")
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATORS_FIELD_NUMBER: _ClassVar[int]
    schemas: _containers.RepeatedCompositeFieldContainer[Schema]
    ranks: _containers.RepeatedCompositeFieldContainer[Rank]
    communicators: _containers.RepeatedCompositeFieldContainer[Communicator]
    def __init__(self, schemas: _Optional[_Iterable[_Union[Schema, _Mapping]]] = ..., ranks: _Optional[_Iterable[_Union[Rank, _Mapping]]] = ..., communicators: _Optional[_Iterable[_Union[Communicator, _Mapping]]] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("ref", "series")
    REF_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    ref: int
    series: _containers.RepeatedCompositeFieldContainer[Series]
    def __init__(self, ref: _Optional[int] = ..., series: _Optional[_Iterable[_Union[Series, _Mapping]]] = ...) -> None: ...

class Series(_message.Message):
    __slots__ = ("name", "kind", "help", "labels")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        GAUGE: _ClassVar[Series.Kind]
        COUNTER: _ClassVar[Series.Kind]
    GAUGE: Series.Kind
    COUNTER: Series.Kind
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HELP_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: Series.Kind
    help: str
    labels: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[Series.Kind, str]] = ..., help: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Rank(_message.Message):
    __slots__ = ("ref", "job_id", "rank", "world_size", "local_rank", "node", "pid", "process_start_ticks", "gpu_uuid", "framework", "command", "user", "pod")
    REF_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_START_TICKS_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    ref: int
    job_id: str
    rank: int
    world_size: int
    local_rank: int
    node: str
    pid: int
    process_start_ticks: int
    gpu_uuid: str
    framework: str
    command: str
    user: str
    pod: Pod
    def __init__(self, ref: _Optional[int] = ..., job_id: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., local_rank: _Optional[int] = ..., node: _Optional[str] = ..., pid: _Optional[int] = ..., process_start_ticks: _Optional[int] = ..., gpu_uuid: _Optional[str] = ..., framework: _Optional[str] = ..., command: _Optional[str] = ..., user: _Optional[str] = ..., pod: _Optional[_Union[Pod, _Mapping]] = ...) -> None: ...

class Pod(_message.Message):
    __slots__ = ("namespace", "name", "uid", "workload", "queue")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid: str
    workload: str
    queue: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ..., workload: _Optional[str] = ..., queue: _Optional[str] = ...) -> None: ...

class Communicator(_message.Message):
    __slots__ = ("ref", "rank", "id", "size", "rank_in", "name")
    REF_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RANK_IN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ref: int
    rank: int
    id: int
    size: int
    rank_in: int
    name: str
    def __init__(self, ref: _Optional[int] = ..., rank: _Optional[int] = ..., id: _Optional[int] = ..., size: _Optional[int] = ..., rank_in: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("sequence", "metrics", "steps", "collectives", "intervals", "rank_states", "attachments")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVES_FIELD_NUMBER: _ClassVar[int]
    INTERVALS_FIELD_NUMBER: _ClassVar[int]
    RANK_STATES_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    metrics: _containers.RepeatedCompositeFieldContainer[MetricBlock]
    steps: _containers.RepeatedCompositeFieldContainer[StepBlock]
    collectives: _containers.RepeatedCompositeFieldContainer[CollectiveBlock]
    intervals: _containers.RepeatedCompositeFieldContainer[IntervalBlock]
    rank_states: _containers.RepeatedCompositeFieldContainer[RankState]
    attachments: _containers.RepeatedCompositeFieldContainer[Attachment]
    def __init__(self, sequence: _Optional[int] = ..., metrics: _Optional[_Iterable[_Union[MetricBlock, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[StepBlock, _Mapping]]] = ..., collectives: _Optional[_Iterable[_Union[CollectiveBlock, _Mapping]]] = ..., intervals: _Optional[_Iterable[_Union[IntervalBlock, _Mapping]]] = ..., rank_states: _Optional[_Iterable[_Union[RankState, _Mapping]]] = ..., attachments: _Optional[_Iterable[_Union[Attachment, _Mapping]]] = ...) -> None: ...

class MetricBlock(_message.Message):
    __slots__ = ("schema", "time_ns", "values")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    schema: int
    time_ns: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, schema: _Optional[int] = ..., time_ns: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class StepBlock(_message.Message):
    __slots__ = ("rank", "step", "start_ns", "duration_ns", "work", "phases", "kind", "ranks", "rows")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    step: _containers.RepeatedScalarFieldContainer[int]
    start_ns: _containers.RepeatedScalarFieldContainer[int]
    duration_ns: _containers.RepeatedScalarFieldContainer[int]
    work: _containers.RepeatedScalarFieldContainer[int]
    phases: _containers.RepeatedCompositeFieldContainer[PhaseColumn]
    kind: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rank: _Optional[int] = ..., step: _Optional[_Iterable[int]] = ..., start_ns: _Optional[_Iterable[int]] = ..., duration_ns: _Optional[_Iterable[int]] = ..., work: _Optional[_Iterable[int]] = ..., phases: _Optional[_Iterable[_Union[PhaseColumn, _Mapping]]] = ..., kind: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., rows: _Optional[_Iterable[int]] = ...) -> None: ...

class PhaseColumn(_message.Message):
    __slots__ = ("name", "ns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NS_FIELD_NUMBER: _ClassVar[int]
    name: str
    ns: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., ns: _Optional[_Iterable[int]] = ...) -> None: ...

class CollectiveBlock(_message.Message):
    __slots__ = ("rank", "op_names", "op", "comm", "seq", "start_ns", "duration_ns", "bytes", "flags", "peer", "self_ns", "cpu_ns", "runqueue_ns", "ranks", "rows", "enqueue_ns")
    RANK_FIELD_NUMBER: _ClassVar[int]
    OP_NAMES_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    COMM_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    SELF_NS_FIELD_NUMBER: _ClassVar[int]
    CPU_NS_FIELD_NUMBER: _ClassVar[int]
    RUNQUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    op_names: _containers.RepeatedScalarFieldContainer[str]
    op: _containers.RepeatedScalarFieldContainer[int]
    comm: _containers.RepeatedScalarFieldContainer[int]
    seq: _containers.RepeatedScalarFieldContainer[int]
    start_ns: _containers.RepeatedScalarFieldContainer[int]
    duration_ns: _containers.RepeatedScalarFieldContainer[int]
    bytes: _containers.RepeatedScalarFieldContainer[int]
    flags: _containers.RepeatedScalarFieldContainer[int]
    peer: _containers.RepeatedScalarFieldContainer[int]
    self_ns: _containers.RepeatedScalarFieldContainer[int]
    cpu_ns: _containers.RepeatedScalarFieldContainer[int]
    runqueue_ns: _containers.RepeatedScalarFieldContainer[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    enqueue_ns: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rank: _Optional[int] = ..., op_names: _Optional[_Iterable[str]] = ..., op: _Optional[_Iterable[int]] = ..., comm: _Optional[_Iterable[int]] = ..., seq: _Optional[_Iterable[int]] = ..., start_ns: _Optional[_Iterable[int]] = ..., duration_ns: _Optional[_Iterable[int]] = ..., bytes: _Optional[_Iterable[int]] = ..., flags: _Optional[_Iterable[int]] = ..., peer: _Optional[_Iterable[int]] = ..., self_ns: _Optional[_Iterable[int]] = ..., cpu_ns: _Optional[_Iterable[int]] = ..., runqueue_ns: _Optional[_Iterable[int]] = ..., ranks: _Optional[_Iterable[int]] = ..., rows: _Optional[_Iterable[int]] = ..., enqueue_ns: _Optional[_Iterable[int]] = ...) -> None: ...

class IntervalBlock(_message.Message):
    __slots__ = ("rank", "names", "name", "start_ns", "duration_ns", "value", "ranks", "rows")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    names: _containers.RepeatedScalarFieldContainer[str]
    name: _containers.RepeatedScalarFieldContainer[int]
    start_ns: _containers.RepeatedScalarFieldContainer[int]
    duration_ns: _containers.RepeatedScalarFieldContainer[int]
    value: _containers.RepeatedScalarFieldContainer[float]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rank: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., name: _Optional[_Iterable[int]] = ..., start_ns: _Optional[_Iterable[int]] = ..., duration_ns: _Optional[_Iterable[int]] = ..., value: _Optional[_Iterable[float]] = ..., ranks: _Optional[_Iterable[int]] = ..., rows: _Optional[_Iterable[int]] = ...) -> None: ...

class RankState(_message.Message):
    __slots__ = ("rank", "time_ns", "life", "events_total", "events_lost_total", "in_flight", "ended_ns", "exit_status", "last_words")
    class Life(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RUNNING: _ClassVar[RankState.Life]
        FINISHED: _ClassVar[RankState.Life]
        VANISHED: _ClassVar[RankState.Life]
    RUNNING: RankState.Life
    FINISHED: RankState.Life
    VANISHED: RankState.Life
    RANK_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_LOST_TOTAL_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ENDED_NS_FIELD_NUMBER: _ClassVar[int]
    EXIT_STATUS_FIELD_NUMBER: _ClassVar[int]
    LAST_WORDS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    time_ns: int
    life: RankState.Life
    events_total: int
    events_lost_total: int
    in_flight: _containers.RepeatedCompositeFieldContainer[InFlight]
    ended_ns: int
    exit_status: int
    last_words: str
    def __init__(self, rank: _Optional[int] = ..., time_ns: _Optional[int] = ..., life: _Optional[_Union[RankState.Life, str]] = ..., events_total: _Optional[int] = ..., events_lost_total: _Optional[int] = ..., in_flight: _Optional[_Iterable[_Union[InFlight, _Mapping]]] = ..., ended_ns: _Optional[int] = ..., exit_status: _Optional[int] = ..., last_words: _Optional[str] = ...) -> None: ...

class InFlight(_message.Message):
    __slots__ = ("kind", "name", "comm", "seq", "start_ns", "peer", "flags")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMM_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    comm: int
    seq: int
    start_ns: int
    peer: int
    flags: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., comm: _Optional[int] = ..., seq: _Optional[int] = ..., start_ns: _Optional[int] = ..., peer: _Optional[int] = ..., flags: _Optional[int] = ...) -> None: ...

class Attachment(_message.Message):
    __slots__ = ("rank", "time_ns", "name", "content")
    RANK_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    time_ns: int
    name: str
    content: bytes
    def __init__(self, rank: _Optional[int] = ..., time_ns: _Optional[int] = ..., name: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("durable_sequence",)
    DURABLE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    durable_sequence: int
    def __init__(self, durable_sequence: _Optional[int] = ...) -> None: ...

class Need(_message.Message):
    __slots__ = ("refs",)
    REFS_FIELD_NUMBER: _ClassVar[int]
    refs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, refs: _Optional[_Iterable[int]] = ...) -> None: ...

class ClockSample(_message.Message):
    __slots__ = ("sent_ns", "received_ns", "replied_ns", "returned_ns")
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_NS_FIELD_NUMBER: _ClassVar[int]
    REPLIED_NS_FIELD_NUMBER: _ClassVar[int]
    RETURNED_NS_FIELD_NUMBER: _ClassVar[int]
    sent_ns: int
    received_ns: int
    replied_ns: int
    returned_ns: int
    def __init__(self, sent_ns: _Optional[int] = ..., received_ns: _Optional[int] = ..., replied_ns: _Optional[int] = ..., returned_ns: _Optional[int] = ...) -> None: ...

class ClockReply(_message.Message):
    __slots__ = ("sent_ns", "received_ns", "replied_ns", "durable_sequence")
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_NS_FIELD_NUMBER: _ClassVar[int]
    REPLIED_NS_FIELD_NUMBER: _ClassVar[int]
    DURABLE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sent_ns: int
    received_ns: int
    replied_ns: int
    durable_sequence: int
    def __init__(self, sent_ns: _Optional[int] = ..., received_ns: _Optional[int] = ..., replied_ns: _Optional[int] = ..., durable_sequence: _Optional[int] = ...) -> None: ...

class EventTraceRequest(_message.Message):
    __slots__ = ("job_id", "ranks", "first_step", "last_step", "stacks")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    first_step: int
    last_step: int
    stacks: bool
    def __init__(self, job_id: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., first_step: _Optional[int] = ..., last_step: _Optional[int] = ..., stacks: _Optional[bool] = ...) -> None: ...

class Throttle(_message.Message):
    __slots__ = ("metrics", "batch_ns")
    METRICS_FIELD_NUMBER: _ClassVar[int]
    BATCH_NS_FIELD_NUMBER: _ClassVar[int]
    metrics: bool
    batch_ns: int
    def __init__(self, metrics: _Optional[bool] = ..., batch_ns: _Optional[int] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Relayed(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[FromAgent]
    def __init__(self, messages: _Optional[_Iterable[_Union[FromAgent, _Mapping]]] = ...) -> None: ...

class FromAgent(_message.Message):
    __slots__ = ("stream", "message", "ended")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    stream: int
    message: AgentMessage
    ended: bool
    def __init__(self, stream: _Optional[int] = ..., message: _Optional[_Union[AgentMessage, _Mapping]] = ..., ended: _Optional[bool] = ...) -> None: ...

class Returned(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ToAgent]
    def __init__(self, messages: _Optional[_Iterable[_Union[ToAgent, _Mapping]]] = ...) -> None: ...

class ToAgent(_message.Message):
    __slots__ = ("stream", "message", "end")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stream: int
    message: CollectorMessage
    end: End
    def __init__(self, stream: _Optional[int] = ..., message: _Optional[_Union[CollectorMessage, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
