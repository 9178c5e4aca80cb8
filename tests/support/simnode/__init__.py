"""Simulated nodes: they play kubelet and restore runner for restore pods, and say so.

No VM runs. What a node loads and what it refuses follows a measured matrix of four CPUs, and
everything that "ran" is in a record, which `check_record` holds against what must never happen.

captures = CapturesInMemory({"snap-1": "intel-6-106-6"})
async with SimNode(kubeconfig, matrix=load_matrix(), captures=captures, record=file) as nodes:
    nodes.hold("load", sandbox="sb-1")

`SimNodeProcess` does the same in a process of its own, which can be killed and started again.
"""

from tests.support.simnode.captures import (
    Capture,
    CapturesFile,
    CapturesInMemory,
    write_captures,
)
from tests.support.simnode.controls import (
    FAIL_ANNOTATION,
    HOLD_ANNOTATION,
    REAL_CPU_ANNOTATION,
    Stage,
)
from tests.support.simnode.matrix import MATRIX_FILE, Matrix, load_matrix
from tests.support.simnode.process import SimNodeProcess
from tests.support.simnode.record import Entry, Event, History, check_record, read_record
from tests.support.simnode.simulation import SimNode, Suspended

__all__ = [
    "FAIL_ANNOTATION",
    "HOLD_ANNOTATION",
    "MATRIX_FILE",
    "REAL_CPU_ANNOTATION",
    "Capture",
    "CapturesFile",
    "CapturesInMemory",
    "Entry",
    "Event",
    "History",
    "Matrix",
    "SimNode",
    "SimNodeProcess",
    "Stage",
    "Suspended",
    "check_record",
    "load_matrix",
    "read_record",
    "write_captures",
]
