"""Times other engines on a case of `benchmarks.engine.infer`, with models of the same shape.

`python -m benchmarks.engine.infer_peers NAME --mode decode …` prints a JSON line with "tok_s" and
"ttft_ms". Names: `transformers` (`generate`: of a batch that goes in step, decoding with a static
cache on a GPU; of a load, all prompts padded to the longest, and as many passes as the longest
answer has tokens), `generate_batch` (continuous batching of transformers, each request with its own
limit) and `ctranslate2` (decoding on a CPU, in float32 or int8). All choose greedily, which is no
more work than sampling. Only tokens that were asked for count. Each needs its own package.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch

from benchmarks.engine.infer import Case, case_of, make_parser
from benchmarks.engine.infer_models import random_model, shape_config
from benchmarks.engine.train import Row
from llm_core.bench.load import Asked, random_requests
from llm_core.device import choose_device, set_threads, synchronize
from llm_core.huggingface.config import hugging_face_config
from llm_core.printing import show

WAIT_S = 300.0


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("name", choices=tuple(PEERS))
    arguments = parser.parse_intermixed_args()
    case = case_of(arguments)
    device = choose_device("auto")
    set_threads(case.threads, 1)
    row = PEERS[arguments.name](case, device)
    show(json.dumps({"name": arguments.name, "model": case.shape, **row}), flush=True)


def transformers(case: Case, device: torch.device) -> Row:
    model = _llama(case, device)
    if case.mode == "decode":
        given = {"cache_implementation": "static"} if device.type == "cuda" else {}

        def answer(repeat: int, new: int) -> None:
            ids_BT = torch.tensor(_alike(case, repeat), device=device)
            _generate(model, ids_BT, torch.ones_like(ids_BT), new, **given)

        return _decoding(case, device, answer)

    def answer_all(asked: Sequence[Asked]) -> None:
        longest = max(len(each.prompt_ids) for each in asked)
        pads = [longest - len(each.prompt_ids) for each in asked]
        ids = [[*[0] * pad, *each.prompt_ids] for pad, each in zip(pads, asked, strict=True)]
        mask = [[*[0] * pad, *[1] * (longest - pad)] for pad in pads]
        new = max(each.new_tokens for each in asked)
        _generate(model, torch.tensor(ids, device=device), torch.tensor(mask, device=device), new)

    return _loading(case, device, answer_all)


def generate_batch(case: Case, device: torch.device) -> Row:
    from transformers import GenerationConfig
    from transformers.generation.continuous_batching.utils import WorkloadHints

    if device.type != "cuda":
        # Its cache takes most of the memory of a device.
        raise SystemExit("generate_batch is measured on a GPU only")
    model = _llama(case, device)
    (_, longest_prompt), (_, longest_answer) = case.ranges
    settings = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=longest_answer)
    hints = WorkloadHints(
        max_prompt_length=longest_prompt,
        max_generated_length=longest_answer,
        num_requests=case.requests,
    )
    with model.continuous_batching_context_manager(
        generation_config=settings, workload_hints=hints
    ) as manager:

        def answer_all(asked: Sequence[Asked]) -> None:
            wanted = {
                manager.add_request(list(each.prompt_ids), max_new_tokens=each.new_tokens): each
                for each in asked
            }
            while wanted:
                result = manager.get_result(timeout=WAIT_S)
                if result is None or result.error is not None:
                    raise RuntimeError(f"generate_batch gave up: {result and result.error}")
                if result.is_finished():
                    each = wanted.pop(result.request_id)
                    assert len(result.generated_tokens) == each.new_tokens, "ended early"

        return _loading(case, device, answer_all)


def ctranslate2(case: Case, device: torch.device) -> Row:
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    from benchmarks.engine.infer_folder import END, write_folder

    model = random_model(shape_config(case.shape), "float32", device)
    with tempfile.TemporaryDirectory() as name:
        folder = write_folder(model, Path(name) / "model")
        about = {"tokenizer_class": "PreTrainedTokenizerFast"}
        about |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
        (folder / "tokenizer_config.json").write_text(json.dumps(about))
        TransformersConverter(str(folder)).convert(f"{name}/converted")
        generator = ctranslate2.Generator(
            f"{name}/converted",
            device=device.type,
            compute_type={"float32": "float32", "int8": "int8"}[case.weights],
            intra_threads=case.threads,
        )
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = [tokenizer.id_to_token(id) for id in range(model.config.vocab_size)]

    def answer(repeat: int, new: int) -> None:
        found = generator.generate_batch(
            [[tokens[id] for id in prompt] for prompt in _alike(case, repeat)],
            max_length=new,
            min_length=new,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        assert all(len(each.sequences_ids[0]) == new for each in found), "ended early"

    return _decoding(case, device, answer)


def _llama(case: Case, device: torch.device) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = AutoConfig.for_model(**hugging_face_config(shape_config(case.shape)))
    is_short = case.weights == "bf16" or device.type == "cuda"
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(
            shape, dtype=torch.bfloat16 if is_short else torch.float32, attn_implementation="sdpa"
        )
    model.generation_config.eos_token_id = None
    return model.eval()


def _generate(
    model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor, new: int, **given: Any
) -> None:
    with torch.inference_mode():
        model.generate(
            ids_BT, attention_mask=mask_BT, do_sample=False, min_new_tokens=new,
            max_new_tokens=new, pad_token_id=0, **given,
        )  # fmt: skip


def _alike(case: Case, seed: int) -> list[list[int]]:
    """Prompts of a batch that goes in step."""
    generator = torch.Generator().manual_seed(seed)
    vocab_size = shape_config(case.shape).vocab_size
    shape = case.batch, case.prompt
    return torch.randint(0, vocab_size, shape, generator=generator).tolist()  # type: ignore[no-any-return]


def _decoding(case: Case, device: torch.device, answer: Callable[[int, int], None]) -> Row:
    """answer: (repeat, new tokens). The first token is timed by itself, and taken off."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    for _ in range(2):  # compiles, and captures
        answer(0, case.new)
    answer(0, 1)
    ttft_s, step_s = [], []
    for repeat in range(case.repeats):
        elapsed = []
        for new in (1, case.new):
            synchronize(device)
            began = clock()
            answer(repeat + 1, new)
            synchronize(device)
            elapsed.append(clock() - began)
        ttft_s.append(elapsed[0])
        step_s.append((elapsed[1] - elapsed[0]) / (case.new - 1))
    return {
        "batch": case.batch,
        "ttft_ms": round(statistics.median(ttft_s) * 1e3, 2),
        "tok_s": round(case.batch / statistics.median(step_s), 1),
    }


def _loading(
    case: Case, device: torch.device, answer_all: Callable[[Sequence[Asked]], None]
) -> Row:
    vocab_size = shape_config(case.shape).vocab_size
    speeds = []
    for repeat in range(1 + case.repeats):
        asked = random_requests(case.requests, *case.ranges, vocab_size, seed=repeat)
        synchronize(device)
        began = time.perf_counter()
        answer_all(asked)
        synchronize(device)
        elapsed_s = time.perf_counter() - began
        if repeat:  # the first is the warm-up
            speeds.append(sum(each.new_tokens for each in asked) / elapsed_s)
    return {"ttft_ms": None, "tok_s": round(statistics.median(speeds), 1)}


PEERS: dict[str, Callable[[Case, torch.device], Row]] = {
    "transformers": transformers,
    "generate_batch": generate_batch,
    "ctranslate2": ctranslate2,
}


if __name__ == "__main__":
    main()
