"""Opens a model in as many processes as asked for, on this machine or as torchrun has started them.

The process that opens it is rank 0. Without a launcher it starts the others itself, in sessions of
their own, joined over the loopback interface; they end with it. Under torchrun, with as many
processes, those of other ranks follow rank 0 inside `open_models` and exit when it is done.

A rank that ends early is seen by a thread, which breaks up what waits for it: rank 0 then raises
`RankLost`, whose message names the rank and how it ended.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from llm_core.config import ConfigError
from llm_core.device import choose_device, set_threads
from llm_core.huggingface.export import load_model
from llm_core.infer.ranks.follow import Follower, joined
from llm_core.infer.ranks.layers import check_share, load_share
from llm_core.infer.ranks.led import LedModel, Orders, Replicated
from llm_core.model.transformer import Transformer
from llm_core.process import describe_end
from llm_core.quantize.formats import Format

POLL_S = 0.1
NOTICE_S = 20.0
"""How long to wait, once an exchange broke, for the end of a rank: connections close first."""
END_S = 10.0
ROOT = Path(__file__).parents[3]
STORE = "store"
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class RankLost(RuntimeError):
    """Another rank of the model ended; nothing can be computed any more."""


class Models(Protocol):
    """Where models are loaded to."""

    device: torch.device

    def load(self, folder: Path, dtype: torch.dtype, weights: Format | None = None) -> Transformer:
        """The model of a Hugging Face folder. Raises ConfigError."""


@dataclass
class OneProcess:
    """Models whole, in this process."""

    device: torch.device

    def load(self, folder: Path, dtype: torch.dtype, weights: Format | None = None) -> Transformer:
        return load_model(folder, dtype, self.device, weights)


@contextlib.contextmanager
def open_models(
    num_ranks: int,
    device_name: str,
    on_loss: Callable[[], None] | None = None,
    environment: Mapping[str, str] = os.environ,
    are_whole: bool = False,
) -> Iterator[Models]:
    """`num_ranks` processes, of which this one is the first, until the block ends: tensor ranks, or
    replicas that hold models whole.

    on_loss: called from another thread when a rank ends early. environment: of the others. Raises
    ConfigError where there are fewer GPUs, RankLost where a rank does not start.
    """
    device = choose_device(device_name)
    if num_ranks == 1:
        yield OneProcess(device)
        return
    is_launched = "RANK" in os.environ
    setting = "data_parallel" if are_whole else "tensor_parallel"
    if is_launched and int(os.environ["WORLD_SIZE"]) != num_ranks:
        raise ConfigError(
            f"{setting} ({num_ranks}) must equal the number of processes that torchrun started"
            f" ({os.environ['WORLD_SIZE']}); start as many"
        )
    local_ranks = int(os.environ["LOCAL_WORLD_SIZE"]) if is_launched else num_ranks
    if device.type == "cuda" and torch.cuda.device_count() < local_ranks:
        raise ConfigError(
            f"{setting} ({num_ranks}) needs a GPU for each process, and this machine shows"
            f" {torch.cuda.device_count()}; lower it, or set device=cpu"
        )
    num_threads = torch.get_num_threads()
    try:
        set_threads(0, local_ranks)
        if is_launched:
            with _launched(device) as led:
                led.are_whole = are_whole
                yield led
        else:
            with _started(num_ranks, device, on_loss, environment) as led:
                led.are_whole = are_whole
                yield led
    finally:
        torch.set_num_threads(num_threads)


@contextlib.contextmanager
def _launched(device: torch.device) -> Iterator[Led]:
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    with joined(device) as messages:
        if dist.get_rank() > 0:
            Follower(device, messages).run()
            sys.exit(0)
        led = Led(device, Orders(messages, contextlib.nullcontext))
        yield led
        led.end()


@contextlib.contextmanager
def _started(
    num_ranks: int,
    device: torch.device,
    on_loss: Callable[[], None] | None,
    environment: Mapping[str, str],
) -> Iterator[Led]:
    with tempfile.TemporaryDirectory(prefix="textmill-ranks-") as folder:
        followers = Followers(num_ranks, device, Path(folder), on_loss, environment)
        try:
            store = followers.wait_for_all()
            with _environment(LOOPBACK), joined(device, store, 0, num_ranks) as messages:
                led = Led(device, Orders(messages, followers.guard))
                yield led
                led.end()
                followers.finish()
        finally:
            followers.kill()


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass
class Led:
    """Models of which this process has the first part, or the first whole."""

    device: torch.device
    orders: Orders
    are_whole: bool = False

    def load(self, folder: Path, dtype: torch.dtype, weights: Format | None = None) -> Transformer:
        if self.are_whole:
            return self._load_whole(folder, dtype)
        if weights is not None:
            raise ConfigError(
                f"weights ({weights}) are rounded in one process; set tensor_parallel=1"
            )
        # A user error here must not end the others.
        check_share(folder, dist.get_world_size())
        orders, number = self.orders, self.orders.number()
        orders.add("load", number, str(folder.resolve()), str(dtype).removeprefix("torch."))
        with orders.guard():
            orders.tell()
            world = dist.get_world_size()
            model = load_share(folder, dtype, self.device, 0, world, LedModel)
        assert isinstance(model, LedModel)
        model.orders, model.number = orders, number
        orders.watch(model, number)
        return model

    def _load_whole(self, folder: Path, dtype: torch.dtype) -> Transformer:
        model = load_model(folder, dtype, self.device)
        replicas = Replicated(model, self.orders)
        about = str(folder.resolve()), str(dtype).removeprefix("torch.")
        self.orders.add("load_whole", replicas.number, *about)
        self.orders.watch(model, replicas.number)
        model.replicas = replicas  # type: ignore[assignment]
        return model

    def end(self) -> None:
        self.orders.add("end")
        with self.orders.guard():
            self.orders.tell()


class Followers:
    """The processes of the other ranks, and a thread that sees them end."""

    def __init__(
        self,
        num_ranks: int,
        device: torch.device,
        folder: Path,
        on_loss: Callable[[], None] | None,
        environment: Mapping[str, str],
    ) -> None:
        self.environment = environment
        self.num_ranks, self.device, self.folder, self.on_loss = num_ranks, device, folder, on_loss
        self.lost: str | None = None
        self._is_ending = False
        self._processes = [self._start(rank) for rank in range(1, num_ranks)]
        self._thread = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._thread.start()

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        place = f"cuda:{rank}" if self.device.type == "cuda" else "cpu"
        about = {"rank": rank, "world": self.num_ranks, "leader": os.getpid(), "device": place}
        options = [f"--{name}={value}" for name, value in about.items()]
        command = [sys.executable, "-m", "llm_core.infer.ranks.follow", *options]
        # The folder that this package was imported from may be on nobody's path but ours.
        path = os.pathsep.join(filter(None, [str(ROOT), self.environment.get("PYTHONPATH")]))
        environment = {"OMP_WAIT_POLICY": "PASSIVE"} | {**self.environment} | LOOPBACK
        with self._log_of(rank).open("wb") as log:
            return subprocess.Popen(
                [*command, f"--store={self.folder / STORE}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for rank 0, which tells the others
                env=environment | {"PYTHONPATH": path},
            )

    def _log_of(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"

    def wait_for_all(self) -> dist.Store:
        """Through which ranks find each other, once all have started. Raises RankLost."""
        store = dist.FileStore(str(self.folder / STORE), self.num_ranks)
        for rank in range(1, self.num_ranks):
            while not store.check([f"started-{rank}"]):
                self._raise_if_lost()
                time.sleep(POLL_S)
        return store

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Turns what breaks because a rank is gone into RankLost."""
        self._raise_if_lost()
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            deadline = time.monotonic() + NOTICE_S
            while self.lost is None and time.monotonic() < deadline:
                time.sleep(POLL_S)
            self._raise_if_lost(error)
            raise

    def _raise_if_lost(self, cause: BaseException | None = None) -> None:
        if self.lost is not None:
            raise RankLost(self.lost) from cause

    def finish(self) -> None:
        """Wait for processes that were told to end."""
        self._is_ending = True
        deadline = time.monotonic() + END_S
        while self._ended() is None and time.monotonic() < deadline:
            time.sleep(POLL_S / 10)

    def kill(self) -> None:
        self._is_ending = True
        for process in self._processes:
            process.kill()
            process.wait()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_ending:
            if (rank := self._ended()) is not None:
                self.lost = f"rank {rank} of {self.num_ranks} {self._how(rank)}"
                if self.device.type == "cuda" and dist.is_initialized():
                    # NCCL would wait for it for ever.
                    assert dist.group.WORLD is not None
                    dist.group.WORLD.abort()
                if self.on_loss is not None:
                    self.on_loss()
                return
            time.sleep(POLL_S)

    def _ended(self) -> int | None:
        """The first rank whose process is over."""
        ended = (rank for rank, p in enumerate(self._processes, 1) if p.poll() is not None)
        return next(ended, None)

    def _how(self, rank: int) -> str:
        code = self._processes[rank - 1].returncode
        said = self._log_of(rank).read_text("utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "")
        return f"failed: {last}" if code > 0 and last else describe_end(code)
