"""Sets what is scored and sampled: the settings of `tasks.evaluation.stage`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llm_core.config import NOT_IN_KEY, ConfigError, check_bounds
from llm_core.infer.choice.sampling import SamplingParams
from tasks.contamination.config import ContaminationConfig
from tasks.contamination.suites import SuiteConfig

if TYPE_CHECKING:
    from tasks.evaluation.suites import Suite

Format = Literal["int8", "int4", "fp8"]
"""As in `llm_core.quantize.formats`, which imports torch."""


@dataclass(frozen=True)
class EvaluateConfig:
    """What is scored and generated, and how."""

    max_documents: int | None = 200
    """Validation documents that are scored: those with the smallest ids, which are hashes, so a
    random sample. Null: all."""
    max_document_tokens: int | None = None
    """Score only the first so many tokens of a document, and count their bytes. Null: whole
    documents."""
    windows: Literal["overlapping", "disjoint", "whole"] = "overlapping"
    """How a document longer than the window is scored. overlapping: windows share context_tokens.
    disjoint: each begins with one token of context, as in lm-eval. whole: it is an error. Figures
    of two policies do not compare."""
    window_tokens: int | None = None
    """Longest input of one forward pass. Null: the length the model was trained on; the
    model's max_seq_len for whole documents."""
    context_tokens: int | None = None
    """Tokens already scored that the next overlapping window of a long document begins with. Null:
    half a window."""
    batch_tokens: int = 8192
    """Tokens in one forward pass, padding included."""
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """Type of weights and activations. auto: bfloat16 on a GPU, float32 elsewhere; what bfloat16
    changes is part of the result. float64: scores do not depend on batches in any digit shown."""
    backend: Literal["own", "lm_eval"] = "own"
    """lm_eval: also run the evaluation harness on the same items, and list where it differs. Needs
    textmill[lm-eval]."""
    bootstrap_samples: int = 1000
    """Resamples of the documents for confidence intervals."""
    small_group_documents: int = 20
    """Groups with fewer documents are marked `small`, since their intervals are too narrow."""
    seed: int = 0
    """Seed of the bootstrap, and of the choice of shots."""
    shots: int | None = None
    """Solved items before each question of a suite. Null: as many as the suite asks for."""
    folder: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """Hugging Face folder that is scored too, on the same documents and suites, to stand in one
    table with the trained model. Its content is in the key, its place is not."""
    checkpoints: tuple[int, ...] = ()
    """Steps of training whose models are scored on the suites too, for learning curves. Training
    keeps them by train.keep_models_every."""
    formats: tuple[Format, ...] = ()
    """Formats of weights (int8, int4, fp8) in which the trained model is scored too."""
    chat: bool = False
    """Ask suites as a chat, by the chat template of the tokenizer: shots are earlier turns."""
    sample_prompts: tuple[str, ...] = ("The ",)
    """Prompts that the model continues."""
    num_document_prompts: int = 2
    """Validation documents whose first tokens serve as further prompts."""
    document_prompt_tokens: int = 16
    """Length of those prompts."""
    device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata=NOT_IN_KEY)
    """Where the model runs. auto: on a GPU where there is one."""
    tensor_parallel: int = field(default=1, metadata=NOT_IN_KEY)
    """Processes that share each layer of a model, on a GPU each where there are GPUs. Models of
    `formats` run in one process."""
    data_parallel: int = field(default=1, metadata=NOT_IN_KEY)
    """Processes that each hold a whole model, on a GPU each where there are GPUs, and share
    documents, items and prompts."""

    def __post_init__(self) -> None:
        check_bounds(self, max_documents=(1, None), max_document_tokens=(1, None))
        check_bounds(self, window_tokens=(2, None), context_tokens=(0, None))
        check_bounds(self, batch_tokens=(1, None), bootstrap_samples=(100, None))
        check_bounds(self, tensor_parallel=(1, None), data_parallel=(1, None))
        check_bounds(self, small_group_documents=(0, None), seed=(0, None), shots=(0, None))
        check_bounds(self, num_document_prompts=(0, None), document_prompt_tokens=(1, None))
        if self.backend == "lm_eval" and self.chat:
            raise ConfigError("backend (lm_eval) compares plain prompts; set chat=false")
        if self.checkpoints and min(self.checkpoints) < 1:
            raise ConfigError(f"checkpoints ({min(self.checkpoints)}) are steps, from 1 on")
        if self.window_tokens is not None and (self.context_tokens or 0) >= self.window_tokens:
            raise ConfigError(
                f"context_tokens ({self.context_tokens}) must be less than window_tokens"
                f" ({self.window_tokens}); try {self.window_tokens // 2}"
            )

    def require_backend(self) -> None:
        """Raise ConfigError where the evaluation harness is asked for and not installed: on the
        machine that scores, which need not be the one that composed the run."""
        if self.backend == "lm_eval" and find_spec("lm_eval") is None:
            raise ConfigError(
                "evaluate.backend (lm_eval) needs the package lm-eval; install textmill[lm-eval],"
                " or use own"
            )


@dataclass(frozen=True)
class GenerateConfig:
    """How texts are generated: samples of the evaluation, answers on the command line, and answers
    of the server where a request sets nothing else."""

    max_new_tokens: int = 64
    """Most tokens generated after a prompt."""
    min_new_tokens: int = 0
    """Fewest tokens of an answer, unless a limit or a stop string ends it."""
    temperature: float = 0.8
    """Temperature of sampling. 0 always takes the most probable token."""
    top_k: int = 0
    """Sample only among so many most probable tokens. 0: among all."""
    top_p: float = 0.95
    """Sample only among the most probable tokens that together have this probability."""
    min_p: float = 0.0
    """Sample only among tokens with at least this probability relative to the most probable one."""
    repetition_penalty: float = 1.0
    """Divides the positive logits of tokens in prompt or answer, and multiplies negative ones.
    1: no penalty."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that occur in the answer."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token for each time it occurs in the answer."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer and are not part of it."""
    seed: int = 0
    """Seed of the random numbers; each answer has a stream of its own."""
    device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata=NOT_IN_KEY)
    """Where `textmill generate` and `textmill serve` run the model. auto: on a GPU where there is
    one."""
    tensor_parallel: int = field(default=1, metadata=NOT_IN_KEY)
    """Processes that share each layer in `textmill generate` and `textmill serve`, on a GPU each
    where there are GPUs."""
    draft: str | None = field(default=None, metadata=NOT_IN_KEY)
    """What guesses several tokens in `textmill generate`, for the model to check at once: ngram, or
    the folder of a smaller model with the same tokenizer. Null: nothing."""

    def __post_init__(self) -> None:
        check_bounds(self, max_new_tokens=(0, None), tensor_parallel=(1, None))
        self.sampling()  # which checks the rest

    def sampling(self) -> SamplingParams:
        own = {f.name for f in fields(self)}
        return SamplingParams(
            **{f.name: getattr(self, f.name) for f in fields(SamplingParams) if f.name in own}
        )


@dataclass(frozen=True)
class SuitesConfig:
    """Which suites `contamination` looks for and `evaluate` scores."""

    folders: tuple[Path, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Folders of suites: each has a suite.yaml, or holds folders that have one. Their content is
    part of the key."""
    max_items: int | None = None
    """Items of each suite that are scored: its first ones. Null: all."""

    def __post_init__(self) -> None:
        check_bounds(self, max_items=(1, None))

    def load(self) -> list[Suite]:
        """The suites in order of their names. Raises ConfigError for what is not one."""
        from tasks.evaluation.suites import load_suite, suite_folders

        return [load_suite(*each) for each in sorted(suite_folders(self.folders).items())]

    def searched(self) -> dict[str, SuiteConfig]:
        """The suites as `contamination` looks for them. Raises ConfigError for missing records."""
        from tasks.evaluation.suites import read_suite_file, record_files, suite_folders

        found = {}
        for name, folder in suite_folders(self.folders).items():
            suite = read_suite_file(folder)
            choices = suite.columns.choices if suite.kind == "choices" else None
            columns = suite.columns.question, suite.columns.answer, choices, suite.columns.id
            found[name] = SuiteConfig(record_files(folder, suite)[suite.file], *columns)
        return found


@dataclass(frozen=True)
class EvaluateStageConfig:
    """What is scored, and how the samples beside it are generated."""

    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    suites: SuitesConfig = field(default_factory=SuitesConfig)
    contamination: ContaminationConfig = field(default_factory=ContaminationConfig)
    """What counts as an item that training has seen. The items are those of the suites above."""

    def key_of_device(self, device: str) -> dict[str, str]:
        """What a machine with this fingerprint (`llm_core.fingerprint`) changes of the figures: the
        type that dtype=auto stands for."""
        scoring = self.evaluate
        on_gpu = scoring.device == "cuda" or (scoring.device == "auto" and " + " in device)
        return {"dtype": "bfloat16"} if on_gpu and scoring.dtype == "auto" else {}

    def input_files(self) -> dict[str, Path]:
        """Every file of every suite, which is read and checked before anything runs."""
        from tasks.evaluation.suites import SUITE_FILE, record_files, suite_folders

        files: dict[str, Path] = {}
        if (folder := self.evaluate.folder) is not None:
            if not folder.is_dir():
                raise ConfigError(f"evaluate.folder ({folder}) is not a folder of a model")
            inside = [file for file in sorted(folder.iterdir()) if file.is_file()]
            files |= {f"folder/{file.name}": file for file in inside}
        loaded = {suite.name: suite for suite in self.suites.load()}
        for name, folder in suite_folders(self.suites.folders).items():
            named = {SUITE_FILE: folder / SUITE_FILE, **record_files(folder, loaded[name].file)}
            files |= {f"{name}/{file}": path for file, path in named.items()}
        return files


@dataclass(frozen=True)
class QuantizeConfig:
    """How `textmill quantize` rounds weights."""

    format: Format = "int8"
    """Format of the matrices of blocks. int8: 8 bits, a scale for each output. int4: 4.5 bits,
    including a scale and an offset for each 64 inputs. fp8: E4M3, for Hopper GPUs. Embedding and
    head are always int8."""
    device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata=NOT_IN_KEY)
    """Where weights are rounded and scored. auto: on a GPU where there is one."""
