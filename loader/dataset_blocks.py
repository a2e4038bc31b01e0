"""What a build did to documents, as report blocks: from the account in a manifest alone. Both reports show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .page import Block, Chart, Facts, Prose, Table
from .page_assets import PALETTE

__all__ = ["dedup_blocks", "fate_blocks", "packing_blocks"]

_METHOD_WORDS = {
    "exact": "equal to another document",
    "minhash": "nearly equal to another document (minhash)",
    "simhash": "nearly equal to another document (simhash)",
    "ngram": "nothing was left after repeated passages were cut",
    "quality": "dropped by a quality filter",
    "contaminated": "holds an item of a benchmark",
    "mix": "left out to reach the mix",
}


def fate_blocks(sources: Mapping[str, Mapping[str, Any]]) -> list[Block]:
    """Where every document went, by source as a table and bars, over all sources as a funnel; empty without an
    account.

    Args:
        sources: ``accounting["sources"]``.
    """
    rows = {name: row for name, row in sources.items() if "records" in row and "removed" in row}
    if not rows:
        return []
    fates = _fates(list(rows.values()))
    table = [
        [name, row["records"], *(counts[i] for counts in fates.values())] for i, (name, row) in enumerate(rows.items())
    ]
    table.append(["total", *(sum(int(line[i]) for line in table) for i in range(1, len(fates) + 2))])
    bars = [
        {"type": "bar", "name": fate, "x": list(rows), "y": counts, "marker": {"color": PALETTE[i % len(PALETTE)]}}
        for i, (fate, counts) in enumerate(fates.items())
    ]
    return [
        Prose("Every record is in exactly one column: records = trained + held out + removed + rejected (checked)."),
        Table(["source", "records", *fates], table),
        _funnel(sum(int(row["records"]) for row in rows.values()), fates),
        Chart("Documents of each source by what became of them.", bars, {"barmode": "stack"}),
    ]


def _fates(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Fate -> documents of each source; ways of being removed that took nothing anywhere are left out."""
    methods = [method for method in rows[0]["removed"] if any(row["removed"].get(method) for row in rows)]
    fates = {"trained": [row["trained"] for row in rows], "held out": [row["held_out"] for row in rows]}
    fates |= {method: [row["removed"].get(method, 0) for row in rows] for method in methods}
    return {**fates, "rejected": [row["rejected"] for row in rows]}


def _funnel(records: int, fates: Mapping[str, Sequence[int]]) -> Chart:
    """What was left after each step that takes documents away."""
    order = ["rejected", *(name for name in fates if name in _METHOD_WORDS and name != "mix"), "held out", "mix"]
    left, stages = records, [("records read", records)]
    for name in order:
        count = sum(fates.get(name, ()))
        if count:
            left -= count
            stages.append((f"without {name}", left))
    trace = {
        "type": "funnel", "y": [name for name, _ in stages], "x": [count for _, count in stages],
        "textinfo": "value+percent initial", "marker": {"color": PALETTE[0]},
    }  # fmt: skip
    return Chart("Documents that are left after each step of the build.", [trace], {"margin": {"l": 220, "t": 40}})


def dedup_blocks(config: Mapping[str, Any], dedup: Mapping[str, Any]) -> list[Block]:
    """What was compared, how near removed documents were to what stayed, what the rule removes at which similarity,
    and how large the clusters of duplicates are.

    Args:
        config: ``config["dedup"]`` of the manifest. dedup: ``accounting["dedup"]``.
    """
    figures = {name.replace("_", " "): value for name, value in dedup["figures"].items() if not isinstance(value, dict)}
    missing = dedup["figures"].get("without_order_key", {})
    unranked = {f"{name}: documents that {config['keep']} cannot rank": count for name, count in missing.items()}
    facts = {"methods": ", ".join(config["methods"]), "decision": config["decision"], "threshold": config["threshold"]}
    blocks: list[Block] = [Facts({**facts, "keep": config["keep"], **figures, **unranked})]
    if dedup["removed_by_similarity"] or dedup.get("expected"):
        blocks += _similarity(dedup["removed_by_similarity"], dedup.get("expected", ()), float(config["threshold"]))
    if dedup.get("clusters", {}).get("sizes"):
        blocks += _clusters(dedup["clusters"])
    if figures.get("superseded"):
        blocks.append(Prose("Documents that would have been better than an earlier one: superseded.parquet."))
    return blocks


def _similarity(removed: Mapping[str, int], expected: Sequence[Mapping[str, Any]], threshold: float) -> list[Block]:
    """P(removed | J) as the configuration says, over the removals as they were."""
    traces: list[dict[str, Any]] = []
    if removed:
        traces.append({
            "type": "bar", "name": "documents removed", "x": [float(bin_start) + 0.025 for bin_start in removed],
            "y": list(removed.values()), "width": 0.045, "marker": {"color": PALETTE[0]}, "opacity": 0.6, "yaxis": "y2",
        })  # fmt: skip
    if expected:
        similarities = [row["similarity"] for row in expected]
        traces.append({
            "type": "scatter", "mode": "lines+markers", "name": "P(removed | J)", "x": similarities,
            "y": [round(row["removed"], 6) for row in expected], "line": {"color": PALETTE[5], "width": 2.5},
        })  # fmt: skip
        for index, name in enumerate(sorted(expected[0]["seen"])):
            traces.append({
                "type": "scatter", "mode": "lines", "name": f"P({name} sees the pair | J)", "x": similarities,
                "y": [round(row["seen"][name], 6) for row in expected],
                "line": {"color": PALETTE[2 + index], "dash": "dot"},
            })  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "Jaccard similarity J to the document that stayed"}},
        "yaxis": {"title": {"text": "probability"}, "range": [0, 1.05]},
        "yaxis2": {"title": {"text": "documents"}, "overlaying": "y", "side": "right", "rangemode": "tozero"},
        "shapes": [{
            "type": "line", "xref": "x", "yref": "paper", "x0": threshold, "x1": threshold, "y0": 0, "y1": 1,
            "line": {"color": PALETTE[6], "dash": "dash", "width": 1}, "label": {"text": "threshold"},
        }],
    }  # fmt: skip
    caption = (
        "P(removed | J): how probably a document goes whose better one has similarity J, as bands, rows and rule of "
        "this configuration say. Bars: removed documents by similarity to their witness (1.00: equal)."
    )
    return [Chart(caption, traces, layout)]


def _clusters(clusters: Mapping[str, Any]) -> list[Block]:
    """How many documents had how many duplicates, and the largest clusters."""
    sizes = clusters["sizes"]
    trace: dict[str, Any] = {"type": "bar", "x": [name for name, _ in sizes], "y": [n for _, n in sizes]}
    trace["marker"] = {"color": PALETTE[2]}
    layout = {
        "xaxis": {"title": {"text": "documents in the cluster, the one that stayed among them"}, "type": "category"},
        "yaxis": {"title": {"text": "clusters"}, "type": "log"},
    }
    rows = [(one["document"], one["source"], one["file"], one["record"], one["removed"]) for one in clusters["largest"]]
    heads = ("document that stayed", "source", "file", "record", "removed because of it")
    return [
        Chart("Clusters of duplicates by size.", [trace], layout),
        Prose("The documents with the most duplicates; each removal with its witness: removed.parquet."),
        Table(heads, rows, filters=("source",)),
    ]


def packing_blocks(sources: Mapping[str, Mapping[str, Any]], pack: Mapping[str, Any]) -> list[Block]:
    """Samples and padding of each source, and what packing did to its documents; empty without an account.

    Args:
        sources: ``accounting["sources"]``. pack: ``config["pack"]``.
    """
    rows, packed = [], []
    for name, row in sources.items():
        if "trained_tokens" not in row:
            continue
        places = row["trained_tokens"] + row["padding_tokens"]
        padding = f"{100 * row['padding_tokens'] / places:.3f} %" if places else "-"
        samples = places // pack["seq_len"]
        rows.append([name, row["trained_tokens"], samples, row["padding_tokens"], padding])
        rows[-1].append(row.get("validation_tokens", 0))
        if "packing" in row:
            counts = row["packing"]
            segments = f"{counts['segments'] / samples:.2f}" if samples else "-"
            packed.append([name, segments, counts["long_documents"], counts["long_pieces"], counts["fitting_cut"]])
    if not rows:
        return []
    heads = ["source", "tokens", "samples", "padding tokens", "padding", "validation tokens"]
    blocks: list[Block] = [Table(heads, rows)]
    if packed:
        words = (
            f"Packed by {pack['strategy']}: a document of more than {pack['seq_len']:,} tokens is split over samples "
            "(nothing of it is lost); one that fits is cut by concat alone."
        )
        heads = ["source", "segments a sample", "longer than a sample", "their pieces", "fitting, but cut"]
        blocks += [Prose(words), Table(heads, packed)]
    return blocks
