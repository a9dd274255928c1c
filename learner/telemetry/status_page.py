"""The status page: one file, whose script and style are all that a browser runs of what it gets."""

import base64
import hashlib
import re
from functools import cache
from importlib import resources

from learner.telemetry.http_server import Response


@cache
def status_page() -> Response:
    """The page. It asks for status.json beside it, and for nothing else."""
    html = resources.files(__package__).joinpath("status.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_hash('script', html)}; style-src {_hash('style', html)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Response(html.encode(), "text/html; charset=utf-8", content_security_policy=policy)


def _hash(tag: str, html: str) -> str:
    """What a policy calls the one element of that name."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
