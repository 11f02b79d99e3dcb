"""A model in a control group with little more than its file: benchmarks/memory.py, run for real."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "memory.py"


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.model("qwen-1.5b")
@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux'")
def test_it_runs_in_its_file_and_300_mb(model_path: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, str(SCRIPT), str(model_path), "-n", "4", "--json", str(report)]
    # The first run, without a limit, compiles the kernels that are missing.
    run = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stderr[-2000:]
    _, tight = json.loads(report.read_text())["runs"]
    assert "error" not in tight, tight
    assert tight["said"] == ""  # neither a shorter context nor weights that do not fit
    assert tight["anonymous"] <= 300e6 and tight["kv_tokens"] >= 4096
