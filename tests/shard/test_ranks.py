"""Ranks as processes: the numbers, and what becomes of a run when one of them dies or hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from attnport.engines.child_process import child_environment, python_module
from attnport.engines.sharded.sharded_engine import ShardedEngine
from attnport.errors import EngineUnavailableError, InputError, UsageError
from attnport.export.bundle import Bundle
from attnport.export.shard.shard_bundle import shard_bundle
from attnport.export.shard.sharded import ShardedBundle
from attnport.validate.parity import check_parity

TIMEOUT_SECONDS = 2.0
SCRIPT = Path(__file__).parent / "torchrun_script.py"


def test_two_ranks_and_one_that_dies(block: Bundle, block_in_two: Path) -> None:
    with _engine(block_in_two, timeout_seconds=60.0) as engine:
        _require_parity(engine, block)
        feeds = dict(block.load_case("min").inputs)
        with pytest.raises(InputError, match="missing: mask"):
            engine.run({"x": feeds["x"]})
        engine.run(feeds)  # the ranks go on
        assert not _reachable(engine)
        processes = _processes(engine)
        started = time.monotonic()
        timer = threading.Timer(0.1, os.kill, (processes[1], signal.SIGKILL))
        timer.start()
        with pytest.raises(EngineUnavailableError, match=r"2 ranks was ended, since rank \d"):
            _run_on(engine, feeds)
        timer.join()
        assert time.monotonic() - started < 30.0
        _require_gone(processes)
        with pytest.raises(UsageError, match="was closed"):
            engine.run(feeds)


def test_four_ranks_and_one_that_stops(half_block: Bundle, tmp_path: Path) -> None:
    shard_bundle(half_block, 4, tmp_path / "four")
    with _engine(tmp_path / "four", timeout_seconds=TIMEOUT_SECONDS) as engine:
        _require_parity(engine, half_block)
        processes = _processes(engine)
        os.kill(processes[2], signal.SIGSTOP)
        started = time.monotonic()
        assert engine.ranks is not None
        engine.ranks.send(2, {"x": np.zeros(10_000_000)})  # more than a socket holds
        with pytest.raises(EngineUnavailableError, match=r"did not answer within 2 s"):
            engine.run(half_block.load_case("min").inputs)
        assert TIMEOUT_SECONDS / 2 < time.monotonic() - started < 15.0
        _require_gone(processes)


def test_ranks_end_with_the_process_that_asked(block_in_two: Path) -> None:
    code = (
        "import sys, time\n"
        "from attnport.engines.sharded.sharded_engine import ShardedEngine\n"
        "from attnport.export.shard.sharded import ShardedBundle\n"
        "engine = ShardedEngine(ShardedBundle.load(sys.argv[1]), threads=1)\n"
        "print(*engine.ranks.pids.values(), flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(block_in_two)],
        stdout=subprocess.PIPE, text=True, env=child_environment(),
    )  # fmt: skip
    assert parent.stdout is not None
    with parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
    _require_gone(pids)


def test_a_rank_that_cannot_start(block_in_two: Path, tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(block_in_two, tmp_path / "copy"))
    sharded = ShardedBundle.load(folder)
    (folder / "rank1" / "rank.json").unlink()
    with pytest.raises(EngineUnavailableError, match="rank 1 of 2 is missing"):
        ShardedEngine(sharded, threads=1, start_seconds=60.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_timeouts_are_above_0(block_in_two: Path, seconds: float) -> None:
    with pytest.raises(UsageError, match="give more than 0"):
        ShardedEngine(ShardedBundle.load(block_in_two), timeout_seconds=seconds)


def test_torchrun_with_another_number_of_processes(block_in_two: Path, tmp_path: Path) -> None:
    said = _torchrun(1, block_in_two, tmp_path)
    assert said == ["UsageError: is split over 2 ranks, and 1 processes were started"]


def test_torchrun_where_the_others_see_that_one_hangs(block_in_two: Path, tmp_path: Path) -> None:
    """Without our parent: the rank that waits ends by itself, with a sentence."""
    said = _torchrun(2, block_in_two, tmp_path, "hang")
    assert said == ["EngineUnavailableError: another rank died or did not answer within 2 s"]


def _torchrun(count: int, folder: Path, place: Path, what: str = "") -> list[str]:
    """Runs a script of a user's with torchrun; gives what its ranks wrote to files."""
    command = [
        *python_module("torch.distributed.run"), f"--nproc-per-node={count}", "--nnodes=1",
        "--rdzv-backend=c10d", f"--rdzv-endpoint={place / 'rendezvous'}",
        "--rdzv-conf=store_type=file", str(SCRIPT), str(folder), str(place), what,
    ]  # fmt: skip
    environment = child_environment() | {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode != 0
    return [file.read_text("utf-8") for file in sorted(place.glob("said*"))]


@contextlib.contextmanager
def _engine(folder: Path, *, timeout_seconds: float) -> Iterator[ShardedEngine]:
    sharded = ShardedBundle.load(folder)
    with ShardedEngine(sharded, threads=1, timeout_seconds=timeout_seconds) as engine:
        yield engine


def _require_parity(engine: ShardedEngine, bundle: Bundle) -> None:
    statuses = []
    for record in bundle.manifest.cases:
        for finding in check_parity(engine, bundle, record.name):
            assert finding.status != "failed", (record.name, finding.message)
            statuses.append(finding.status)
    assert "passed" in statuses
    inputs = bundle.load_case(bundle.manifest.cases[-1].name).inputs
    first, second = (engine.run(inputs)["output"] for _ in range(2))
    assert np.array_equal(first, second, equal_nan=True)


def _run_on(engine: ShardedEngine, feeds: Mapping[str, np.ndarray]) -> None:
    for _ in range(100_000):
        engine.run(feeds)


def _processes(engine: ShardedEngine) -> list[int]:
    assert engine.ranks is not None
    assert len(engine.ranks.pids) == engine.sharded.count
    return [pid for _, pid in sorted(engine.ranks.pids.items())]


def _reachable(engine: ShardedEngine) -> list[str]:
    """Sockets of the ranks that listen on more than the loopback interface."""
    inodes = set()
    for pid in _processes(engine):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(link)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text("ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                listening.append(words[1].partition(":")[0])
    assert listening
    return [address for address in listening if address != "0100007F"]


def _require_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20.0
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline, [pid for pid in pids if _runs(pid)]
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    """A process that ended, and that nobody waited for yet, does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
