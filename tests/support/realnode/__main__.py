"""`python -m tests.support.realnode`: builds what real nodes need, or says why they cannot be."""

import sys

from tests.support.realnode.available import why_not
from tests.support.testbed import ensure_module
from tests.support.testbed.gomodules import CONTAINERD, KUBELET

if reason := why_not():
    print(f"no real nodes here, their tests are skipped: {reason}")
    sys.exit(0)
for module in (CONTAINERD, KUBELET):
    ensure_module(module)
print("real nodes can run here")
