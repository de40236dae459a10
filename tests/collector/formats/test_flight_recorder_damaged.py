"""Flight Recorder dumps that are damaged are set aside, and such as are hostile cannot run anything."""

import json
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from hindmost.errors import UsageError
from hindmost_collector.formats.flight_recorder import MAX_DUMP_BYTES, HostileError, plain_pickle
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge

from tests.collector.foreign_files import HUNG, dump_of, of_group, write
from tests.recordings import unpacked


def test_a_torn_dump_among_many_is_set_aside_and_said(tmp_path: Path) -> None:
    """The rest is judged: who was seen not to come is the culprit, not the one whose dump cannot be read."""
    of_group(tmp_path, "[0, 1, 2, 3]", (0, 2, 3), r1=4)
    whole = (tmp_path / "nccl_trace_rank_0").read_bytes()
    (tmp_path / "nccl_trace_rank_0").write_bytes(whole[: len(whole) // 2])
    report = judge(load(tmp_path))
    assert (report.verdicts[0].kind, report.verdicts[0].ranks) == ("hang", (1,))
    assert report.verdicts[0].confidence == pytest.approx(0.8)
    assert any(note.startswith("Left out: nccl_trace_rank_0: damaged, not read: ") for note in report.notes)


@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_the_hung_rank_s_own_dump_may_be_the_torn_one(tmp_path: Path, kind: str) -> None:
    """Then it is named as one that left none."""
    of_group(tmp_path, "[0, 1, 2, 3]", (0, 2, 3))
    dump = pickle.dumps(dump_of(4, 4)) if kind == "pickle" else json.dumps(dump_of(4, 4)).encode()
    (tmp_path / "nccl_trace_rank_1").write_bytes(dump[:-60])
    assert judge(load(tmp_path)).verdicts[0].ranks == (1,)


def test_a_missing_dump_next_to_profiles_accuses_no_other_rank(tmp_path: Path) -> None:
    """A rank whose dump is torn is in no known operation: the rank whose dump says so is the culprit."""
    folder = unpacked(HUNG, tmp_path)
    dump = folder / "nccl_trace_rank_0"
    dump.write_bytes(dump.read_bytes()[:3000])
    verdict = judge(load(folder)).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (2, 3))


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize(
    "hostile",
    [
        pickle.dumps({"pg_config": _Bomb()}),
        pickle.dumps({"pg_config": _Bomb()}, protocol=0),
        b"\x80\x02}X\x09\x00\x00\x00pg_configr\xff\xff\xff\xff.",  # a memo of 2**32 places: 64 GiB
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00pg_config.",  # a string of a terabyte
        pickle.dumps(dump_of(2, 1))[:-40],
        b"\x80\x02X\x09\x00\x00\x00pg_config.",
    ],
    ids=["calls", "calls in protocol 0", "memo bomb", "length bomb", "torn", "no dict"],
)
def test_a_hostile_dump_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: bytes) -> None:
    """Nothing in a dump is run, nothing it claims is believed; the error names the file."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(hostile)
    with pytest.raises(UsageError, match=r"nccl_trace_rank_0|hindmost reads") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "name",
    "GLOBAL STACK_GLOBAL INST OBJ REDUCE BUILD NEWOBJ NEWOBJ_EX PERSID BINPERSID EXT1 EXT2 EXT4 NEXT_BUFFER".split(),
)
def test_no_instruction_that_names_or_calls_is_taken(name: str) -> None:
    """Wherever it stands, it is refused before any instruction runs."""
    (one,) = (one for one in pickletools.opcodes if one.name == name)
    values = pickle.dumps([1, 2.5, None, (3, "a")], protocol=2)[:-1]
    with pytest.raises(HostileError, match=f"instruction {name} at byte {len(values)},"):
        plain_pickle(values + one.code.encode("latin-1") + b"os\nsystem\n.")


def test_a_dump_that_cannot_be_one_is_not_read(tmp_path: Path) -> None:
    """A file of a size no recorder writes is refused by its size."""
    with (tmp_path / "nccl_trace_rank_0").open("wb") as out:
        out.write(pickle.dumps(dump_of(1, 1)))
        out.truncate(MAX_DUMP_BYTES + 1)
    with pytest.raises(UsageError, match="larger than any"):
        load(tmp_path)


def test_a_hostile_dump_among_others_is_named_and_not_left_out(tmp_path: Path) -> None:
    """A report on the rest would be one on fewer ranks, without a reason."""
    write(tmp_path, 0, dump_of(2, 1))
    (tmp_path / "nccl_trace_rank_1").write_bytes(pickle.dumps({"version": "2.10", "entries": [_Bomb()]}))
    with pytest.raises(UsageError, match=r"nccl_trace_rank_1: hostile, not read: pickle instruction \w+ at"):
        load(tmp_path)


def test_an_empty_file_is_reported_where_others_of_its_name_are_not(tmp_path: Path) -> None:
    """An empty dump is not passed over in silence; what has another name is none of them."""
    for rank in (0, 1):
        write(tmp_path, rank, dump_of(2, 2 - rank))
    (tmp_path / "nccl_trace_rank_2").touch()
    (tmp_path / "manifest.json").write_text("{}")
    (note,) = [note for note in load(tmp_path).notes if "left out" in note]
    assert note == "nccl_trace_rank_2: left out; not the format of the other files of that name."


@pytest.mark.parametrize("garbled", ["an opcode", "utf-8", "zeros", "no list"])
def test_a_garbled_dump_is_set_aside_too(tmp_path: Path, garbled: str) -> None:
    """What a disk did to it is no attack."""
    of_group(tmp_path, "[0, 1, 2, 3]", (0, 2, 3), r1=4)
    file = tmp_path / "nccl_trace_rank_0"
    data = file.read_bytes()
    half = len(data) // 2
    made = {
        "an opcode": data[:half] + b"\xa5" + data[half + 1 :],
        "utf-8": data.replace(b"backward", b"back\xd8ard"),
        "zeros": data[:half] + b"\0" * (len(data) - half),
        "no list": pickle.dumps({"pg_config": {}, "entries": "none"}, protocol=2),
    }
    file.write_bytes(made[garbled])
    report = judge(load(tmp_path))
    assert report.verdicts[0].ranks == (1,)
    assert any(note.startswith("Left out: nccl_trace_rank_0: ") for note in report.notes)


def test_dumps_that_are_all_damaged_leave_the_rest(tmp_path: Path) -> None:
    """Profiles and stacks next to them are judged, and the report says which files are lost."""
    for rank in range(2):
        write(tmp_path, rank, dump_of(2, 1))
        file = tmp_path / f"nccl_trace_rank_{rank}"
        file.write_bytes(file.read_bytes()[:-40])
        row = f"ab,{rank},0,AllReduce,8,RING,LL,1,1,2,3,4,5\n"
        (tmp_path / f"prof.{rank}.csv").write_text(row)
    run = load(tmp_path)
    assert run.job.source == "NCCL profiler CSV (prof.PID.csv)"
    (note,) = [note for note in run.notes if note.startswith("Left out: nccl_trace_rank_0: damaged")]
    assert note.endswith("; so is nccl_trace_rank_1.")
