"""TLS for clients without Shoal: the same files for redis-py, in benchmarks and soaks.

Owns the translation of Shoal's settings into redis-py's keywords.
"""

from __future__ import annotations

from typing import Any

from shoal.wire.tls import TlsSettings


def redis_py_tls(tls: TlsSettings | None) -> dict[str, Any]:
    """The keywords of a redis-py client; none without TLS."""
    if tls is None:
        return {}
    files = {"ssl_ca_certs": tls.ca, "ssl_certfile": tls.cert, "ssl_keyfile": tls.key or tls.cert}
    return {"ssl": True, "ssl_check_hostname": tls.verify, **files}
