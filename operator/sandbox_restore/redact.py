"""Takes secrets out of text before anybody sees it: logs, error lines, statuses."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"

# Every pattern begins at a fixed word and what follows is bounded or ends at its first match, so
# that a long line costs linear time.
_URL_PASSWORD: Final = re.compile(
    r"""(?x)
        (\b[A-Za-z][A-Za-z0-9+.\-]{0,30}://   # postgresql://
           [^\s:/?#@'"]{0,128}):              # user
        [^\s'"]{0,512}                        # to the last @ of the word: people forget to escape
        @
    """
)
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN ([A-Z ]{0,20}PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL
)
_BEARER: Final = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/\-]{6,}=*")
_AUTHORIZATION: Final = re.compile(
    r"""(?i)\b(authorization["']?\s*[:=]\s*["']?(?:(?:basic|bearer|token)\s+)?)[^\s,"']+"""
)
_JWT: Final = re.compile(r"\beyJ[A-Za-z0-9_\-]{5,}\.[A-Za-z0-9_\-]{5,}(?:\.[A-Za-z0-9_\-]*)?")
_NAMED: Final = re.compile(
    r"""(?ix)
        (?P<name>
            (?:password|passwd|passphrase|pwd|api[_\-]?key|private[_\-]?key|(?P<word>secret|token))
            [a-z0-9_\-]{0,40}["']?)
        (?P<separator>\s*[=:]\s*)
        (?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;&)}\]'"]+)
    """
)
_SECRET_KEY: Final = re.compile(
    r"(?i)(?:password|passwd|passphrase|secret|token|api[_\-]?key|private[_\-]?key|credential"
    r"|authorization|(?:^|[_\-])(?:pwd|dsn)$|database[_\-]url$)"
)


def redact(text: str) -> str:
    """The text with passwords in URLs and DSNs, tokens, keys and `password=…` values hidden.

    A user name, host and database name stay, because people need them to find the fault.
    Best effort, by form: a secret that looks like ordinary words cannot be told from them.
    """
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _URL_PASSWORD.sub(rf"\1:{HIDDEN}@", text)
    text = _AUTHORIZATION.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _JWT.sub(HIDDEN, text)
    return _NAMED.sub(_hide_value, text)


def _hide_value(found: re.Match[str]) -> str:
    quoted = found["value"][0] in "\"'"
    if found["word"] and ":" in found["separator"] and not quoted and len(found["value"]) < 16:
        # Prose: "token: expired".
        return found[0]
    quote = found["value"][0] if quoted else ""
    return f"{found['name']}{found['separator']}{quote}{HIDDEN}{quote}"


def names_a_secret(key: str) -> bool:
    """Whether a field of that name holds a secret, whatever its value looks like."""
    return _SECRET_KEY.search(key) is not None


def printable(text: str) -> str:
    """Control characters (terminal sequences) and lone surrogates become escapes."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )
