"""When certificates expire: read from their files, and shown as a metric.

Owns the metric. `shoal.wire.tls` calls `note` for each file that it loads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography import x509

from shoal import metrics
from shoal.errors import TlsError

EXPIRY: Final = metrics.gauge(
    "shoal_tls_expiry_timestamp_seconds",
    "Time of day at which the first certificate in a file expires.",
    ["file"],
)


def expires_at(path: str | Path) -> float:
    """The time of day at which the first certificate in a PEM file expires; TlsError if there is none. The others are
    those of its issuers, or a list of authorities."""
    try:
        found = x509.load_pem_x509_certificate(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise TlsError(f"{path} has no certificate ({error})", do="give a certificate in PEM format") from error
    return found.not_valid_after_utc.timestamp()


def note(path: str) -> None:
    """Show the expiry of a file on the metrics page."""
    EXPIRY.labels(file=path).set(expires_at(path))
