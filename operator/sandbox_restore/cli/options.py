"""Options that several commands share; nothing heavy is imported for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Kubeconfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A kubeconfig; by default KUBECONFIG or ~/.kube/config."),
]
Context = Annotated[str | None, typer.Option(metavar="NAME", help="A context of the kubeconfig.")]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="The namespace; by default the context's own."),
]
