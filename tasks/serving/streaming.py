"""Sends the answers of a job, and ends the job when its client goes away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import orjson
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tasks.serving.answers import Piece, scored_prompt
from tasks.serving.failures import ApiError
from tasks.serving.metrics import Metrics
from tasks.serving.replies import Replies, Usage
from tasks.serving.worker import Job, Worker
from tasks.tokenizer.encoder import Tokenizer


@dataclass
class JobReply:
    """An ASGI response: all answers at once, or an event for each piece (server-sent events)."""

    job: Job
    worker: Worker
    replies: Replies
    metrics: Metrics
    tokenizer: Tokenizer
    echoes: Sequence[str] = ()
    """Texts of the prompts, where the answers begin with them."""
    _echoed: set[int] = field(default_factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._send(scope, receive, send))
            leaving = group.create_task(_until_disconnect(receive))
            sending.add_done_callback(lambda _: leaving.cancel())
            leaving.add_done_callback(lambda _: sending.cancel())

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._pieces()) as pieces:
                if self.job.is_streamed:
                    await self._send_events(pieces, send)
                else:
                    answers = await self._joined(pieces)
                    whole = orjson.dumps(self.replies.whole(answers, self._usage()))
                    reply = Response(whole, media_type="application/json")
                    await reply(scope, receive, send)
        except ApiError as error:  # before anything was sent
            await JSONResponse(error.body, error.status, error.headers)(scope, receive, send)
            return
        except asyncio.CancelledError:
            self.metrics.cancelled.inc()
            raise
        self._count()

    async def _pieces(self) -> AsyncGenerator[list[Piece], None]:
        async with aclosing(self.worker.run(self.job)) as batches:
            async for batch in batches:
                yield [self._with_echo(piece) for piece in batch] if self.echoes else batch

    def _with_echo(self, piece: Piece) -> Piece:
        """The first piece of an answer, behind its prompt."""
        if piece.index in self._echoed:
            return piece
        self._echoed.add(piece.index)
        job, number = self.job, piece.index // self.job.n
        tokens = list(piece.tokens)
        if job.prompt_logprobs is not None:
            tokens = scored_prompt(self.tokenizer, job.prompts[number], job.scores[number]) + tokens
        return Piece(piece.index, self.echoes[number] + piece.text, tokens, piece.finish)

    async def _send_events(self, pieces: AsyncIterator[list[Piece]], send: Send) -> None:
        begun = False
        try:
            async for batch in pieces:
                events = [self.replies.chunk(piece) for piece in batch]
                if not begun:
                    headers = [
                        (b"content-type", b"text/event-stream"),
                        (b"cache-control", b"no-store"),
                    ]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                    events.insert(0, self.replies.opening(len(self.job.answers)))
                    begun = True
                await _send_body(send, b"".join(events))
        except ApiError as error:
            if not begun:
                raise
            await _send_body(send, self.replies.failed(error.body), is_last=True)
            return
        await _send_body(send, self.replies.closing(self._usage()), is_last=True)

    async def _joined(self, pieces: AsyncIterator[list[Piece]]) -> list[Piece]:
        """One piece for each answer."""
        found: list[list[Piece]] = [[] for _ in self.job.answers]
        async for batch in pieces:
            for piece in batch:
                found[piece.index].append(piece)
        return [Piece.joined(parts) for parts in found]

    def _usage(self) -> Usage:
        return Usage(
            sum(map(len, self.job.prompts)), sum(answer.num_tokens for answer in self.job.answers)
        )

    def _count(self) -> None:
        usage, started_at = self._usage(), self.job.started_at
        self.metrics.prompt_tokens.inc(usage.prompt_tokens)
        self.metrics.new_tokens.inc(usage.completion_tokens)
        self.metrics.request_s.observe(time.perf_counter() - started_at)
        if self.job.first_token_at is not None:
            self.metrics.first_token_s.observe(self.job.first_token_at - started_at)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_body(send: Send, body: bytes, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not is_last})
