"""The plan as a page of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["plan_text"]


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:,.2f} {unit}"
    return f"{value:,.0f} B"


def _count(value: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:,.2f} {unit}"
    return f"{value:,.0f}"


def _duration(seconds: float) -> str:
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:,.1f} days"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:,.1f} min" if seconds >= 120 else f"{seconds:,.3g} s"


def _rows(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) if not place else cell.rjust(width)
                         for place, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in cells
    ]  # fmt: skip


def plan_text(plan: Mapping[str, Any]) -> str:
    """The value of ``report.to_json`` for people."""
    parts = (_model, _tokens, _memory, _time, _traffic, _checkpoints, _field, _findings)
    lines: list[str] = []
    for part in parts:
        lines += [*part(plan), ""]
    return "\n".join(lines[:-1])


def _model(plan: Mapping[str, Any]) -> list[str]:
    model, flops = plan["model"], plan["flops"]
    return [
        f"model {model['preset']}: {_count(model['parameters'])} parameters "
        f"({_count(model['non_embedding_parameters'])} without embedding and head)",
        f"  width {model['dim']}, {model['layers']} blocks, {model['heads']} heads, {model['kv_heads']} key/value "
        f"heads, feed-forward {model['ffn']}, vocabulary {model['vocab_size']}, {model['seq_len']} tokens a sample",
        f"  {flops['per_token']:.3e} FLOPs a token = 6 x matrices {flops['per_token_matrices']:.3e} "
        f"+ causal attention {flops['per_token_attention_causal']:.3e}",
        f"  {flops['total']:.3e} FLOPs in all (6 N D: {flops['six_n_d']:.3e})",
    ]


def _tokens(plan: Mapping[str, Any]) -> list[str]:
    tokens = plan["tokens"]
    least, most = tokens["per_step_range"]
    per_step = _count(most) if least == most else f"{_count(least)} to {_count(most)}"
    origin = "from the Datasets" if tokens["from_datasets"] else "from the configuration alone"
    lines = [
        f"tokens {_count(tokens['planned'])} in {tokens['steps']:,} steps of {per_step} ({origin})",
        f"  {tokens['per_parameter']:.2f} a parameter; compute-optimal at about 20: "
        f"{_count(tokens['compute_optimal'])} (planned: {tokens['planned_over_optimal']:.2g}x)",
    ]
    if tokens["sources"]:
        cells = [["source", "tokens", "share", "held", "epochs"]]
        for source in tokens["sources"]:
            held = "-" if source["held"] is None else _count(source["held"])
            epochs = "-" if source["epochs"] is None else f"{source['epochs']:,.2f}"
            cells.append([source["name"], _count(source["tokens"]), f"{source['share']:.1%}", held, epochs])
        lines += _rows(cells)
    return lines


def _memory(plan: Mapping[str, Any]) -> list[str]:
    mesh, memory, step = plan["mesh"], plan["memory"], plan["step"]
    dims = " x ".join(f"{name} {mesh[name]}" for name in ("data", "context", "tensor", "pipeline"))
    names = ("parameters", "gradients", "optimizer", "copies", "activations", "head", "working")
    cells = [["rank", *names, "peak", "most at", "needed"]]
    for rank in memory["ranks"]:
        cells.append(
            [str(rank["rank"]), *(_bytes(rank[name]) for name in names), _bytes(rank["peak"]), rank["peak_at"],
             _bytes(rank["needed"])]
        )  # fmt: skip
    by = ", ".join(f"{name} {_bytes(value)}" for name, value in memory["needed_by_recompute"].items())
    return [
        f"mesh {mesh['world']} = {dims}, state: {mesh['sharing']}; {step['micro_batches']} micro-batches of "
        f"{step['micro_batch']} samples a rank, {plan['attention']}",
        f"memory of a card, by pipeline rank ({_bytes(memory['card_bytes'])} on a card)",
        *_rows(cells),
        f"  needed with run.recompute: {by}",
    ]


def _time(plan: Mapping[str, Any]) -> list[str]:
    time = plan["time"]
    lines = [
        f"time on {time['cards']} x {time['card']} at {time['mfu']:.0%} of {time['peak_flops_per_s'] / 1e12:,.4g} "
        f"TFLOP/s: {time['step_s']:.3g} s a step, {_count(time['tokens_per_s'])} tokens/s",
        f"  computing {time['card_hours_computing']:,.4g} card-hours "
        f"({_duration(time['card_hours_computing'] * 3600 / time['cards'])})",
    ]
    if time["cluster_factor"] is None:
        return [*lines, "  the cluster fails faster than it saves: more checkpoints, or it never ends"]
    how = (
        "given"
        if time["cluster_factor_given"]
        else f"a failure every {_duration(time['failures']['mtbf_s'])}, restarts of "
        f"{_duration(time['failures']['restart_s'])}, saves"
    )
    lines.append(
        f"  x {time['cluster_factor']:.3f} cluster factor ({how}) = {time['card_hours']:,.4g} card-hours, "
        f"{_duration(time['hours'] * 3600)}"
    )
    if time["usd"] is not None:
        lines.append(f"  about {time['usd']:,.0f} USD at {time['usd_per_card_hour']:.2f} a card-hour (an assumption)")
    return lines


def _traffic(plan: Mapping[str, Any]) -> list[str]:
    traffic = plan["traffic"]
    store, rank = traffic["store"], traffic["rank_bytes_per_step"]
    lines = [
        f"store: {_bytes(store['machine_bytes_per_s'])}/s a machine, {_bytes(store['all_machines_bytes_per_s'])}/s for "
        f"{store['machines']}; {_bytes(store['machine_bytes'])} a machine in all",
    ]
    if store["cold_start_bytes"] is not None:
        lines.append(f"  {_bytes(store['cold_start_bytes'])} before step 0, {_bytes(store['live_bytes'])} open at once")
    moved = ", ".join(f"{name} {_bytes(value)}" for name, value in rank.items() if value)
    if moved:
        lines.append(
            f"between cards, a rank and step: {moved}; state {traffic['state_s_not_overlapped']:.3g} s "
            f"({traffic['state_link']}), activations {traffic['tensor_s_not_overlapped']:.3g} s, if nothing overlaps"
        )
    return lines


def _checkpoints(plan: Mapping[str, Any]) -> list[str]:
    found = plan["checkpoints"]
    best = found["best_every_steps"]
    often = "step" if best == 1 else f"{best:,} steps"
    return [
        f"checkpoints of {_bytes(found['size_bytes'])} every {found['every_steps']} steps "
        f"({_duration(found['every_s'])}): {found['count']:,}, {_bytes(found['disk_bytes'])} at once, "
        f"{_bytes(found['written_bytes'])} in all",
        f"  checkpoint.every_steps: {best} would lose the least time to saves and failures together: one every {often} "
        f"({_duration(best * plan['time']['step_s'])})",
    ]


def _field(plan: Mapping[str, Any]) -> list[str]:
    near = plan["field"]["row"]
    cells = [["the field", "lr", "batch, tokens", "context"]]
    for row in plan["field"]["table"]:
        low, high = row["batch_tokens"]
        batch = _count(low) if low == high else f"{_count(low)} to {_count(high)}"
        mark = " *" if near is not None and near["name"] == row["name"] else ""
        cells.append([row["name"] + mark, f"{row['lr']:g}", batch, str(row["context"])])
    return [*_rows(cells), *(f"  remark: {remark}" for remark in plan["remarks"])]


def _findings(plan: Mapping[str, Any]) -> list[str]:
    lines = [f"note: {note}" for note in plan["notes"]]
    for finding in plan["warnings"]:
        lines.append(f"{'impossible' if finding['fatal'] else 'warning'}: {finding['name']}: {finding['message']}")
    return lines or ["no warnings"]
