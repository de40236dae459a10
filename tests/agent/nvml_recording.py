# ruff: noqa: N802 - the stand-in is called as the real library is
"""What NVIDIA's management library answered on a real machine, played back without one."""

import json
from types import SimpleNamespace
from typing import Any

FIELDS, SAMPLE, METRICS = "nvmlDeviceGetFieldValues", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"
#: As in nvml.h: not supported; function not found, for what the recording does not know.
NOT_SUPPORTED, NOT_FOUND = 3, 13
MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def key(name: str, args: list[Any], kwargs: dict[str, Any]) -> str:
    """A call as one line: ``nvmlDeviceGetClockInfo["#1",2]``."""
    return name + json.dumps([*args, *([kwargs] if kwargs else [])], separators=(",", ":"))


class Handle(int):
    """A recorded pointer: its number."""


class PlayedNvml:
    """A recording in the place of ``pynvml``: each call's answers in turn, the last of them for ever."""

    class NVMLError(Exception):
        """As pynvml raises it."""

        def __init__(self, value: int) -> None:
            super().__init__(f"NVML error {value}")
            self.value = value

    def __init__(self, recording: dict[str, Any]) -> None:
        self.recording = recording
        self._constants = recording["constants"]
        self._answers = {call: list(answers) for call, answers in recording["answers"].items()}
        self._sampled: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        if name in self._constants:
            return self._constants[name]
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._called(name, args, kwargs)

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(333)])

    def _called(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == FIELDS:
            return [self._field(_flat(args[0]), field) for field in args[1]]
        if name == METRICS:
            return self._fill(args[0])
        if name == SAMPLE:
            self._sampled[_flat(args[1])] = _flat(args[0])
        return self._decoded(self._next(key(name, [_flat(arg) for arg in args], kwargs)))

    def _next(self, call: str) -> Any:
        answers = self._answers.get(call, [{"error": NOT_FOUND}])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, dict) and "error" in answer:
            raise self.NVMLError(answer["error"])
        return answer

    def _field(self, gpu: str, field: Any) -> Any:
        try:
            found = dict(self._next(key(FIELDS, [gpu, field], {})))
        except self.NVMLError:
            return SimpleNamespace(nvmlReturn=NOT_SUPPORTED, latencyUsec=1, valueType=0, value=None)
        value = SimpleNamespace(**dict.fromkeys(MEMBERS, found.pop("value")))
        return SimpleNamespace(**found, value=value)

    def _fill(self, request: Any) -> None:
        slots = self._next(key(METRICS, [self._sampled[_flat(request.sample2)]], {}))
        known = {number: (code, value) for number, code, value in slots}
        for slot in request.metrics[: request.numMetrics]:
            slot.nvmlReturn, slot.value = known.get(slot.metricId, (NOT_SUPPORTED, 0.0))

    def _decoded(self, answer: Any) -> Any:
        if isinstance(answer, str) and answer.startswith("#"):
            return Handle(answer[1:])
        if isinstance(answer, list):
            return [self._decoded(one) for one in answer]
        return SimpleNamespace(**answer) if isinstance(answer, dict) else answer


def _flat(arg: Any) -> Any:
    return f"#{arg}" if isinstance(arg, Handle) else arg
