"""Container images without a container engine and without a registry.

build_image("sandbox-restore.test/operator:1", folder / "operator.tar")

writes an archive as `docker save` would, for `ctr -n k8s.io images import` (RealNode(images=...)):
this machine's Python, the locked dependencies and the package of this checkout, with its
command `sandbox-restore`. The first call takes about a minute; what it made is kept per user.
"""

from tests.support.image.build import build_image

__all__ = ["build_image"]
