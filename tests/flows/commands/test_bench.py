"""`textmill bench` measures any folder, and compares two measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.cli import main
from tests.support.data.trained_run import save_model

QUICK = [
    "bench.batches=[1]", "bench.prompt_tokens=[8]", "bench.new_tokens=[4]", "bench.repeats=3",
    "bench.check_tokens=4", "bench.weights=[model]", "bench.concurrencies=[2]",
    "bench.load_requests=4", "bench.arrival_fracs=[]", "bench.device=cpu",
    "bench.load_prompt_tokens=[2,5]", "bench.load_new_tokens=[2,4]",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run")
    save_model(run, vocab_size=50, weight_scale=8)
    return run / "model"


def test_a_folder_is_measured_without_a_run_and_compared(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "one" / "bench.json"
    out.parent.mkdir()
    words = ["bench", f"bench.folder={folder}", *QUICK, f"store={tmp_path / 'store'}"]
    assert main([*words, f"--out={out}"]) == 0
    said = capsys.readouterr().out
    assert "model · static · 1 × 8+4" in said and "engine · closed 2" in said
    assert json.loads(out.read_text())["cells"]
    compare = ["bench", "compare", str(out), str(out.parent), f"store={tmp_path / 'store'}"]
    assert main(compare) == 0
    said = capsys.readouterr().out
    assert "1.000" in said and "*" not in said and "geometric mean" in said
    assert main([*compare, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["overall"]["ratio"] == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["bench.folder=/nowhere"], "bench.folder (/nowhere) is not a folder"),
        (["bench.folder=a", "bench.folder=b"], "bench.folder is given twice"),
        (["compare", "one"], "needs two measurements (found 1)"),
        (["compare", "zzz", "yyy"], "zzz is not a file, a folder with bench.json, or one run"),
        (["compare", __file__, __file__], "is not JSON"),
    ],
)
def test_mistakes_are_one_line_and_code_two(
    words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words, f"store={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1
