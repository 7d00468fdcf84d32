"""Proves that what an engine answers is what the model says, before its speed is shown.

`llm_core.infer.equivalence` holds a cache against full passes. Here whole answers are held against
them and against each other: by greedy passes without a cache (`greedy`), alone and among others
(`batch`), with prompts cut into chunks and blocks of two tokens (`chunks`), interrupted when the
cache is full (`preempted`), behind a prefix that another request left, whole blocks long
(`prefix`), in bursts (`bursts`), up to a stop id (`stops`), and as told token by token (`stream`).
All in float64, where equal means equal. In the dtype that is timed, rounding may swap two
near-equal logits, so there every greedy token may lie behind the best of a full pass by a part of
the spread of all logits (`furthest_behind`).

CPU kernels for 8 and 4 bits also round their inputs. A difference in the last bit of a sum can then
become a whole step in the next product, so two right passes may differ by as much as rounding
itself. Such answers are held against the restored weights in float64, which round nothing. How much
rounding alone may change is computed in float64, too, without the kernels (`rounding_noise`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.engine import Engine, EngineConfig
from llm_core.infer.requests import Request
from llm_core.model.transformer import Transformer
from llm_core.quantize import on_cpu
from llm_core.quantize.layers import RoundedLinear

MAX_BEHIND = {torch.float64: 1e-9, torch.float32: 1e-2, torch.bfloat16: 0.5}
"""Most that a chosen token's logit may lie behind the best, in standard deviations of all logits.
A token chosen without regard to the prompt lies some 4 behind."""
DEVIATIONS = 5
"""Standard deviations of rounding by which a choice between two tokens may be off: a normal number
exceeds them in one of three million cases."""
NEW_TOKENS = 8
PROMPT_TOKENS = (9, 1, 17, 5, 12, 2)
SAMPLED = SamplingParams(temperature=1.0, top_p=0.9, seed=11)


@dataclass(frozen=True)
class Proof:
    """What one check found: "" where all was equal."""

    name: str
    finding: str

    @property
    def passed(self) -> bool:
        return not self.finding


Answers = list[list[int]]


@torch.inference_mode()
def check_answers(model: Transformer, seed: int) -> list[Proof]:
    """All checks, of a float64 model that reads at least 32 tokens."""
    prompts = _prompts(model, seed)
    expected = [_without_cache(model, prompt) for prompt in prompts]
    drawn = [_answers(model, [prompt], SAMPLED)[0] for prompt in prompts]
    tight = (max(PROMPT_TOKENS) + NEW_TOKENS + 7) // 4 * 4
    return [
        _compared("greedy", _answers(model, prompts, GREEDY), expected),
        _compared("batch", _answers(model, prompts, SAMPLED), drawn),
        _compared(
            "chunks",
            _answers(model, prompts, SAMPLED, block_tokens=2, budget_tokens=3, max_running=2),
            drawn,
        ),
        _preempted(model, prompts, drawn, tight),
        _prefix(model, prompts, drawn),
        _compared("bursts", _answers(model, prompts, SAMPLED, burst_tokens=3), drawn),
        _stops(model, prompts, expected),
        _stream(model, prompts, drawn),
    ]


def _prompts(model: Transformer, seed: int) -> Answers:
    generator = torch.Generator().manual_seed(seed)
    vocab_size = model.config.vocab_size
    return [
        torch.randint(0, vocab_size, (length,), generator=generator).tolist()
        for length in PROMPT_TOKENS
    ]


def _without_cache(model: Transformer, prompt: Sequence[int]) -> list[int]:
    ids = list(prompt)
    for _ in range(NEW_TOKENS):
        ids_1T = torch.tensor([ids], device=model.norm.weight.device)
        ids.append(int(model.logits(model.hidden(ids_1T)[0, -1:]).argmax()))
    return ids[len(prompt) :]


def _engine(model: Transformer, **settings: int) -> Engine:
    given = {"cache_tokens": 512, "budget_tokens": 128, "max_running": 8, **settings}
    return Engine(model, EngineConfig(**given), [])  # type: ignore[arg-type]


def _run(engine: Engine, prompts: Answers, params: SamplingParams) -> list[Request]:
    requests = [engine.submit(prompt, params, NEW_TOKENS) for prompt in prompts]
    while engine.busy:
        engine.step()
    return requests


def _answers(
    model: Transformer, prompts: Answers, params: SamplingParams, **settings: int
) -> Answers:
    return [each.answers[0] for each in _run(_engine(model, **settings), prompts, params)]


def _compared(name: str, found: Answers, expected: Answers) -> Proof:
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if ours != theirs:
            same = [a == b for a, b in zip(ours, theirs, strict=False)]
            first = same.index(False) if False in same else len(same)
            return Proof(name, f"answer {number} differs at token {first}")
    return Proof(name, "")


def _preempted(model: Transformer, prompts: Answers, drawn: Answers, room: int) -> Proof:
    # In bursts, as on a GPU: what was sent back must be computed again before it goes on.
    engine = _engine(model, cache_tokens=room, block_tokens=4, burst_tokens=2)
    found = [each.answers[0] for each in _run(engine, prompts, SAMPLED)]
    if not engine.num_preemptions:
        return Proof("preempted", f"nothing was interrupted in {room} tokens of cache")
    return _compared("preempted", found, drawn)


def _prefix(model: Transformer, prompts: Answers, drawn: Answers) -> Proof:
    """Asked twice on one engine; a block is as long as the shortest of the prompts."""
    engine = _engine(model, block_tokens=1)
    twice = [[each.answers[0] for each in _run(engine, prompts, SAMPLED)] for _ in range(2)]
    if not engine.num_prefix_tokens:
        return Proof("prefix", "no prefix was found again")
    return _compared("prefix", [*twice[0], *twice[1]], [*drawn, *drawn])


def _stops(model: Transformer, prompts: Answers, expected: Answers) -> Proof:
    """The third token of each answer as its stop id."""
    for number, (prompt, answer) in enumerate(zip(prompts, expected, strict=True)):
        stop = answer[2]
        params = SamplingParams(temperature=0.0, stop_ids=(stop,))
        (request,) = _run(_engine(model, burst_tokens=4), [prompt], params)
        if request.answers[0] != answer[: answer.index(stop)] or request.finishes != ["stop"]:
            return Proof("stops", f"answer {number} does not end before its stop id")
    return Proof("stops", "")


def _stream(model: Transformer, prompts: Answers, drawn: Answers) -> Proof:
    """What is told, joined, is the answer; every answer is told to end once, and holds nothing."""
    engine = _engine(model, burst_tokens=2)
    requests = [engine.submit(prompt, SAMPLED, NEW_TOKENS) for prompt in prompts]
    told: dict[Request, list[int]] = {request: [] for request in requests}
    ends = dict.fromkeys(requests, 0)
    while engine.busy:
        for new in engine.step():
            if ends[new.request]:
                return Proof("stream", "a token was told behind the end of its answer")
            told[new.request] += [] if new.id is None else [new.id]
            ends[new.request] += new.finish is not None
    if engine.num_used_blocks or set(ends.values()) != {1}:
        return Proof("stream", "an answer was not told to end, or holds blocks behind its end")
    return _compared("stream", [told[request] for request in requests], drawn)


@torch.inference_mode()
def furthest_behind(
    model: Transformer, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> float:
    """How far a greedy answer's worst token lies behind the best of a full pass, in standard
    deviations of the logits; NaN where logits are not numbers."""
    device = model.norm.weight.device
    worst = 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        ids_1T = torch.tensor([[*prompt, *answer[:-1]]], device=device)
        logits_NV = model.logits(model.hidden(ids_1T)[0, len(prompt) - 1 :]).float()
        chosen_N1 = torch.tensor(answer, device=device)[:, None]
        behind_N = logits_NV.amax(1) - logits_NV.gather(1, chosen_N1)[:, 0]
        behind = float((behind_N / logits_NV.std(1)).amax())
        if behind != behind:
            return behind
        worst = max(worst, behind)
    return worst


class Behind(NamedTuple):
    """How far the worst of some greedy tokens lies behind the best, and how far it may, in standard
    deviations of the logits."""

    worst: float
    allowed: float

    @property
    def is_right(self) -> bool:
        return self.worst <= self.allowed  # false for NaN


@torch.inference_mode()
def judge(
    model: Transformer, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> Behind:
    """Compare greedy answers with full passes: of the model or, where its kernels round their
    inputs, of its restored weights in float64."""
    allowed = MAX_BEHIND[model.norm.weight.dtype]
    if not _rounds_inputs(model):
        return Behind(furthest_behind(model, prompts, answers), allowed)
    exact = copy.deepcopy(model).double()
    # The token was the best with noise, so the noise of both tokens counts.
    noise = 2**0.5 * rounding_noise(exact, [*prompts[0], *answers[0][:-1]])
    worst = furthest_behind(exact, prompts, answers)
    return Behind(worst, allowed + DEVIATIONS * noise)


def _rounds_inputs(model: Transformer) -> bool:
    """Whether layers use kernels that round what they multiply."""
    layers = [layer for layer in model.modules() if isinstance(layer, RoundedLinear)]
    return any(isinstance(layer.held, on_cpu.Ordered) for layer in layers)


def rounding_noise(exact: Transformer, ids: Sequence[int]) -> float:
    """Standard deviation of what rounding of products changes in logits, as a share of that of the
    logits, over all places of a sequence. exact: a float64 model of rounded weights."""
    noisy = copy.deepcopy(exact)
    for layer in noisy.modules():
        if isinstance(layer, RoundedLinear):
            setattr(layer, "_product", partial(on_cpu.noisy_product, rounded=layer.stored))  # noqa: B010
    ids_1T = torch.tensor([list(ids)])
    expected_NV, found_NV = (each.logits(each.hidden(ids_1T)[0]) for each in (exact, noisy))
    share_N = (found_NV - expected_NV).std(1) / expected_NV.std(1)
    return float(share_N.square().mean().sqrt())


def greedy_behind(model: Transformer, seed: int) -> Behind:
    """`judge` greedy answers to several prompts at once, by an engine of this model."""
    prompts = _prompts(model, seed)
    return judge(model, prompts, _answers(model, prompts, GREEDY, copy_weights=False))
