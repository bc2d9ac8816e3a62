"""A repository with one benchmark, and runs of it: what the tests of the measuring rules work on."""

import subprocess
from pathlib import Path

from bench.claims import Bench, Claim, Row, print_table
from bench.history import History, Load, Record
from bench.machine import Machine

MACHINE = Machine("a processor", 2, "3.11.0", "2.13.0")
TOY = Bench("Is it cheap?", "tests.bench.toy_history:cheap", "What it costs.", "At most 3 ms.", "Too slow.")


def cheap() -> Claim:
    print_table([Row("a thing", "ms", [2.0, 1.0, 4.0]), Row("  times faster", "x", [3.0])])
    details = {"unit": "ms", "worst_ms": 4.0, "of": {"1": 0.5, "same": True}}
    return Claim("a thing costs at most 3 ms", 2.0, 3.0, is_met=True, details=details)


def broken() -> Claim:
    raise ZeroDivisionError("in a folder that must not be recorded")


def make_record(value: float, commit: str, rows=(), **changes) -> Record:
    """A run that counts, unless a change says otherwise. A value of up to 3 meets the target."""
    details = changes.pop("details", {})
    machine = Machine(changes.pop("cpu", MACHINE.cpu), 2, "3.11.0", "2.13.0")
    fields = {
        "date": "2026-01-02 03:04:05",
        "series": 1,
        "commit": commit,
        "is_clean": True,
        "machine": machine,
        "load": Load(0.3, 0.01, 0.0, 0.02, 0.0, is_busy=changes.pop("is_busy", False)),
        "took_s": 6.7,
        "cpu_s": 5.5,
        "error": "",
        "claim": Claim("it is so", value, 3.0, changes.pop("is_met", value <= 3), details),
        "rows": rows,
    }
    return Record(**fields | changes)


class Checkout:
    """A real git repository with empty pages."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.history = History(root)
        marks = "<!-- {0}: written by bench/page.py -->\n<!-- end of {0} -->\n".format
        for name, text in {
            "docs/mutation-testing.md": "survivors\n",
            "docs/performance.md": marks("claims") + "between\n" + marks("figures"),
            "README.md": "| what | target | - | `python -m bench toy` |\n| - | `python -m bench other` |\n",
            "src/code.py": "x = 1\n",
            "notes.txt": "a tracked file that is no Python\n",
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("add", ".")
        self.commit = self.make_commit()

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *who, *words], cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def make_commit(self) -> str:
        self.git("commit", "--quiet", "--allow-empty", "--all", "--message=a change")
        return self.git("rev-parse", "HEAD")

    def add_runs(self, *values: float, name: str = "toy", **changes) -> None:
        for value in values:
            self.history.append(name, make_record(value, **{"commit": self.commit} | changes))

    def read(self, path: str) -> str:
        return (self.root / path).read_text("utf-8")
