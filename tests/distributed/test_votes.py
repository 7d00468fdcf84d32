"""All ranks get the same answer at the same turn, and stop and save after the same step."""

import json
from pathlib import Path

import pytest
import torch

from llm_core.parallel.ranks import Ranks
from llm_core.parallel.vote import Vote
from tests.support.distributed.processes import run_program
from tests.support.distributed.votes import ASKED, ASKED_TO_STOP_AT, TURNS, WORLD


def test_every_rank_learns_a_turn_later_what_any_said_and_all_stop_after_the_same_step(
    tmp_path: Path,
) -> None:
    run_program("tests.support.distributed.votes", [str(tmp_path)], tmp_path)
    found = [
        json.loads((tmp_path / f"rank-{rank}.json").read_text("utf-8")) for rank in range(WORLD)
    ]
    said = [any(turn in turns for turns in ASKED.values()) for turn in range(TURNS)]
    assert found[0]["answers"] == [False, *said, False] and found[0]["at_once"]
    assert found[0]["stopped"] == f"stopped at step {ASKED_TO_STOP_AT + 1} of 4"
    assert [folder.name for folder in (tmp_path / "checkpoints").glob("step-*")] == [
        f"step-{ASKED_TO_STOP_AT + 1:08d}"
    ]
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("at_first", [False, True])
def test_one_process_answers_itself_at_once(at_first: bool) -> None:
    vote = Vote(Ranks(0, 1, torch.device("cpu")), at_first)
    assert [vote.ask(mine) for mine in (True, False, True)] == [True, False, True]
    assert vote.settle() is at_first
