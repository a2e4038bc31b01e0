"""The table of accelerators: names as torch reports them find their own row and no neighbour's."""

from __future__ import annotations

import pytest

from train.hardware import ACCELERATORS, find_accelerator

REPORTED = {
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H200": "h200",
    "NVIDIA H200 NVL": "h200-nvl",
    "NVIDIA GH200 480GB": "gh200",
    "NVIDIA B200": "b200",
    "NVIDIA GB200": "gb200",
    "NVIDIA A100-SXM4-40GB": "a100",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA A100 80GB PCIe": "a100-80gb",
    "NVIDIA A10": "a10",
    "NVIDIA A10G": "a10g",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "Tesla V100-SXM2-32GB": "v100",
    "AMD Instinct MI300X": "mi300x",
}


@pytest.mark.parametrize("reported", REPORTED)
def test_a_reported_name_finds_its_row(reported: str) -> None:
    found = find_accelerator(reported)
    assert found == (REPORTED[reported], ACCELERATORS[REPORTED[reported]])


@pytest.mark.parametrize("name", ACCELERATORS)
def test_every_row_is_found_by_its_own_name_and_is_plausible(name: str) -> None:
    found = find_accelerator(name)
    assert found is not None
    assert found[0] == name
    card = found[1]
    assert 1e12 < card.peak["fp32"] < card.peak["fp16"] < 1e16
    assert card.peak.get("bf16", card.peak["fp16"]) == card.peak["fp16"]
    assert 1.9 < card.peak.get("fp8", 2 * card.peak["fp16"]) / card.peak["fp16"] < 2.1
    assert 16e9 <= card.memory_bytes <= 300e9
    assert card.link_bytes_per_s < card.memory_bytes_per_s < 1e13


@pytest.mark.parametrize("unknown", ["", "cpu", "Intel Xeon", "NVIDIA T1000", "H1000"])
def test_an_unknown_device_has_no_row(unknown: str) -> None:
    assert find_accelerator(unknown) is None
