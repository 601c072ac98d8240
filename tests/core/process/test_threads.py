"""Threads of torch: as many as the process may use, and none of them spins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.process import threads
from quintain.process.threads import cpu_quota, half_the_threads, set_threads

V1 = "4:memory:/other\n3:cpu,cpuacct:/jobs/one\n"
JOBS = "cpu,cpuacct/jobs"


@pytest.mark.parametrize(
    "cgroup, files, expected",
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3.0),
        ("0::/a/b\n", {"cpu.max": "50000 100000\n", "a/b/cpu.max": "200000 100000\n"}, 0.5),
        (
            V1,
            {
                "cpu,cpuacct/jobs/one/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/jobs/one/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        (
            V1,
            {
                "cpu,cpuacct/jobs/cpu.cfs_quota_us": "250000\n",
                "cpu,cpuacct/jobs/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (V1, {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "what?\n"}, None),
        ("0::/\n", {"cpu.max": "100000 0\n"}, None),
        (None, {"cpu.max": "100000 100000\n"}, 1.0),
    ],
)
def test_cpu_quota(
    tmp_path: Path, cgroup: str | None, files: dict[str, str], expected: float | None
) -> None:
    """The least quota of the groups of the process and those above it, of control groups of either
    version.
    """
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    if cgroup is not None:
        (tmp_path / "cgroup").write_text(cgroup)
    assert expected == cpu_quota(tmp_path / "fs", tmp_path / "cgroup")


@pytest.mark.parametrize(
    "quota, before, after",
    [
        (None, {}, {"OMP_WAIT_POLICY": "PASSIVE"}),
        (0.5, {}, {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}),
        (
            1000.0,
            {},
            {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))},
        ),
        (1.0, {"OMP_NUM_THREADS": "3"}, {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "3"}),
        (None, {"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        (None, {"GOMP_SPINCOUNT": "100"}, {"GOMP_SPINCOUNT": "100"}),
    ],
)
def test_settings_of_the_user_stay(
    quota: float | None,
    before: dict[str, str],
    after: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)
    set_threads(before)
    assert after == before


def test_every_command_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert main(["--version"]) == 0
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.mark.more
def test_torch_loads_openmp_with_them() -> None:
    """OpenMP reads the environment when torch loads it, so a change of `os.environ` before that is
    in time.
    """
    code = "from quintain.process.threads import set_threads; set_threads(); import torch"
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OMP", "GOMP", "KMP"))}
    environ["OMP_DISPLAY_ENV"] = "TRUE"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    if "OMP_WAIT_POLICY" not in done.stderr:
        pytest.skip("this torch is not built with an OpenMP that shows its settings")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr


@pytest.mark.parametrize("threads, half", [(4, 2), (3, 1), (1, 1)])
def test_two_computations_at_once_have_half_of_the_threads_each(threads: int, half: int) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with half_the_threads():
            assert half == torch.get_num_threads()
        assert threads == torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
