"""Certificates, keys and tokens in files, as a cluster's administrator hands them out."""

import datetime
from pathlib import Path
from typing import Any

import trustme

TOKEN, OTHER_TOKEN = "a-token-of-the-cluster", "the-token-of-next-week"

LONG_AGO: dict[str, Any] = {
    "not_before": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "not_after": datetime.datetime(2021, 1, 1, tzinfo=datetime.UTC),
}
"""For `Authority.issue`: of an expired certificate."""


class Authority:
    """A certificate authority, whose files are in one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._authority = trustme.CA()
        self._folder = folder
        self.ca = self.write("ca.pem", self._authority.cert_pem.bytes())

    def issue(self, name: str, *identities: str, **validity: datetime.datetime) -> dict[str, str]:
        """A new certificate, for this machine unless said, as the options that name its files."""
        issued = self._authority.issue_cert(*(identities or ("127.0.0.1", "localhost")), **validity)
        return {
            "tls_cert": self.write(f"{name}.pem", issued.cert_chain_pems[0].bytes()),
            "tls_key": self.write(f"{name}.key", issued.private_key_pem.bytes()),
        }

    def tokens(self, *tokens: str) -> str:
        """A file of these tokens, in place of that of the last call."""
        return self.write("tokens", "\n".join(["# of the cluster", "", *tokens, ""]).encode())

    def write(self, name: str, contents: bytes) -> str:
        """A file of mode 0600; its path."""
        # As Kubernetes does it: another file takes the name.
        path, new = self._folder / name, self._folder / f"{name}.new"
        new.write_bytes(contents)
        new.chmod(0o600)
        new.replace(path)
        return str(path)
