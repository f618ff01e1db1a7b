"""The imports of the source, read from its text. Nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

SRC: Final = Path(__file__).parent.parent.parent / "src"


class ImportGraph:
    """The modules below a source directory and the modules that they import."""

    def __init__(self, src: Path = SRC) -> None:
        self._src = src
        self._trees: dict[str, ast.Module] = {}
        self._paths: dict[str, Path] = {}

    def modules(self) -> list[str]:
        """All modules; a package has the name of its directory."""
        return sorted(map(self._module_of, self._src.rglob("*.py")))

    def tree(self, module: str) -> ast.Module:
        """The parsed text of a module."""
        if module not in self._trees:
            self._trees[module] = ast.parse(self.path(module).read_text())
        return self._trees[module]

    def path(self, module: str) -> Path:
        """The file of a module."""
        if module not in self._paths:
            path = self._src.joinpath(*module.split("."))
            self._paths[module] = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return self._paths[module]

    def imports(self, module: str, *, for_typing: bool = True) -> Iterator[tuple[int, str]]:
        """Line and name of every module under `shoal` that a module imports, also in functions.

        `for_typing` includes imports under `if TYPE_CHECKING`.
        """
        for line, base, name in imported_names(self.tree(module), self.package_of(module), for_typing=for_typing):
            if base.split(".")[0] == "shoal":
                dotted = f"{base}.{name}"
                yield line, dotted if name and self.path(dotted).is_file() else base

    def package_of(self, module: str) -> str:
        """The package that the module's relative imports start from."""
        return module if self.path(module).name == "__init__.py" else module.rpartition(".")[0]

    def reach(self, *roots: str, for_typing: bool = True) -> dict[str, str]:
        """Everything that the roots import, also indirectly: the modules, each with the chain of imports to it.

        A module also loads the packages around it. `shoal` itself is left out: it is around every module.
        """
        reached = {root: root for root in roots}
        waiting = list(roots)
        while waiting:
            module = waiting.pop()
            for _, imported in self.imports(module, for_typing=for_typing):
                for loaded in _with_packages(imported):
                    if loaded not in reached and self.path(loaded).is_file():
                        reached[loaded] = f"{reached[module]} -> {loaded}"
                        waiting.append(loaded)
        return reached

    def _module_of(self, path: Path) -> str:
        return ".".join(path.relative_to(self._src).with_suffix("").parts).removesuffix(".__init__")


def imported_names(tree: ast.AST, package: str, *, for_typing: bool = True) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of every import in a tree; the name is empty for `import module`."""
    for node in _statements(tree, for_typing=for_typing):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(node, package)
            yield from ((node.lineno, base, alias.name) for alias in node.names)


def absolute_base(node: ast.ImportFrom, package: str) -> str:
    """The module that `from ... import` names."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _with_packages(module: str) -> Iterable[str]:
    parts = module.split(".")
    return (".".join(parts[:length]) for length in range(2, len(parts) + 1))


def _statements(tree: ast.AST, *, for_typing: bool) -> Iterator[ast.AST]:
    """Every statement in a tree; without `for_typing`, only the else branch of `if TYPE_CHECKING`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        skipped = not for_typing and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for field in ("orelse",) if skipped else ("body", "handlers", "orelse", "finalbody", "cases"):
            waiting += getattr(node, field, ())
