"""The doctor on this machine, and with things missing, broken or slow."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cudaagent import doctor
from cudaagent.doctor import Doctor, examine


def by_name(result: Doctor) -> dict[str, tuple[bool, str]]:
    """Findings and abilities as (there or works, text)."""
    found = {item.name: (item.ok, item.found) for item in result.findings}
    return found | {item.name: (item.works, item.note) for item in result.abilities}


def script(directory: Path, name: str, body: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture(scope="module")
def here() -> Doctor:
    return examine()


def test_what_the_tests_run_on_is_found(here: Doctor) -> None:
    found = by_name(here)
    for name in ("Python", "torch", "apache-tvm-ffi", "transformers", "ray", "g++", "OpenMP"):
        assert found[name][0], name
    assert found["judge on target cpu"] == (True, "ready")
    assert found["quickstart, make test"] == (True, "ready")
    gxx = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True)
    assert found["g++"][1] == gxx.stdout.strip()


def test_what_is_missing_has_a_remedy(here: Doctor) -> None:
    for finding in here.findings:
        assert finding.ok == (not finding.remedy), finding


def test_text_and_json_say_the_same(here: Doctor) -> None:
    data = json.loads(here.to_json())
    text = here.to_text()
    assert [f["name"] for f in data["findings"]] == [f.name for f in here.findings]
    for finding in here.findings:
        assert f"{finding.name} " in text
        assert finding.found in text
    assert {a["name"]: a["works"] for a in data["abilities"]} == {
        a.name: a.works for a in here.abilities
    }


def test_without_any_tool_it_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = by_name(examine())
    assert found["g++"] == (False, "not found")
    assert not found["GPU"][0]
    assert not found["nvcc"][0]
    assert not found["Docker engine"][0]
    assert found["judge on target cpu"] == (False, "needs g++, OpenMP")
    assert not found["target cuda"][0]


def test_broken_and_silent_tools_are_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, "nvidia-smi", "echo 'driver not loaded' >&2; exit 9")
    script(tmp_path, "nvcc", "exit 3")
    script(tmp_path, "g++", "exec /bin/sleep 60")
    (tmp_path / "docker").write_text("not a program")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "_PROBE_S", 0.3)
    found = by_name(examine())
    assert "driver not loaded" in found["GPU"][1]
    assert found["nvcc"] == (False, "nvcc ended with 3")
    assert found["g++"] == (False, "g++ did not answer within 0.3 s")
    assert not found["Docker engine"][0]


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "nvidia-smi", "echo 'NVIDIA H200, 143771, 9.0, 570.1'")
    script(tmp_path, "nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = by_name(examine())
    assert found["GPU"] == (True, "NVIDIA H200, 140 GiB, sm 9.0; driver 570.1")
    assert found["nvcc"] == (True, "13.0.88")


def test_the_command_is_one_json_object_and_loads_no_torch() -> None:
    code = (
        "import sys; from cudaagent.cli import main; status = main(['doctor', '--json'])\n"
        "assert not {'torch', 'ray', 'transformers'} & set(sys.modules); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {"findings", "abilities"}
