"""The guide's probe is one that works."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hindmost import probes, ring
from hindmost.identity import Identity
from hindmost.probes import guard
from hindmost.recorder import STEP, Recorder

GUIDE = (Path(__file__).parents[2] / "docs/how-to/extend.md").read_text(encoding="utf-8")


def test_each_batch_of_the_guides_probe_is_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches are two steps, and the ring names the framework; it is found by its file's name."""
    (code,) = re.findall(r"```python\n# agent/hindmost/probes/(drill\.py\n.*?)```", GUIDE, re.DOTALL)
    folder = tmp_path / "probes"
    folder.mkdir()
    (folder / "drill.py").write_text(code.partition("\n")[2], encoding="utf-8")
    monkeypatch.setattr(probes, "__path__", [str(folder), *probes.__path__])
    drill: Any = ModuleType("drill")
    drill.Trainer = type("Trainer", (), {"fit_batch": lambda self, batch: batch + 1})
    monkeypatch.setitem(sys.modules, "drill", drill)
    writer = ring.Writer.create(tmp_path, Identity("job", 0, 1, 0, "node", "python", "train.py"), "py", 256)
    recorder = Recorder(writer)
    probes.install(recorder)
    try:
        trainer = drill.Trainer()
        assert [trainer.fit_batch(1), trainer.fit_batch(2)] == [2, 3]
        recorder.flush()
        reader = ring.Reader(writer.path)
        assert [event.seq for event in reader.poll() if event.kind == STEP] == [0, 1]
        assert reader.header.framework == "drill"
    finally:
        guard.remove_all()
        writer.close()
