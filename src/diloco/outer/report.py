"""What a round leaves behind: its report, and the fault no sync can repair."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RoundReport:
    """What one outer step of one fragment did; the same on every replica but for the bytes and seconds."""

    round: int
    """Rounds planned so far, this one included; counted from 1."""
    step: int
    """Inner steps taken when the window closed and the outer gradient was sent."""
    steps: int
    """Inner steps in the window."""
    partial: bool
    """A last window shorter than the fragment's interval."""
    fragment: int = 0
    """Which fragment, counted from 0."""
    landed_step: int = 0
    """Inner steps taken when the result was applied: `step` without overlap."""
    committed: bool = False
    """False when no replica had a finite outer gradient, so that the anchor stayed."""
    left_out: list[int] = field(default_factory=list)
    """Replicas whose outer gradient was not finite; they were reset from the anchor."""
    tokens: list[int] = field(default_factory=list)
    """Tokens each replica trained on in the window, as counted by `count_tokens`."""
    outer_lr: float = 0.0
    outer_gradient_norm: float = 0.0
    """Norm of the merged outer gradient."""
    outer_update_norm: float = 0.0
    """Norm of what the anchor moved by, after clipping."""
    spread_median: float = 0.0
    """Median over replicas of the distance between the replica's weights and the merged weights, just before the
    sync."""
    spread_max: float = 0.0
    cosine_median: float = 0.0
    """Median over replicas of the cosine between its outer gradient and the merged one."""
    noise: float | None = None
    """Variance of the merged outer gradient over its squared mean (`schedule.noise_ratio`); None for one replica."""
    checksum: str = ""
    """64-bit checksum of the fragment's anchor after the round, in hex."""
    bytes_sent: int = 0
    """Bytes this replica handed to the wire in the round."""
    site_bytes_sent: int = 0
    """Those of them that stayed inside its site (two-level exchange)."""
    wire_s: float = 0.0
    """Seconds blocked on the network, after all replicas had arrived."""
    wait_s: float = 0.0
    """Seconds waiting for the slowest replica to arrive."""
    encode_s: float = 0.0
    """Seconds of arithmetic: outer gradient, encoding, decoding, merging, outer step."""
    stall_s: float = 0.0
    """Seconds the inner steps stood still for the round; without overlap all of it."""


class Mismatch(RuntimeError):
    """The replicas of a run have ceased to agree, which no sync can repair."""
