"""What ``inspect`` prints for people."""

from __future__ import annotations

from typing import Any

__all__ = ["dataset_text", "tree_lines"]


def dataset_text(value: dict[str, Any]) -> str:
    """A Dataset as ``inspect`` prints it."""
    totals = value["totals"]
    lines = [
        f"{value['path']}  dataset {value['digest']}",
        f"  {totals['num_tokens']:,} tokens in {totals['num_samples']:,} samples of {value['seq_len']:,}"
        f" ({value['dtype']}, vocabulary {value['vocab_size']:,}), {totals['num_documents']:,} documents,"
        f" {totals['num_shards']:,} shards, {totals['size_bytes']:,} bytes",
        f"  {'source':20} {'share':>8} {'tokens':>16} {'samples':>12}"
        f" {'documents':>12} {'segments':>12} {'padding':>8}",
    ]
    lines += [
        f"  {s['name']:20} {s['share']:8.2%} {s['num_tokens']:16,} {s['num_samples']:12,} {s['num_documents']:12,}"
        f" {s['num_segments']:12,} {s['padding']:8.3%}"
        for s in value["sources"]
    ]
    lines += _counted_lines(value["sources"])
    accounts = value["accounting"].get("sources") or {}
    names = [source["name"] for source in value["sources"]]
    lines += _account_lines({name: accounts[name] for name in sorted(accounts, key=[*names, *accounts].index)})
    rest = {name: value[name] for name in ("tokenizer", "parents", "order", "mixture", "package_version")}
    lines += tree_lines({name: item for name, item in rest.items() if item is not None}, "  ")
    lines.append(f"  files: {len(value['files'])} covered by hash beside the shards")
    lines += ["", *value["streaming"].splitlines()]
    return "\n".join(lines)


def _counted_lines(sources: list[dict[str, Any]]) -> list[str]:
    """What was counted from the shards, and from how much of them."""
    if not sources or "counted" not in sources[0]:
        return []
    lines = [
        f"  {'documents of':20} {'BOS':>8} {'EOS':>8} {'mean':>10} {'median':>10} {'longest':>12} {'bytes/tok':>9}"
        f" {'seg/sample':>10} {'in pieces':>9}  counted from"
    ]
    for source in sources:
        counted = source["counted"]
        tokens = counted["tokens"]
        cut = counted["split"] / counted["documents"] if counted["documents"] else None
        seen = f"{counted['documents']:,} documents in {counted['shards']['read']} of {counted['shards']['of']} shards"
        if counted["borders"] != counted["documents"]:
            seen += f", borders of {counted['borders']:,}"
        lines.append(
            f"  {source['name']:20} {_share(counted['bos_fraction']):>8} {_share(counted['eos_fraction']):>8}"
            f" {_number(tokens['mean']):>10} {_number(tokens['median']):>10} {tokens['longest']:12,}"
            f" {_number(counted['bytes_per_token'], 3):>9} {_number(counted['segments_per_sample'], 2):>10}"
            f" {_share(cut):>9}  {seen}"
        )
    return lines


def _account_lines(sources: dict[str, dict[str, Any]]) -> list[str]:
    """Records by fate, a row a source, and what packing did; fates that befell none are left out. The whole account,
    some forty figures a source, is in ``--json``.
    """
    rows = [_fates(row) for row in sources.values()]
    shown = [head for head in dict.fromkeys(head for row in rows for head in row) if any(row.get(head) for row in rows)]
    if not shown:
        return []
    widths = [max(len(head), *(len(f"{row.get(head, 0):,}") for row in rows)) for head in shown]
    lines = [f"  {'records of':20} " + " ".join(f"{head:>{width}}" for head, width in zip(shown, widths, strict=True))]
    for name, row in zip(sources, rows, strict=True):
        cells = (f"{row.get(head, 0):>{width},}" for head, width in zip(shown, widths, strict=True))
        lines.append(f"  {name:20} {' '.join(cells)}")
    return lines


def _fates(row: dict[str, Any]) -> dict[str, int]:
    """One source's account under the heads of the table."""
    packing = row.get("packing", {})
    return {
        "read": row.get("records", 0),
        "rejected": row.get("rejected", 0),
        "empty": row.get("empty", 0),
        **row.get("removed", {}),
        "held out": row.get("held_out", 0),
        "trained": row.get("trained", 0),
        "bytes cut": row.get("cut_bytes", 0),
        "longer than a sample": packing.get("long_documents", 0),
        "fitting but cut": packing.get("fitting_cut", 0),
    }


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.2%}"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def tree_lines(value: Any, indent: str) -> list[str]:
    """Nested dictionaries and lists as indented lines."""
    if isinstance(value, dict):
        lines = []
        for name, item in value.items():
            if isinstance(item, dict | list) and item:
                lines += [f"{indent}{name}:", *tree_lines(item, indent + "  ")]
            else:
                lines.append(f"{indent}{name}: {item}")
        return lines
    if isinstance(value, list):
        lines = []
        for item in value:
            first, *rest = tree_lines(item, "") or [""]
            lines += [f"{indent}- {first}", *(f"{indent}  {line}" for line in rest)]
        return lines
    return [f"{indent}{value}"]
