"""What distinguishes one model from another, as plain data. One forward pass reads it; no class per architecture.

config_hf.py makes it from a config.json, config_gguf.py from a GGUF file's metadata; architectures.py has the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding: how the first `width` numbers of a head turn with the position. rope.py does the sums."""

    base: float
    width: int
    kind: str = "default"  # | "linear" | "llama3" | "yarn"
    factor: float = 1.0  # by which positions are stretched
    original: int = 0  # positions the model had before they were stretched
    low: float = 1.0  # llama3: turns within `original` below which a frequency is stretched whole
    high: float = 4.0  # llama3: and above which it is left alone
    fast: float = 32.0  # yarn: turns within `original` above which a frequency is left alone
    slow: float = 1.0  # yarn: and below which it is stretched whole
    truncate: bool = True  # yarn: the ramp between them begins and ends at whole numbers
    gain: float = 1.0  # cos and sin are multiplied by it
    divisors: tuple[float, ...] = ()  # one for each frequency (longrope), or none


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and choices of one model. Widths are numbers of float32."""

    architecture: str
    layers: int
    width: int  # D, of the residual stream
    heads: int  # H
    kv_heads: int  # K
    head_width: int  # W
    mlp_width: int  # F, of one expert where there are experts
    vocab: int  # V
    context: int  # positions the model was made for
    norm_eps: float
    activation: str  # "silu" | "gelu" (tanh form) | "gelu_erf" | "relu"
    attn_scale: float
    rope: Rope | None  # of layers that see everything; None: no rotary embedding
    local_rope: Rope | None = None  # of layers with a window, where it is another one
    no_rope: frozenset[int] = frozenset()  # layers without
    neighbours: bool = False  # the rotary embedding turns pairs of neighbours, not halves of a head
    norm: str = "rms"  # | "layer": with the mean taken off
    norm_bias: bool = False
    gated: bool = True  # the MLP is activation(gate) · up, or activation(up) alone
    pre_norms: bool = True  # norms before attention and before the MLP
    post_norms: bool = False  # norms after attention and after the MLP
    qk_norm: str = ""  # of queries and keys: "head" (the same for each), "heads" (each its own), "row" (over all)
    parallel: bool = False  # attention and MLP read the same residual stream
    shared_norm: bool = False  # and the same norm of it
    embed_scale: float = 1.0
    embed_norm: bool = False
    positions: int = 0  # rows of a learned table of positions; 0: there is none
    position_offset: int = 0  # its rows before position 0
    alibi: bool = False  # scores fall with distance
    residual_scale: float = 1.0  # of what attention and MLP add
    logit_scale: float = 1.0
    attn_cap: float = 0.0  # scores become cap · tanh(score / cap); 0: they do not
    logit_cap: float = 0.0
    window: int = 0  # positions a layer of `local` sees, itself included
    local: frozenset[int] = frozenset()  # layers that see a window
    experts: int = 0  # E; 0: one MLP
    experts_used: int = 0
    experts_normed: bool = True  # the chosen experts' weights are made to sum to 1
    biases: frozenset[str] = frozenset()  # matrices that have one: q, k, v, o, gate, up, down, head
    tied: bool = False  # the head is the embedding
    paired_rope: bool = False  # the file's Q and K rows stand in adjacent pairs, the model's in halves

    def window_of(self, layer: int) -> int:
        """How many positions a query of this layer sees; 0: all."""
        return self.window if layer in self.local else 0

    @property
    def windows(self) -> tuple[int, ...]:
        """The different windows of this model's layers, those that see all first."""
        return tuple(sorted({self.window_of(i) for i in range(self.layers)}))

    def place_of(self, layer: int) -> tuple[int, int]:
        """(group of layers with the same window, which layer of that group): where its keys and values lie."""
        window = self.window_of(layer)
        return self.windows.index(window), sum(self.window_of(i) == window for i in range(layer))

    def rope_of(self, layer: int) -> Rope | None:
        if layer in self.no_rope:
            return None
        return self.local_rope if self.local_rope is not None and self.window_of(layer) else self.rope
