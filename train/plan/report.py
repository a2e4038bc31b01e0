"""The whole plan of a training job as one JSON-able value."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..config import TrainConfig
from ..job import Job
from ..metrics.flops import token_flops
from ..model_shape import ModelShape
from .advice import FIELD, field_row, optimal_tokens, remarks
from .checkpoints import Checkpoints, checkpoint_bytes
from .cluster import Cluster
from .flops import recomputed_fraction
from .impossible import Finding, memory_warnings, mesh_of_world, mesh_warnings
from .memory import RankMemory, rank_memory
from .parameters import count_parameters
from .request import Assumptions, attention_name, cluster_of, mesh_request, mesh_sizes, model_sizes, step_sizes
from .schedule import (
    MTBF_CARD_HOURS,
    RESTART_S,
    STAGING_BYTES_PER_S,
    Failures,
    card_hours,
    cluster_factor,
    young_interval_s,
)
from .sizes import Kernels, MeshSizes, StepSizes
from .tokens import PlannedTokens, batches_reached, mixture_tokens, open_or_none, planned_tokens
from .traffic import step_traffic
from .waste import waste_warnings

__all__ = ["TrainingPlan", "plan_training", "to_json"]

_FOR_WINDOW = 2  # checkpoints that the next alarm of a spike may need


@dataclass(frozen=True)
class TrainingPlan:
    """Everything that the report is made of.

    Attributes:
        config: of the job. tokens: planned. model, mesh, step, cluster: sizes. memory: of each pipeline rank, with the
            step's recompute. findings: what cannot work, or should not. notes: what was assumed for want of Datasets.
        assumed: see its class.
    """

    config: TrainConfig
    tokens: PlannedTokens
    model: ModelShape
    mesh: MeshSizes
    step: StepSizes
    cluster: Cluster
    memory: tuple[RankMemory, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    assumed: Assumptions


def plan_training(job: Job, assumed: Assumptions) -> TrainingPlan:
    """Plan a training job; nothing is written.

    Raises:
        ConfigError: an assumption cannot be, or the mixture does not fit the Datasets.
        DamageError, RefusedError: a Dataset is damaged, or they do not fit each other.
    """
    config = job.config
    cluster = cluster_of(config, assumed)
    sources, why = open_or_none(job)
    notes: list[str] = []
    if sources is None:
        model = model_sizes(config, assumed.vocab_size, assumed.seq_len)
        tokens = mixture_tokens(config, model.seq_len, model.vocab_size)
        notes.append(f"no Datasets ({why}): vocabulary {model.vocab_size} and {model.seq_len} tokens a sample assumed")
    else:
        tokens = planned_tokens(config, sources)
        model = model_sizes(config, tokens.vocab_size, tokens.seq_len)
    findings: list[Finding] = []
    if tokens.steps < config.steps:
        message = f"the data end at step {tokens.steps} of {config.steps}"
        findings.append(Finding("data-end-early", message, fatal=False))
    world = assumed.cards or config.run.processes
    mesh = mesh_of_world(mesh_sizes(config.parallel), world)
    kernels = Kernels.of(cluster.device, attention_name(config, cluster, model))
    step = step_sizes(config, mesh, kernels)
    findings += mesh_warnings(mesh_request(config, model, world), mesh)
    memory = rank_memory(model, mesh, step)
    if cluster.device != "cpu":
        findings += memory_warnings(memory, cluster.card.memory_bytes, cluster.name)
    plan = TrainingPlan(
        config, tokens, model, mesh, step, cluster, tuple(memory), tuple(findings), tuple(notes), assumed
    )
    wasted = waste_warnings(tokens.sources, _time(plan)["hours"], cluster.device)
    return replace(plan, findings=(*findings, *wasted))


def to_json(plan: TrainingPlan) -> dict[str, Any]:
    """The plan as ``tokenreel plan --json`` prints it: bytes, seconds, hours, USD, as the keys say."""
    time = _time(plan)
    return {
        "kind": "train",
        "model": _model(plan),
        "flops": _flops(plan),
        "tokens": _tokens(plan),
        "mesh": {**asdict(plan.mesh), "world": plan.mesh.world},
        "step": {**asdict(plan.step), "micro_batches": plan.step.micro_batches(plan.mesh.data)},
        "attention": attention_name(plan.config, plan.cluster, plan.model),
        "memory": _memory(plan),
        "time": time,
        "traffic": _traffic(plan, time),
        "checkpoints": _checkpoints(plan, time),
        "field": {"row": _field(plan), "table": [asdict(row) for row in FIELD]},
        "remarks": _remarks(plan),
        "warnings": [asdict(finding) for finding in plan.findings],
        "notes": list(plan.notes),
    }


def _model(plan: TrainingPlan) -> dict[str, Any]:
    count = count_parameters(plan.model)
    return {
        **asdict(plan.model),
        "preset": plan.config.model.preset,
        "parameters": count.total,
        "embedding_parameters": count.embedding + count.head,
        "non_embedding_parameters": count.non_embedding,
    }


def _flops(plan: TrainingPlan) -> dict[str, Any]:
    flops = token_flops(plan.model)
    return {
        "per_token": flops.total,
        "per_token_matrices": flops.matrices,
        "per_token_attention_causal": flops.attention,
        "six_n_d": 6.0 * count_parameters(plan.model).total * plan.tokens.tokens,
        "total": flops.total * plan.tokens.tokens,
        "recomputed_fraction": recomputed_fraction(plan.model, plan.step),
    }


def _tokens(plan: TrainingPlan) -> dict[str, Any]:
    tokens, optimal = plan.tokens, optimal_tokens(plan.model)
    return {
        "steps": tokens.steps,
        "per_step": plan.step.global_batch * plan.model.seq_len,
        "per_step_range": [batch * plan.model.seq_len for batch in batches_reached(plan.config, tokens.steps)],
        "planned": tokens.tokens,
        "per_parameter": tokens.tokens / count_parameters(plan.model).total,
        "compute_optimal": optimal,
        "planned_over_optimal": tokens.tokens / optimal,
        "from_datasets": tokens.traffic is not None,
        "sources": [asdict(source) for source in tokens.sources],
    }


def _memory(plan: TrainingPlan) -> dict[str, Any]:
    def needed(rank: RankMemory) -> float:
        return rank.peak if plan.cluster.device == "cpu" else rank.needed

    def worst(recompute: Any) -> float:
        ranks = rank_memory(plan.model, plan.mesh, replace(plan.step, recompute=recompute))
        return max(map(needed, ranks))

    return {
        "ranks": [{**asdict(rank), "needed": needed(rank)} for rank in plan.memory],
        "needed_by_recompute": {name: worst(name) for name in ("none", "selective", "full")},
        "card_bytes": plan.cluster.card.memory_bytes,
    }


def _time(plan: TrainingPlan) -> dict[str, Any]:
    flops = token_flops(plan.model).total * plan.tokens.tokens
    achieved = plan.cluster.peak * plan.assumed.mfu
    cards = plan.mesh.world
    computing_h = card_hours(flops, achieved)
    step_s = computing_h * 3600 / cards / plan.tokens.steps
    every = plan.config.checkpoint.every_steps
    stall_s = checkpoint_bytes(plan.model) / cards / STAGING_BYTES_PER_S
    failures = Failures(cards, every * step_s, stall_s)
    on_cpu = plan.cluster.device == "cpu"
    factor = plan.assumed.factor or (1.0 if on_cpu else cluster_factor(failures))
    finite = math.isfinite(factor)
    price = plan.cluster.usd_per_hour
    return {
        "card": plan.cluster.name,
        "cards": cards,
        "mfu": plan.assumed.mfu,
        "peak_flops_per_s": plan.cluster.peak,
        "achieved_flops_per_s": achieved,
        "step_s": step_s,
        "tokens_per_s": plan.tokens.tokens / (computing_h * 3600 / cards),
        "card_hours_computing": computing_h,
        "cluster_factor": factor if finite else None,
        "cluster_factor_given": plan.assumed.factor is not None,
        "failures": {"mtbf_card_hours": MTBF_CARD_HOURS, "restart_s": RESTART_S, "mtbf_s": failures.mtbf_s},
        "best_save_interval_s": young_interval_s(failures),
        "card_hours": computing_h * factor if finite else None,
        "hours": computing_h * factor / cards if finite else None,
        "usd_per_card_hour": price,
        "usd": computing_h * factor * price if finite and price is not None else None,
    }


def _traffic(plan: TrainingPlan, time: dict[str, Any]) -> dict[str, Any]:
    traffic = step_traffic(plan.model, plan.mesh, plan.step)
    cluster = plan.cluster
    inside = plan.mesh.world <= cluster.cards
    rate = cluster.card.link_bytes_per_s if inside else cluster.network_bytes_per_s
    machines = -(-plan.mesh.world // cluster.cards)
    node = plan.tokens.traffic
    whole_s = time["card_hours_computing"] * 3600 / plan.mesh.world
    node_bytes = plan.tokens.tokens * plan.tokens.token_bytes if node is None else node.total_bytes
    return {
        "store": {
            "machines": machines,
            "tokens_bytes_per_s": time["tokens_per_s"] * plan.tokens.token_bytes,
            "machine_bytes": node_bytes,
            "machine_bytes_per_s": node_bytes / whole_s,
            "all_machines_bytes_per_s": machines * node_bytes / whole_s,
            "cold_start_bytes": None if node is None else node.cold_bytes,
            "live_bytes": None if node is None else node.live_bytes,
        },
        "rank_bytes_per_step": asdict(traffic),
        "state_s_not_overlapped": traffic.state / rate,
        "tensor_s_not_overlapped": (traffic.tensor + traffic.context) / cluster.card.link_bytes_per_s,
        "state_link": "inside a machine" if inside else "network",
    }


def _checkpoints(plan: TrainingPlan, time: dict[str, Any]) -> dict[str, Any]:
    config = plan.config.checkpoint
    days = math.ceil(time["step_s"] * plan.tokens.steps / 86_400)
    window = _FOR_WINDOW if plan.config.spikes.enabled else 0
    kept = config.keep_last + min(config.keep_daily, days) + window
    found = Checkpoints(checkpoint_bytes(plan.model), config.every_steps, plan.tokens.steps, kept)
    return {
        **asdict(found),
        "count": found.count,
        "disk_bytes": found.disk_bytes,
        "written_bytes": found.written_bytes,
        "every_s": config.every_steps * time["step_s"],
        "best_every_steps": max(1, round(time["best_save_interval_s"] / time["step_s"])),
    }


def _field(plan: TrainingPlan) -> dict[str, Any] | None:
    row = field_row(count_parameters(plan.model).total)
    return None if row is None else asdict(row)


def _remarks(plan: TrainingPlan) -> list[str]:
    batch_tokens = plan.step.global_batch * plan.model.seq_len
    return remarks(plan.model, plan.config.optimizer.lr, batch_tokens, plan.tokens.tokens)
