"""The load matrix, and the compatibility list that follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.simnode import MATRIX_FILE, load_matrix

ICX_OLD, BDX, CLX, ICX_NEW = load_matrix().cpus


def test_the_matrix_has_four_cpus_and_is_one_way() -> None:
    matrix = load_matrix()
    assert matrix.cpus == (
        "intel-6-106-6",
        "intel-6-79-1",
        "intel-6-85-7",
        "intel-6-106-6.d4sv5",
    )
    assert matrix.can_load(ICX_OLD, on=ICX_NEW)
    assert not matrix.can_load(ICX_NEW, on=ICX_OLD)


@pytest.mark.parametrize("cpu", load_matrix().cpus)
def test_each_cpu_loads_its_own_and_is_refused_by_another(cpu: str) -> None:
    matrix = load_matrix()
    assert matrix.can_load(cpu, on=cpu)
    assert any(not matrix.can_load(cpu, on=other) for other in matrix.cpus)


def test_the_compatibility_list_has_each_pair_once_and_no_cpu_with_itself() -> None:
    assert load_matrix().compatibility().split(",") == [
        f"{ICX_OLD}=>{CLX}",
        f"{ICX_OLD}=>{ICX_NEW}",
        f"{BDX}=>{ICX_NEW}",
        f"{CLX}=>{ICX_NEW}",
    ]


def test_the_error_of_the_matrix_comes_in_firecracker_wording() -> None:
    refusal = load_matrix().refusal(ICX_NEW, on=BDX)
    assert refusal == (
        "Load snapshot error: Failed to restore from snapshot: Failed to build microVM from "
        "snapshot: Failed to restore vCPUs: Failed to run action on vcpu: Failed to set KVM vcpu "
        "xcrs: Invalid argument (os error 22)"
    )


def test_each_ancestor_must_be_loadable_too() -> None:
    matrix = load_matrix()
    assert matrix.can_load(ICX_OLD, on=CLX)
    assert not matrix.can_load(ICX_OLD, on=CLX, ancestors=[BDX])
    assert matrix.can_load(ICX_OLD, on=ICX_NEW, ancestors=[BDX, CLX])


def test_a_cpu_that_nobody_measured_loads_only_its_own() -> None:
    matrix = load_matrix()
    assert matrix.can_load("amd-25-17-1", on="amd-25-17-1")
    assert "KVM MSRs" in (matrix.refusal("amd-25-17-1", on=ICX_NEW) or "")


def test_a_matrix_with_an_undecided_pair_is_not_read(tmp_path: Path) -> None:
    facts = yaml.safe_load(MATRIX_FILE.read_text())
    facts["refuses"].pop()
    file = tmp_path / "matrix.yaml"
    file.write_text(yaml.safe_dump(facts))
    with pytest.raises(ValueError, match="must either load or be refused"):
        load_matrix(file)
