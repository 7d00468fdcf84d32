"""The machine is named by what decides its speed."""

import subprocess
import sys
from pathlib import Path

from llm_core.fingerprint import device_fingerprint, gpu_names, processor_name


def test_fingerprint_names_the_processor_and_is_read_once() -> None:
    device_fingerprint.cache_clear()
    first = device_fingerprint()
    assert device_fingerprint() == first and device_fingerprint.cache_info().misses == 1
    assert processor_name() in first


def test_fingerprint_needs_no_torch() -> None:
    code = (
        "import sys, llm_core.fingerprint as f; f.device_fingerprint(); sys.exit('torch' in"
        " sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_gpus_are_read_from_the_driver(tmp_path: Path) -> None:
    for bus in ("0000:1a:00.0", "0000:1b:00.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 61\n")
    assert gpu_names(tmp_path) == ["NVIDIA H100 80GB HBM3"] * 2


def test_processor_name_is_the_first_model_name(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9R14\nmodel name\t: other\n")
    assert processor_name(cpuinfo) == "AMD EPYC 9R14"
