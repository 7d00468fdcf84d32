"""Runs the engine in one thread, for any number of requests that come from an event loop.

Requests and cancellations enter by a queue that is emptied before every step, so a request that is
cancelled in the middle of a step is gone before the next one. What a step gives goes back to the
loop in one call for all requests; while the loop is busy, the tokens of further steps join it. A
request that is not streamed wakes the loop once, at its end.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from llm_core.config import ConfigError
from llm_core.infer.choice.sampling import SamplingParams
from llm_core.infer.engine import Engine
from llm_core.infer.ranks.team import RankLost
from llm_core.infer.requests import Allowed, NewToken, Request, Scored
from llm_core.printing import get_logger
from tasks.serving.answers import Answer, Piece
from tasks.serving.failures import ApiError
from tasks.serving.metrics import Metrics

log = get_logger(__name__)

RETRY_AFTER_S = 1


@dataclass(eq=False)
class Job:
    """One request: several prompts, `n` answers to each. The worker owns it until it is done."""

    prompts: Sequence[Sequence[int]]
    limits: Sequence[int]
    """Most new tokens after each prompt."""
    params: SamplingParams
    n: int
    answers: Sequence[Answer]
    """Those to the first prompt, then those to the second, and so on."""
    logprobs: int | None = None
    """Alternatives scored at each new token; None scores nothing."""
    prompt_logprobs: int | None = None
    allowed: Allowed | None = None
    """Which tokens may come next; None: any."""
    is_streamed: bool = False
    started_at: float = field(default_factory=time.perf_counter)
    first_token_at: float | None = None
    requests: dict[Request, int] = field(default_factory=dict)
    """Requests of the engine that are not over, with the number of their prompt."""
    scores: dict[int, Sequence[Scored | None]] = field(default_factory=dict)
    """Of the tokens of each prompt, once an answer to it has begun."""
    error: ApiError | None = None
    is_done: bool = False
    pieces: deque[Piece] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class Worker:
    """The engine and its thread. `run` is called on the loop that `start` was called on."""

    def __init__(self, engine: Engine, max_open: int, metrics: Metrics) -> None:
        self._engine, self._max_open, self._metrics = engine, max_open, metrics
        self._jobs: dict[Request, Job] = {}
        self._inbox: list[tuple[Job, bool]] = []
        self._outbox: list[Job] = []
        self._condition = threading.Condition()
        self._is_closing = self._has_ended = False
        # Those that are written, or wait for it; not those that a slow client still reads.
        self._open: set[Job] = set()
        self.error: BaseException | None = None
        self.num_steps = 0
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    @property
    def num_open(self) -> int:
        """Answers that run or wait."""
        return sum(len(job.answers) for job in self._open)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """End the thread, and with it whatever still runs."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        await asyncio.to_thread(self._thread.join)

    async def run(self, job: Job) -> AsyncGenerator[list[Piece], None]:
        """Pieces of the job's answers as they come, one of each answer at a time; whoever stops
        early cancels the job.

        Raises ApiError where the queue is full (429) or the engine has failed (503).
        """
        self._check_room(len(job.answers))
        self._send(job, True)
        self._open.add(job)
        try:
            while True:
                await job.wake.wait()
                job.wake.clear()
                is_done = job.is_done
                if job.error is not None:
                    raise job.error
                if pieces := [job.pieces.popleft() for _ in range(len(job.pieces))]:
                    yield Piece.of_each(pieces)
                if is_done:
                    return
        finally:
            self._open.discard(job)
            if not job.is_done:
                self._send(job, False)

    def _check_room(self, num_answers: int) -> None:
        if self.num_open + num_answers > self._max_open:
            self._metrics.refused.inc()
            raise ApiError(
                429,
                f"{self.num_open} answers are running or waiting, and the server holds"
                f" {self._max_open}; try again later",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )

    def _send(self, job: Job, is_new: bool) -> None:
        with self._condition:
            # Under the lock: a job that came in behind the last look would wait for ever.
            if self._has_ended and is_new:
                raise ApiError(
                    503, "the engine has stopped; see the server's log and restart the server"
                )
            self._inbox.append((job, is_new))
            self._condition.notify()

    # What follows runs in the thread of the engine.

    def _work(self) -> None:
        reason = "the server stops; try again later"
        try:
            while self._receive():
                if self._engine.busy:
                    self._step()
        except RankLost as error:
            self.error, reason = error, "a process of the model ended"
            log.error("%s; the server stops", error)
        except Exception as error:
            # An engine that failed once is of no more use; the health check says so.
            self.error, reason = error, f"the engine failed ({type(error).__name__})"
            log.exception("the engine failed, and the server must be started again")
        with self._condition:
            self._has_ended = True
            inbox, self._inbox = self._inbox, []
        for job in {*self._jobs.values(), *(job for job, is_new in inbox if is_new)}:
            job.error = ApiError(503, reason)
            job.is_done = True
            self._deliver([job])

    def _receive(self) -> bool:
        """Take in what came, waiting for it where there is nothing to do; False at the end."""
        with self._condition:
            while not (self._inbox or self._engine.busy or self._is_closing):
                self._condition.wait()
            if self._is_closing:
                return False
            inbox, self._inbox = self._inbox, []
        for job, is_new in inbox:
            if is_new:
                self._submit(job)
            else:
                self._drop(job)
        return True

    def _submit(self, job: Job) -> None:
        try:
            for number, (prompt, limit) in enumerate(zip(job.prompts, job.limits, strict=True)):
                request = self._engine.submit(
                    prompt,
                    job.params,
                    limit,
                    n=job.n,
                    logprobs=job.logprobs,
                    prompt_logprobs=job.prompt_logprobs,
                    allowed=job.allowed,
                )
                job.requests[request] = number
                self._jobs[request] = job
        except ConfigError as error:
            self._fail(job, ApiError(400, str(error)))

    def _drop(self, job: Job) -> None:
        for request in job.requests:
            self._engine.cancel(request)
            del self._jobs[request]
        job.requests.clear()
        job.is_done = True

    def _fail(self, job: Job, error: ApiError) -> None:
        job.error = error
        self._drop(job)
        self._deliver([job])

    def _step(self) -> None:
        self.num_steps += 1
        tokens = self._engine.step()
        now = time.perf_counter()
        # All tokens of an answer at once: a client is told of them together.
        together: dict[tuple[Request, int], list[NewToken]] = {}
        for token in tokens:
            together.setdefault((token.request, token.choice), []).append(token)
        told: dict[Job, None] = {}
        for (request, choice), of_answer in together.items():
            job = self._jobs.get(request)
            if job is not None and self._take(job, request, choice, of_answer, now):
                told[job] = None
        if told:
            self._deliver(list(told))

    def _take(
        self, job: Job, request: Request, choice: int, tokens: Sequence[NewToken], now: float
    ) -> bool:
        """Write tokens of one answer; whether there is something to tell the client."""
        number = job.requests[request]
        answer = job.answers[number * job.n + choice]
        if answer.finish is not None:  # the rest of a burst that a stop string cut
            return False
        if job.prompt_logprobs is not None and number not in job.scores:
            job.scores[number] = request.prompt_scores
        if tokens[0].id is not None:
            job.first_token_at = job.first_token_at or now
        piece = answer.extend(tokens)
        if answer.finish is not None and tokens[-1].finish is None:  # at a stop string
            self._engine.cancel(request, choice)
        if piece is not None:
            job.pieces.append(piece)
        if answer.finish is not None:
            first = number * job.n
            if all(each.finish for each in job.answers[first : first + job.n]):
                del job.requests[request], self._jobs[request]
                job.is_done = not job.requests
        return job.is_done or (job.is_streamed and piece is not None)

    def _deliver(self, jobs: Sequence[Job]) -> None:
        with self._condition:
            is_first = not self._outbox
            self._outbox.extend(jobs)
        if is_first:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._condition:
            jobs, self._outbox = self._outbox, []
        for job in jobs:
            if job.is_done:
                self._open.discard(job)
            job.wake.set()
