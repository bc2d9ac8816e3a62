"""tools/budget.py: each limit at its edge and one past it, and the rules of the table that raises it."""

import pytest

from tools.budget import MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_METHODS, check

NOTE = "docs/decisions/0042-why.md"


def file_of(lines):
    return "x = 1\n" * lines


def function_of(lines):
    return "def f():\n" + "    x = 1\n" * (lines - 1)


def class_of(methods):
    return "class A:\n" + "".join(f"    def m{n}(self): ...\n" for n in range(methods))


@pytest.fixture
def problems(tmp_path):
    """Writes one file, perhaps a budget table and a decision note, and returns the problems as text."""

    def write_and_check(text, path="src/mstar/a.py", table="", note=""):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        (tmp_path / "pyproject.toml").write_text(f"[tool.mstar.budget]\n{table}")
        if note:
            (tmp_path / note).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / note).write_text("# why")
        return [str(problem) for problem in check(tmp_path)]

    return write_and_check


@pytest.mark.parametrize(
    ("make", "limit"),
    [(file_of, MAX_FILE_LINES), (function_of, MAX_FUNCTION_LINES), (class_of, MAX_METHODS)],
)
@pytest.mark.parametrize("tree", ["src/mstar", "tests", "bench", "tools", "examples"])
def test_a_limit_is_inclusive(problems, make, limit, tree):
    assert not problems(make(limit), f"{tree}/a.py")
    assert len(problems(make(limit + 1), f"{tree}/a.py")) == 1


def test_a_problem_says_where_what_and_how_to_fix_it(problems):
    assert problems("\n\n" + class_of(21)) == [
        "src/mstar/a.py:3: A has 21 methods, limit 20, fix: move a responsibility to another class"
    ]


def test_nested_and_async_functions_are_measured(problems):
    inner = function_of(61).replace("\n", "\n        ").strip()
    assert problems(f"class A:\n    if True:\n        async {inner}\n")[0].startswith("src/mstar/a.py:3: A.f has")


@pytest.mark.parametrize(
    ("text", "key", "unit", "limit"),
    [
        (file_of(501), "src/mstar/a.py", "lines", 501),
        (function_of(61), "src/mstar/a.py::f", "lines", 61),
        (class_of(21), "src/mstar/a.py::A", "methods", 21),
    ],
)
def test_a_decision_note_raises_a_limit(problems, text, key, unit, limit):
    enough = f'"{key}" = {{ {unit} = {limit}, decision = "{NOTE}" }}'
    too_little = f'"{key}" = {{ {unit} = {limit - 1}, decision = "{NOTE}" }}'
    assert not problems(text, table=enough, note=NOTE)
    assert len(problems(text, table=too_little, note=NOTE)) == 1


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (f'{{ lines = 501, decision = "{NOTE}" }}', "which does not exist"),
        ("{ lines = 501 }", "names no decision note"),
        ('{ lines = 501, decision = "README.md" }', "names no decision note"),
        ("501", "is not a raise"),
        (f'{{ decision = "{NOTE}" }}', "is not a raise"),
        (f'{{ rows = 501, decision = "{NOTE}" }}', "is not a raise"),
    ],
)
def test_a_raise_without_a_note_is_refused(problems, entry, complaint):
    assert any(complaint in line for line in problems(file_of(501), table=f'"src/mstar/a.py" = {entry}'))


@pytest.mark.parametrize("key", ["src/mstar/a.py", "src/mstar/gone.py", "src/mstar/a.py::f"])
def test_a_raise_that_nothing_needs_is_refused(problems, key):
    table = f'"{key}" = {{ lines = 900, decision = "{NOTE}" }}'
    assert any("remove the entry" in line for line in problems(file_of(500), table=table, note=NOTE))


def test_a_tree_without_a_table_has_the_plain_limits(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text(file_of(501))
    assert len(check(tmp_path)) == 1
