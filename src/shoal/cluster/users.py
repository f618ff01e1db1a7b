"""The users of a local cluster: the password of each role, and during a rotation the one before.

Owns the passwords and the texts of ACL files. `shoal.cluster.fleet` writes the files and tells the servers. The user
`supervisor` can change users; its password never leaves this process.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence

from shoal.cluster.acl import ROLES, coordinator_acl_file, data_acl_file, store_acl_file, supervisor_line
from shoal.errors import ClusterError
from shoal.plan.kinds import SERVER, STORE
from shoal.queues.script_loader import load_scripts
from shoal.wire.commands import Request


class Users:
    """The users of one cluster."""

    def __init__(self, passwords: Mapping[str, str] | None = None) -> None:
        self.passwords = {role: _new_password() for role in ROLES} | dict(passwords or {})
        """The newest password of each role."""
        self.supervisor_password = _new_password()
        self._older: dict[str, str] = {}

    def acl(self, version: tuple[int, ...], kind: str) -> str:
        """The text of the ACL file of a server, a store or the coordinator."""
        if kind == STORE:
            scripts = {script.name: script.sha.decode() for script in load_scripts()}
            text = store_acl_file(self.passwords, scripts, self._older)
        else:
            make = data_acl_file if kind == SERVER else coordinator_acl_file
            text = make(self.passwords, version, self._older)
        return text + supervisor_line(self.supervisor_password)

    def rotate(self, role: str) -> list[str]:
        """Gives roles new passwords, all of them if no role is named, and returns these roles. The old passwords stay
        valid until `revoke`; ClusterError if a role still has one."""
        roles = _chosen(role)
        if waiting := [one for one in roles if one in self._older]:
            raise ClusterError(
                f"{', '.join(waiting)} still has the password of before the last rotation",
                do=f"run `shoal users revoke {waiting[0]}` when its clients use the new one",
            )
        for one in roles:
            self._older[one], self.passwords[one] = self.passwords[one], _new_password()
        return roles

    def undo(self, roles: Sequence[str]) -> None:
        """Reverts a rotation that has not reached any server."""
        for role in roles:
            self.passwords[role] = self._older.pop(role)

    def revocable(self, role: str) -> list[str]:
        """The roles whose old password `revoke` would end; ClusterError if there are none."""
        roles = [one for one in _chosen(role) if one in self._older]
        if not roles:
            raise ClusterError(
                f"{role or 'no role'} has {'no' if role else 'an'} older password",
                do=f"run `shoal users rotate {role}` first".replace("  ", " "),
            )
        return roles

    def revoke(self, roles: Sequence[str]) -> list[Request]:
        """Removes the old passwords of roles; returns the commands for the servers, which also close connections of
        these users."""
        commands: list[Request] = []
        for role in roles:
            commands.append(("ACL", "SETUSER", role, f"!{_digest(self._older.pop(role))}"))
            commands.append(("CLIENT", "KILL", "USER", role))
        return commands

    def additions(self, roles: Sequence[str]) -> list[Request]:
        """The commands for the servers that set the new passwords of roles."""
        return [("ACL", "SETUSER", role, f"#{_digest(self.passwords[role])}") for role in roles]


def _chosen(role: str) -> list[str]:
    if role and role not in ROLES:
        raise ClusterError(f"there is no role {role!r}", do=f"name one of {', '.join(ROLES)}, or none for all")
    return [role] if role else list(ROLES)


def _new_password() -> str:
    return secrets.token_urlsafe(24)


def _digest(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()
