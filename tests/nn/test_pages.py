"""Pages are counted exactly, whatever is extended, forked, cut and freed in whatever order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mstar.nn.pages import OutOfPages, Pool

PAGES, SIZE = 12, 4


class Memory(RuleBasedStateMachine):
    """A pool beside the plainest possible model of it: every table's content, position by position."""

    tables = Bundle("tables")

    def __init__(self):
        super().__init__()
        self.pool = Pool(PAGES, SIZE)
        self.memory = [[None] * SIZE for _ in range(PAGES)]
        self.content = {}
        self.written = 0

    @rule(target=tables)
    def new(self):
        table = self.pool.new()
        self.content[table] = []
        return table

    @rule(table=tables, count=st.integers(0, 3 * SIZE))
    def extend(self, table, count):
        needed, free, before = self.pool.needed(table, count), self.pool.free_pages, [*table.pages]
        if needed > free:
            with pytest.raises(OutOfPages):
                self.pool.extend(table, count)
            assert (self.pool.free_pages, table.pages) == (free, before)
            return
        for source, target in self.pool.extend(table, count):
            self.memory[target] = [*self.memory[source]]
        assert self.pool.free_pages == free - needed
        for position in range(table.length - count, table.length):
            self.written += 1
            self.memory[table.pages[position // SIZE]][position % SIZE] = self.written
            self.content[table].append(self.written)

    @rule(target=tables, table=tables)
    def fork(self, table):
        forked = self.pool.fork(table)
        self.content[forked] = [*self.content[table]]
        return forked

    @rule(table=tables, share=st.integers(0, 100))
    def truncate(self, table, share):
        length = table.length * share // 100
        self.pool.truncate(table, length)
        del self.content[table][length:]

    @rule(table=consumes(tables))
    def free(self, table):
        self.pool.free(table)
        del self.content[table]

    @invariant()
    def is_counted_exactly(self):
        self.pool.check()
        for table, content in self.content.items():
            held = [item for page in table.pages for item in self.memory[page]]
            assert held[: table.length] == content

    def teardown(self):
        for table in [*self.content]:
            self.pool.free(table)
        self.pool.check()
        assert self.pool.free_pages == PAGES


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_thousand_steps():
    class Long(Memory):
        pass

    case = Long.TestCase
    case.settings = settings(max_examples=1000, stateful_step_count=100, deadline=None, database=None)
    case().runTest()


def test_a_shared_full_page_is_never_copied():
    pool = Pool(4, SIZE)
    table = pool.new()
    pool.extend(table, SIZE)
    forked = pool.fork(table)
    assert pool.extend(forked, 1) == []
    assert forked.pages[0] == table.pages[0]


def test_a_shared_part_page_is_copied_by_who_writes_first():
    pool = Pool(4, SIZE)
    table = pool.new()
    pool.extend(table, SIZE - 1)
    forked = pool.fork(table)
    old = table.pages[0]
    assert pool.extend(forked, 1) == [(old, forked.pages[0])]
    assert pool.extend(table, 1) == []
    assert table.pages == [old]


def test_too_much_says_how_much():
    pool = Pool(2, SIZE)
    with pytest.raises(OutOfPages, match="3 pages of 4 are needed, 2 of 2 are free"):
        pool.extend(pool.new(), 2 * SIZE + 1)


@pytest.mark.parametrize("spoil", ["_free", "_holders"])
def test_check_notices(spoil):
    pool = Pool(2, SIZE)
    pool.extend(pool.new(), 1)
    getattr(pool, spoil).pop(0)
    with pytest.raises(AssertionError):
        pool.check()
