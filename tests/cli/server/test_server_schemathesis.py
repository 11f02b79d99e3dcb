"""Generated requests over the OpenAPI document: never a 5xx, never a status it doesn't name."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("schemathesis", reason="generated requests need schemathesis")

if TYPE_CHECKING:
    from conftest import Live

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "missing_required_header",
    "unsupported_method",
)


def run(url: str, folder: Path, *, phases: str, examples: int, timeout_s: float) -> None:
    """Generate requests, and assert that the replies to them gave no cause for complaint."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
    command += ["--checks", ",".join(CHECKS), "--phases", phases]
    command += ["--max-examples", str(examples), "--seed", "1", "--request-timeout", "60"]
    command += ["--suppress-health-check", "all", "--warnings", "off", "--continue-on-failure"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]


def test_a_few_generated_requests(tiny_live: "Live", tmp_path: Path) -> None:
    run(tiny_live.url, tmp_path, phases="fuzzing", examples=8, timeout_s=250)


@pytest.mark.slow
def test_two_thousand_generated_requests(tiny_live: "Live", tmp_path: Path) -> None:
    before = len(tiny_live.log)
    phases = "examples,coverage,fuzzing"
    run(tiny_live.url, tmp_path, phases=phases, examples=40, timeout_s=1500)
    assert len(tiny_live.log) - before >= 2000
