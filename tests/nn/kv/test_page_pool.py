"""Pages are counted exactly, whatever is extended, forked, kept, adopted, forgotten, cut and freed, in any order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mstar.errors import OutOfPages
from mstar.nn.kv.page_pool import RELEASED_PAGE, PagePool

PAGES, SIZE = 12, 4


class Memory(RuleBasedStateMachine):
    """A pool beside the plainest possible model of it: every table's content, position by position."""

    tables = Bundle("tables")
    texts = Bundle("texts")

    def __init__(self):
        super().__init__()
        self.pool = PagePool(PAGES, SIZE)
        self.memory = [[None] * SIZE for _ in range(PAGES)]
        self.content = {}
        self.written = 0

    @rule(target=tables)
    def new(self):
        table = self.pool.new_table()
        self.content[table] = []
        return table

    @rule(table=tables, count=st.integers(0, 3 * SIZE))
    def extend(self, table, count):
        (needed,), free, before = self.pool.pages_needed([table], [count]), self.pool.free_pages, [*table.pages]
        if needed > free:
            with pytest.raises(OutOfPages):
                self.pool.extend(table, count)
            assert (self.pool.free_pages, table.pages) == (free, before)
            return
        for source, target in self.pool.extend(table, count):
            self.memory[target] = [*self.memory[source]]
        kept = self.pool.free_pages - free + needed  # a page that was copied because it is kept is idle now
        assert kept == 0 or (kept == 1 and self.pool._idle)
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
        length = max(table.length * share // 100, table.forgotten * SIZE)
        self.pool.truncate(table, length)
        del self.content[table][length:]

    @rule(table=tables, share=st.integers(0, 100))
    def forget(self, table, share):
        before = table.length * share // 100
        self.pool.forget(table, before)
        assert table.forgotten >= before // SIZE
        gone = table.forgotten * SIZE
        self.content[table][:gone] = [None] * gone

    @rule(target=texts, table=tables)
    def keep(self, table):
        """Pages are kept by what is in them; what was kept is known by its text."""
        text = tuple(self.content[table])
        if None in text:
            return ()
        for index, (key, page) in enumerate(zip(keys(text), table.pages, strict=False)):
            self.pool.cache_page(key, page)
            self.pool.index_page(page, key_before(text, index), text[index * SIZE : (index + 1) * SIZE])
        return text

    @rule(table=consumes(tables))
    def keep_the_last_page(self, table):
        """A table that ends keeps a page that is not full, too."""
        text, full = tuple(self.content.pop(table)), table.length // SIZE
        if None not in text and full * SIZE < len(text):
            self.pool.cache_page(b"part of %r" % (text,), table.pages[full])
            self.pool.index_page(table.pages[full], key_before(text, full), text[full * SIZE :])
        self.pool.free(table)

    @rule(table=tables, text=texts)
    def adopt_part(self, table, text):
        """A table goes on with the start of a page that begins as the text does, up to any position."""
        before = len(self.content[table])
        if self.content[table] == [*text[:before]]:
            full = before // SIZE
            length = self.pool.attach_part(table, key_before(text, full), text[full * SIZE : (full + 1) * SIZE])
            assert before <= length == table.length <= len(text)
            self.content[table] = [*text[:length]]

    @rule(target=tables, text=texts, share=st.integers(0, 100))
    def adopt(self, text, share):
        """A fresh table finds the pages of a text it shares a beginning with, if they are still there."""
        text = text[: len(text) * share // 100]
        table = self.pool.new_table()
        attached = self.pool.attach_cached(table, keys(text))
        assert attached == table.length <= len(text)
        self.content[table] = [*text[:attached]]
        return table

    @rule(table=tables, text=texts)
    def adopt_more(self, table, text):
        """A table goes on with the pages of a text that begins as it does, also from the middle of a page."""
        before = len(self.content[table])
        if self.content[table] == [*text[:before]]:
            length = self.pool.attach_cached(table, keys(text)[before // SIZE :])
            assert length == table.length >= before
            self.content[table] = [*text[:length]]

    @rule(table=tables)
    def leave_and_come_back(self, table):
        """As a swap does it: the pages go, then as many are taken again and filled."""
        length, gone = table.length, table.forgotten * SIZE
        self.pool.truncate(table, 0)
        self.pool.skip(table, gone)
        if sum(self.pool.pages_needed([table], [length - gone])) > self.pool.free_pages:  # others share what it gave up
            self.pool.truncate(table, 0)
            self.content[table] = []
            return
        assert self.pool.extend(table, length - gone) == []
        for position in range(gone, length):
            self.memory[table.pages[position // SIZE]][position % SIZE] = self.content[table][position]

    @rule(table=consumes(tables))
    def free(self, table):
        self.pool.free(table)
        del self.content[table]

    @invariant()
    def is_counted_exactly(self):
        self.pool.check()
        for table, content in self.content.items():
            held = [item for page in table.pages[table.forgotten :] for item in self.memory[page]]
            assert held[: table.length - table.forgotten * SIZE] == content[table.forgotten * SIZE :]

    def teardown(self):
        for table in [*self.content]:
            self.pool.free(table)
        self.pool.check()
        assert self.pool.free_pages == PAGES


def keys(text):
    return [repr(text[: end * SIZE]).encode() for end in range(1, len(text) // SIZE + 1)]


def key_before(text, index):
    return [b"", *keys(text)][index]


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_hundred_thousand_steps():
    class Long(Memory):
        pass

    case = Long.TestCase
    case.settings = settings(max_examples=1000, stateful_step_count=100, deadline=None, database=None)
    case().runTest()


def test_a_shared_full_page_is_never_copied():
    pool = PagePool(4, SIZE)
    table = pool.new_table()
    pool.extend(table, SIZE)
    forked = pool.fork(table)
    assert pool.extend(forked, 1) == []
    assert forked.pages[0] == table.pages[0]


def test_a_shared_part_page_is_copied_by_who_writes_first():
    pool = PagePool(4, SIZE)
    table = pool.new_table()
    pool.extend(table, SIZE - 1)
    forked = pool.fork(table)
    old = table.pages[0]
    assert pool.extend(forked, 1) == [(old, forked.pages[0])]
    assert pool.extend(table, 1) == []
    assert table.pages == [old]


def test_too_much_says_how_much():
    pool = PagePool(2, SIZE)
    with pytest.raises(OutOfPages, match="3 pages of 4 positions needed, 2 of 2 free"):
        pool.extend(pool.new_table(), 2 * SIZE + 1)


def test_a_kept_page_is_never_written_again():
    pool = PagePool(4, SIZE)
    table = pool.new_table()
    pool.extend(table, SIZE)
    pool.cache_page(b"key", table.pages[0])
    pool.truncate(table, 1)
    assert pool.extend(table, 1) == [(0, 1)]


def test_the_page_kept_and_unused_for_longest_goes_first():
    pool = PagePool(2, SIZE)
    first, second = pool.new_table(), pool.new_table()
    for key, table in ((b"first", first), (b"second", second)):
        pool.extend(table, SIZE)
        pool.cache_page(key, table.pages[0])
    pool.free(second)
    pool.free(first)
    assert pool.free_pages == 2
    pool.extend(pool.new_table(), 1)
    assert [pool.attach_cached(pool.new_table(), [key]) for key in (b"second", b"first")] == [0, SIZE]


def test_what_follows_forgotten_pages_can_move_to_the_front():
    pool = PagePool(8, SIZE)
    table = pool.new_table()
    pool.extend(table, 3 * SIZE - 1)
    rest, forked = table.pages[1:], pool.fork(table)
    pool.forget(table, 2 * SIZE - 1, moves_rest=True)
    assert (table.pages, table.length, table.forgotten) == (rest, 2 * SIZE - 1, 0)
    pool.check()
    pool.free(forked)
    assert pool.free_pages == 8 - 2
    pool.extend(table, 2)
    assert table.length == 2 * SIZE + 1
    pool.check()


def test_forgetting_leaves_what_is_partly_needed():
    pool = PagePool(4, SIZE)
    table = pool.new_table()
    pool.extend(table, 3 * SIZE)
    pool.forget(table, 2 * SIZE - 1)
    assert table.pages == [RELEASED_PAGE, 1, 2]
    assert pool.free_pages == 2


@pytest.mark.parametrize("spoil", ["_free", "_ref_counts"])
def test_check_notices_pages_without_account(spoil):
    pool = PagePool(2, SIZE)
    pool.extend(pool.new_table(), 1)
    getattr(pool, spoil).pop(0)
    with pytest.raises(AssertionError, match="pages in use"):
        pool.check()


def test_check_notices_a_page_with_a_wrong_key():
    pool = PagePool(2, SIZE)
    pool._cached[b"key"] = 1
    with pytest.raises(AssertionError, match="cached pages"):
        pool.check()


@pytest.mark.parametrize(("field", "value"), [("length", 9), ("forgotten", 1)])
def test_check_notices_a_table_that_does_not_fit_its_pages(field, value):
    pool = PagePool(2, SIZE)
    table = pool.new_table()
    pool.extend(table, SIZE)
    setattr(table, field, value)
    if field == "forgotten":
        pool._ref_counts, pool._free = [0, 0], [0, 1]
    with pytest.raises(AssertionError, match="a table"):
        pool.check()
