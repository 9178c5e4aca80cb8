"""Keys, certificates, tokens and kubeconfig files of one control plane.

Everything is made anew for each control plane and lives in its folder; nothing of it is of any use
elsewhere.
"""

import base64
import ipaddress
import json
import secrets
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.support.testbed.errors import TestbedError

_LIFETIME = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class User:
    """A user whom the API server knows by a token.

    `groups` beside `system:authenticated`, which every user is in. A user without a group or a role
    binding may do nothing but look at the API's own description.
    """

    name: str
    _: KW_ONLY
    groups: Sequence[str] = ()
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)


MASTERS = "system:masters"
"""Group that may do everything."""

ADMIN = "admin"
"""User in `system:masters`; the one that is meant where no user is named."""


def default_users() -> tuple[User, ...]:
    """Return the users of a control plane: `admin`, and three whom tests give rights by RBAC."""
    return (
        User(ADMIN, groups=(MASTERS,)),
        User("operator"),
        User("viewer"),
        User("platform"),
    )


def component_users() -> tuple[User, ...]:
    """Return the users that the control plane's own programs act as."""
    return (
        User("system:kube-controller-manager", groups=(MASTERS,)),
        User("system:kube-scheduler"),
        User("kwok", groups=(MASTERS,)),
    )


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where the files are, and whom the API server knows.

    `ca`, `certificate`, `key`: TLS of every server on loopback. `account_key`: signs the tokens of
    service accounts. `tokens`: the API server's token file.
    """

    folder: Path
    users: Sequence[User]

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.folder / "server.crt"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"

    @property
    def account_key(self) -> Path:
        return self.folder / "service-account.key"

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens.csv"

    def user(self, name: str) -> User:
        """Return the user `name`; raises TestbedError when the API server was not told of it."""
        for user in self.users:
            if user.name == name:
                return user
        known = ", ".join(user.name for user in self.users)
        raise TestbedError(
            f"user {name!r} has no token (known: {known}); name it in ControlPlane.start(users=...)"
        )

    def kubeconfig(self, name: str) -> Path:
        """Return the path of the kubeconfig file of user `name`."""
        return self.folder / f"{self.user(name).name.replace(':', '-')}.kubeconfig"


def write_credentials(
    folder: Path, *, server: str, service: ipaddress.IPv4Address, users: Sequence[User]
) -> Credentials:
    """Make all keys, certificates, tokens and kubeconfig files in the new folder `folder`.

    `server` is the URL of the API server, `service` the address of the service `kubernetes`.
    """
    folder.mkdir(mode=0o700)
    made = Credentials(folder=folder, users=tuple(users))
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _sign(ca_key, name="sandbox-restore-testbed")
    key = ec.generate_private_key(ec.SECP256R1())
    loopback = ipaddress.IPv4Address("127.0.0.1")
    certificate = _sign(
        key, name="testbed-server", issuer=(ca, ca_key), addresses=(loopback, service)
    )
    made.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    made.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_key(made.key, key)
    _write_key(made.account_key, ec.generate_private_key(ec.SECP256R1()))
    made.tokens.write_text("".join(_token_line(user) for user in users))
    for user in users:
        made.kubeconfig(user.name).write_text(_kubeconfig(user, server=server, ca=made.ca))
    return made


def _token_line(user: User) -> str:
    """Return one line of the API server's token file."""
    groups = ",".join(user.groups)
    return f'{user.token},"{user.name}","{user.name}","{groups}"\n'


def _kubeconfig(user: User, *, server: str, ca: Path) -> str:
    """Return a kubeconfig as JSON, which every reader of YAML reads."""
    authority = base64.b64encode(ca.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "testbed",
                "cluster": {"server": server, "certificate-authority-data": authority},
            }
        ],
        "users": [{"name": user.name, "user": {"token": user.token}}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user.name}}],
        "current-context": "testbed",
    }
    return json.dumps(config, indent=2) + "\n"


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write `key` where only its owner reads it."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )


def _sign(
    key: ec.EllipticCurvePrivateKey,
    *,
    name: str,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None,
    addresses: Sequence[ipaddress.IPv4Address] = (),
) -> x509.Certificate:
    """Return a certificate for `key`: a CA without `issuer`, else a server at `addresses`."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    signing_key = issuer[1] if issuer else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
            critical=False,
        )
        .add_extension(_key_usage(is_ca=issuer is None), critical=True)
    )
    if issuer:
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        ).add_extension(
            x509.SubjectAlternativeName(
                [
                    x509.DNSName("localhost"),
                    x509.DNSName("kubernetes.default.svc"),
                    *(x509.IPAddress(address) for address in addresses),
                ]
            ),
            critical=False,
        )
    return builder.sign(signing_key, hashes.SHA256())


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    """Return the uses of a CA's key, or of a server's."""
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
