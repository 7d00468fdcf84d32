"""Files written tensor by tensor are those that safetensors writes of all at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from llm_core.tensor_files import DTYPES, TensorFile, facts_of, write_tensors

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
TENSORS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).filter(
        lambda name: name != "__metadata__"
    ),
    st.builds(
        lambda dtype, shape: torch.randint(0, 2, shape).to(dtype),
        st.sampled_from(list(DTYPES.values())),
        SHAPES,
    ),
    min_size=1,
    max_size=5,
)


@given(TENSORS, st.none() | st.just({"format": "pt"}))
def test_the_bytes_are_those_of_safetensors(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: dict[str, torch.Tensor],
    about: dict[str, str] | None,
) -> None:
    folder = tmp_path_factory.mktemp("files")
    facts = {name: facts_of(tensor) for name, tensor in tensors.items()}
    write_tensors(folder / "ours", facts, tensors.__getitem__, about)
    save_file(tensors, folder / "theirs", about)
    assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()


def test_a_tensor_that_is_not_contiguous_is_written_in_its_order(tmp_path: Path) -> None:
    tensor = torch.arange(12).view(3, 4).T
    write_tensors(tmp_path / "file", {"a": facts_of(tensor)}, {"a": tensor}.__getitem__)
    assert torch.equal(load_file(tmp_path / "file")["a"], tensor)


def test_a_file_is_not_closed_while_a_tensor_is_missing(tmp_path: Path) -> None:
    tensor = torch.ones(3)
    file = TensorFile(tmp_path / "file", {"a": facts_of(tensor), "b": facts_of(tensor)})
    file.put("a", tensor)
    with pytest.raises(AssertionError, match="never written: b"):
        file.close()
