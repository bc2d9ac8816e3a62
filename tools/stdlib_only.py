"""Import-linter contract: the listed packages import only the standard library and each other.

import-linter can forbid packages by name but not "everything that must be installed"; this contract can. The
packages are free to import the rest of mstar as far as the layers allow it.
"""

import sys
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class StdlibOnly(Contract):
    """Configuration: `modules`, the packages to check, with everything below them."""

    type_name = "stdlib_only"

    modules: Any = fields.ListField(subfield=fields.ModuleField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002  import-linter's signature
        violations: list[str] = []
        for package in self.modules:
            for module in sorted({package.name} | graph.find_descendants(package.name)):
                for imported in sorted(graph.find_modules_directly_imported_by(module)):
                    top = imported.partition(".")[0]
                    if top not in sys.stdlib_module_names and top != package.root_package_name:
                        details = graph.get_import_details(importer=module, imported=imported)
                        lines = ", ".join(f"l.{detail['line_number']}" for detail in details)
                        violations.append(f"{module} -> {imported} ({lines})")
        return ContractCheck(kept=not violations, metadata={"violations": violations})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["violations"]:
            output.print_error(f"- {line}: fix: use the standard library, or move the code up a layer")
