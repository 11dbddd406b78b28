"""The books of one replica, as JSON values."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from diloco.outer.fragments import describe as describe_fragments
from diloco.outer.optimizers import describe
from diloco.wire.local import Local

if TYPE_CHECKING:
    from diloco.sync.diloco import DiLoCo


def make_receipt(sync: DiLoCo) -> dict:
    rounds = sync.rounds
    committed = [r for r in rounds if r.committed]
    # A resumed run may have had another number of replicas in its earlier rounds.
    ever = range(max([sync.exchange.replicas, *(len(r.tokens) for r in rounds)]))
    # Every window is sent once per fragment; one fragment's rounds hold each token once.
    windows = [r for r in rounds if r.fragment == 0]
    return {
        "replica": sync.rank,
        "replicas": sync.exchange.replicas,
        "sync_every": sync.sync_every,
        "outer": describe(sync.outer),
        "fragments": describe_fragments(sync.fragmentation),
        "fragment_params": [sum(p.hi - p.lo for p in f.flat.places) for f in sync.fragments],
        "fragment_elements": [f.flat.numel for f in sync.fragments],
        "overlap": sync.late or sync.overlap,
        "mixing": sync.mixing,
        "codec": sync.codec.name,
        "codec_choice": sync.codec_choice and str(sync.codec_choice),
        "merge": sync.merge.name,
        "rounds_planned": sync.rounds_planned,
        "rounds_committed": len(committed),
        "rounds_failed": sync.rounds_planned - len(committed) - len(sync.airborne),
        "rounds_airborne": len(sync.airborne),
        "inner_steps": sync.inner_step,
        "inner_steps_unsynced": sync.inner_step - sync.synced_step,
        "inner_steps_dropped": sync.steps_dropped,
        "tokens_per_replica": [sum(r.tokens[m] for r in windows if m < len(r.tokens)) for m in ever],
        "tokens_lost": sum(r.tokens[m] for r in windows for m in r.left_out),
        "replica_resets": [sum(m in r.left_out for r in rounds) for m in ever],
        "spread_median": committed[-1].spread_median if committed else None,
        "spread_max": committed[-1].spread_max if committed else None,
        "checksum": sync.checksum(),
        "bytes_sent": sum(r.bytes_sent for r in rounds) + sync.site_bytes_sent,
        "site_averages": sync.site_averages,
        "site_bytes_sent": sum(r.site_bytes_sent for r in rounds) + sync.site_bytes_sent,
        "compute_s": sync.compute_s,
        "encode_s": sum(r.encode_s for r in rounds),
        "wire_s": sum(r.wire_s for r in rounds),
        "wait_s": sum(r.wait_s for r in rounds),
        "stall_s": sum(r.stall_s for r in rounds) + sync.site_s,
        "mbit_per_s": _mbit_per_s(sync),
        "rounds": [dataclasses.asdict(r) for r in rounds],
    }


def _mbit_per_s(sync: DiLoCo) -> float | None:
    """Effective bandwidth while somebody waited for the network; None where nobody did, or there is none."""
    sent_bytes, wire_s = sum(r.bytes_sent for r in sync.rounds), sum(r.wire_s for r in sync.rounds)
    if isinstance(sync.exchange, Local) and not sync.exchange.clock:
        return None
    return 8e-6 * sent_bytes / wire_s if sent_bytes and wire_s > 0 else None
