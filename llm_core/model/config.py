"""The shape of a decoder of the Llama, Qwen, Gemma, GPT-2 or GPT-NeoX type, with its exact
parameter and FLOP counts, and how it is computed. Standard library only.

The type is not named but follows from the choices; a mixture that no Hugging Face class computes is
refused, because every trained model is written as one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from llm_core.config import IN_KEY_IF_SET, NOT_IN_KEY, ConfigError
from llm_core.model.expert_config import ExpertFamily, ExpertsConfig, expert_family
from llm_core.model.families import DenseFamily, check_choices, dense_family
from llm_core.model.sparse.patterns import Pattern, patterns_of

Family = DenseFamily | ExpertFamily
"""The Hugging Face class that computes the same logits, as its `model_type`."""

MAX_FFN_BLOCKS = 16
"""Enough for the tensor ranks of a machine. Checkpoints depend on it: gate_up is in its order."""

ONE_PASS_KERNELS = ("triton", "quack")
"""Values of `train.kernels` that replace operations of torch."""


def block_of(inner: int) -> int:
    """Channels of one run of gate and up, for a feed-forward of this inner width."""
    return inner // math.gcd(inner, MAX_FFN_BLOCKS)


@dataclass(frozen=True)
class RopeScaling:
    """Slower rotation of the slow channels, so that a model reads further than it was trained.

    llama3: channels that turn once in less than original_max_seq_len / high_freq_factor tokens
    stay; those that need more than original_max_seq_len / low_freq_factor turn `factor` times
    slower; between the two it is interpolated. yarn (Peng et al., 2023, section 3): channels with
    more than beta_fast turns in original_max_seq_len tokens stay, those with less than beta_slow
    are slowed, those between by their place; and queries and keys are scaled.
    """

    factor: float = 8.0
    """How many times slower the slow channels turn."""
    low_freq_factor: float = 1.0
    """Channels that need more than original_max_seq_len / low_freq_factor tokens for a turn are
    slowed by all of `factor`."""
    high_freq_factor: float = 4.0
    """Channels that need less than original_max_seq_len / high_freq_factor tokens for a turn
    stay."""
    original_max_seq_len: int = 8192
    """Sequence length of the training before."""
    kind: Literal["llama3", "yarn"] = field(default="llama3", metadata=IN_KEY_IF_SET)
    """Rule by which channels are slowed."""
    beta_fast: float = field(default=32.0, metadata=IN_KEY_IF_SET)
    """yarn: turns above which channels stay."""
    beta_slow: float = field(default=1.0, metadata=IN_KEY_IF_SET)
    """yarn: turns below which channels are slowed by all of `factor`."""
    attention_factor: float = field(default=0.0, metadata=IN_KEY_IF_SET)
    """yarn: scale of queries and of keys. 0: 1 + ln(factor) / 10."""
    whole_channels: bool = field(default=True, metadata=IN_KEY_IF_SET)
    """yarn: round the bounds between channels to whole ones, as most models do."""

    def __post_init__(self) -> None:
        if not self.factor >= 1 or self.original_max_seq_len < 1:
            raise ConfigError(
                f"factor ({self.factor}) and original_max_seq_len ({self.original_max_seq_len})"
                " must be at least 1"
            )
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ConfigError(
                f"low_freq_factor ({self.low_freq_factor}) must be positive and less than"
                f" high_freq_factor ({self.high_freq_factor}); Llama 3.1 has 1 and 4"
            )
        if not 0 < self.beta_slow < self.beta_fast or self.attention_factor < 0:
            raise ConfigError(
                f"beta_slow ({self.beta_slow}) must be positive and less than beta_fast"
                f" ({self.beta_fast}), and attention_factor ({self.attention_factor}) not negative;"
                " YaRN has 1, 32 and 0"
            )

    @property
    def head_scale(self) -> float:
        """Of queries and of keys after their rotation."""
        if self.kind != "yarn":
            return 1.0
        return self.attention_factor or 1 + 0.1 * math.log(self.factor)


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides the architecture; what is left out gives a Llama: RMSNorm, SwiGLU,
    rotary positions, no biases."""

    vocab_size: int
    """Number of token ids. 0 takes the size of the tokenizer."""
    dim: int
    """Width of the residual stream."""
    num_layers: int
    """Number of blocks, each of attention and a feed-forward."""
    num_heads: int
    """Query heads of a block."""
    num_kv_heads: int
    """Key/value heads of a block; each serves num_heads / num_kv_heads query heads."""
    ffn_dim: int
    """Inner width of the feed-forward."""
    max_seq_len: int
    """Longest sequence the model is meant for."""
    rope_theta: float = 10000.0
    """Base of the rotary positions; larger for longer sequences."""
    norm_eps: float = 1e-5
    """Added to the mean square (of layer norms: the variance) under the root."""
    tied_embeddings: bool = True
    """One matrix serves as input embedding and output head."""
    own_head_dim: int = 0
    """Channels of one head. 0: dim / num_heads."""
    norm: Literal["rms", "offset_rms", "layer"] = "rms"
    """rms scales only. offset_rms scales by one more than its weights (Gemma). layer also subtracts
    the mean, and has weight and bias (GPT-2)."""
    ffn: Literal["swiglu", "geglu", "gelu", "exact_gelu"] = "swiglu"
    """Form of the feed-forward. geglu: GELU in its tanh form for the SiLU of swiglu (Gemma). gelu:
    one matrix up, GELU in its tanh form, one down (GPT-2). exact_gelu: with GELU as it is defined
    (GPT-NeoX)."""
    positions: Literal["rotary", "learned"] = "rotary"
    """How positions are encoded. learned: a trained vector for each of max_seq_len places, added to
    the embedding (GPT-2)."""
    qkv_bias: bool = False
    """Biases on queries, keys and values (Qwen 2, GPT-2)."""
    out_bias: bool = False
    """Bias on the projection of attention back into the residual stream (GPT-2)."""
    ffn_bias: bool = False
    """Biases on every matrix of the feed-forward (GPT-2)."""
    qk_norm: bool = False
    """RMSNorm over each query and key head before rotation (Qwen 3)."""
    rotary_frac: float = field(default=1.0, metadata=IN_KEY_IF_SET)
    """Part of a head's channels, from the first, that rotary positions turn (GPT-NeoX: 0.25)."""
    parallel_residual: bool = field(default=False, metadata=IN_KEY_IF_SET)
    """Attention and feed-forward of a block read the same residual stream, as GPT-NeoX does."""
    scaled_embeddings: bool = field(default=False, metadata=IN_KEY_IF_SET)
    """Embeddings enter the residual stream times the square root of dim (Gemma)."""
    rope_scaling: RopeScaling | None = None
    window: int = 0
    """A token attends itself and the window - 1 tokens before it (sliding window). 0: all."""
    full_layers: tuple[int, ...] = ()
    """Layers, from 0, that attend all tokens although there is a window."""
    attention: tuple[Pattern, ...] | str = field(default=(), metadata=IN_KEY_IF_SET)
    """Patterns of the tokens that a token attends, in place of a window: layer n has that at n
    modulo their number; or the name of some, longformer, bigbird, sparse_strided or sparse_fixed
    (`llm_core.model.sparse.patterns`). (): all tokens, or the window."""
    experts: ExpertsConfig | None = field(default=None, metadata=IN_KEY_IF_SET)
    """Experts in place of each feed-forward; ffn_dim is the inner width of one. None: dense."""

    def __post_init__(self) -> None:
        for name in ("dim", "num_layers", "num_heads", "num_kv_heads", "ffn_dim", "max_seq_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be at least 1")
        if self.vocab_size < 0:
            raise ConfigError(
                f"vocab_size ({self.vocab_size}) must not be negative; 0 takes the size of the"
                " tokenizer"
            )
        if self.own_head_dim < 0 or self.own_head_dim % 2:
            raise ConfigError(
                f"own_head_dim ({self.own_head_dim}) must be even, because rotary positions turn"
                " pairs; 0 takes dim / num_heads"
            )
        if not self.own_head_dim and (
            self.dim % self.num_heads or (self.dim // self.num_heads) % 2
        ):
            even = 2 * self.num_heads
            raise ConfigError(
                f"dim ({self.dim}) must be an even multiple of num_heads ({self.num_heads}),"
                " because rotary positions turn pairs of channels; try"
                f" dim={-(-self.dim // even) * even}"
            )
        if self.num_heads % self.num_kv_heads:
            divisors = [n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0]
            raise ConfigError(
                f"num_kv_heads ({self.num_kv_heads}) must divide num_heads ({self.num_heads});"
                f" choose from {divisors}"
            )
        if not self.rope_theta > 0 or not self.norm_eps > 0:
            raise ConfigError(
                f"rope_theta ({self.rope_theta}) and norm_eps ({self.norm_eps}) must be positive;"
                " Llama 2 has 10000 and 1e-5"
            )
        if self.rope_scaling and self.rope_scaling.kind == "yarn" and self.rope_theta <= 1:
            raise ConfigError(
                f"rope_theta ({self.rope_theta}) must be above 1 for rope_scaling.kind=yarn; Llama"
                " 2 has 10000"
            )
        check_choices(self)
        _ = self.patterns, self.family

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Of each layer: which tokens a token attends."""
        return patterns_of(self.attention, self.window, self.full_layers, self.num_layers)

    @property
    def common_window(self) -> int:
        """Tokens that a token attends in every layer; 0 where a layer attends others too."""
        return 0 if self.full_layers else self.window

    @property
    def head_dim(self) -> int:
        return self.own_head_dim or self.dim // self.num_heads

    @property
    def rotary_dim(self) -> int:
        """Channels of one head that rotary positions turn."""
        return int(self.head_dim * self.rotary_frac)

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward has a gate beside what goes up."""
        return self.ffn in ("swiglu", "geglu")

    @property
    def ffn_blocks(self) -> int:
        """Runs of inner channels: the most processes that can share gate and up."""
        return math.gcd(self.ffn_dim, MAX_FFN_BLOCKS)

    @property
    def ffn_block(self) -> int:
        """Channels of one of them."""
        return block_of(self.ffn_dim)

    @property
    def attention_dim(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def family(self) -> Family:
        """Raises ConfigError for a mixture that no family computes."""
        if self.experts is None:
            return dense_family(self)
        parts = (self.norm, self.ffn, self.positions)
        biases = (self.qkv_bias, self.out_bias, self.ffn_bias)
        windows = bool(self.window), bool(self.full_layers)
        return expert_family(self.experts, parts, biases, self.qk_norm, *windows, self.ffn_dim)

    def matmul_parameters(self, all_experts: bool = False) -> int:
        """Weights that a token is multiplied with; the head counts, also if tied. Of experts, those
        that a token is sent to, or all of them with `all_experts`."""
        qkv = self.dim * (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        attention_out = self.attention_dim * self.dim
        ffn = (3 if self.is_gated else 2) * self.dim * self.ffn_dim
        if self.experts is not None:
            ffn = self.experts.num_parameters(self.dim, self.ffn_dim, all_experts)
        return self.num_layers * (qkv + attention_out + ffn) + self.vocab_size * self.dim

    def num_parameters(self, active: bool = False) -> int:
        """All trained numbers, each counted once (a tied embedding is one matrix). active: count
        only the experts that a token is sent to."""
        norms = (2 * self.num_layers + 1) * self.dim * (2 if self.norm == "layer" else 1)
        norms += self.num_layers * 2 * self.head_dim if self.qk_norm else 0
        biases = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim if self.qkv_bias else 0
        biases += self.dim if self.out_bias else 0
        biases += self.dim + (2 if self.is_gated else 1) * self.ffn_dim if self.ffn_bias else 0
        embedding = 0 if self.tied_embeddings else self.vocab_size * self.dim
        positions = self.max_seq_len * self.dim if self.positions == "learned" else 0
        matrices = self.matmul_parameters(all_experts=not active)
        return matrices + norms + self.num_layers * biases + embedding + positions

    def training_flops_per_token(self, attended_tokens: float, causal: bool = False) -> float:
        """FLOPs of forward and backward per token, 2 per multiply-add.

        6 x matmul weights + 12 x layers x heads x head_dim x attended_tokens (PaLM, appendix B):
        attention counted as if it were not causal, the convention of most published MFU figures.
        `causal=True` counts the half that is needed, as Megatron does.

        attended_tokens: as `sparse.pairs.attended_tokens` counts, or of its document where masks
        keep documents apart, in the mean over tokens.
        """
        attention = (6 if causal else 12) * self.num_layers * self.attention_dim * attended_tokens
        return 6 * self.matmul_parameters() + attention


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How a model is computed in training, and its initial weights."""

    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward and backward; weights are always float32, and gradient sums with
    gradient_bits=32. fp16 needs optim.loss_scale."""
    gradient_bits: Literal[16, 32] = field(default=32, metadata=IN_KEY_IF_SET)
    """Of each gradient while micro batches and processes are summed. 16: in dtype, as ZeRO is
    published, with half the memory and traffic; for the layouts zero1, zero2, fsdp and hsdp. Sums
    are then rounded, so layouts and micro batches agree less closely."""
    float8: bool = False
    """Compute the products of the blocks' linear layers in 8 bits (`llm_core.model.float8`): for
    Hopper GPUs, with dtype=bf16 and compile."""
    seed: int = 0
    """Decides the initial weights and the order of the data."""
    z_loss: float = field(default=0.0, metadata=IN_KEY_IF_SET)
    """Weight of log² Z in what is learnt from, with Z the normalizer of the softmax, which keeps
    logits from drifting (PaLM has 1e-4). Losses are reported without it. 0: none."""
    attention: Literal[
        "auto", "sdpa", "reference", "cudnn", "flash", "fa3", "fa4", "varlen", "flex"
    ] = field(default="auto", metadata=NOT_IN_KEY)
    """Attention kernel (`llm_core.model.attend`). auto: on a GPU the fastest of sdpa, cudnn and
    fa4, or of sdpa and varlen where documents are kept apart; elsewhere sdpa."""
    kernels: Literal["auto", "torch", "triton", "quack"] = field(
        default="torch", metadata=NOT_IN_KEY
    )
    """Kernels between the matrix products of a block. triton: our own, one pass over memory each
    way, on GPUs (`llm_core.model.operations`). quack: these, and SwiGLU fused into the products
    around it by the package quack-kernels. auto: the fastest of these on a GPU, elsewhere torch; a
    trainer measures once for each device, shape and version (`llm_core.training.fastest`)."""
    compile: bool = field(default=False, metadata=NOT_IN_KEY)
    """Compile each block (torch.compile): faster steps on GPUs, after a minute of compiling."""
