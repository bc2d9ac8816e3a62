// Paged attention, included by kernels.cpp.
//
// A token attends by itself or, if its request has many new tokens, with eleven others, which share each pass over copies
// of the keys and values in a better layout. Each of its sums has the same order in both ways, so that its result does
// not depend on other tokens.

// Page table and tokens of a forward (paged attention). Python creates it once per forward.
struct Pages {
    const int32_t *table;  // [requests, width]: page table
    long width;
    long page_size;
    const int64_t *request;  // [tokens]: row of the page table
    const int64_t *seen;     // [tokens]: number of positions that it attends to, from the first
    const int64_t *places;   // [tokens]: slot of its own keys and values
    long tokens;
};

// Query heads share key heads. Scores are scaled; with a sliding window a token sees the last positions only.
struct Heads {
    long heads, key_heads, size, query_stride;
    float scale;
    long window;
};

// Copies new keys and values ([tokens, heads, size], rows of key_stride and value_stride) to their positions.
template <typename T>
void write(T *keys, T *values, const T *key, const T *value, const int64_t *position, long tokens, long row,
           long key_stride, long value_stride) {
    for (long token = 0; token < tokens; ++token) {
        std::memcpy(keys + position[token] * row, key + token * key_stride, row * sizeof(T));
        std::memcpy(values + position[token] * row, value + token * value_stride, row * sizeof(T));
    }
}

// Lane k of the result is the sum of all lanes of x[k].
inline Lanes sums(Lanes *x) {
    for (int i = 0; i < 8; ++i)
        x[i] = __builtin_shufflevector(x[i], x[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
               __builtin_shufflevector(x[i], x[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    for (int i = 0; i < 4; ++i)
        x[i] = __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
               __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    for (int i = 0; i < 2; ++i)
        x[i] = __builtin_shufflevector(x[i], x[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               __builtin_shufflevector(x[i], x[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    return __builtin_shufflevector(x[0], x[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
           __builtin_shufflevector(x[0], x[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
}

// The positions [first, last) of a request in its pages.
struct Span {
    const int32_t *pages;
    long page_size, first, last;

    long row(long position) const { return pages[position / page_size] * page_size + position % page_size; }
    long page_end(long position) const { return std::min(last, (position / page_size + 1) * page_size); }
};

// scores[g][i] = query[g] . key[i]. The horizontal sums of sixteen positions are computed together.
template <typename T, int GROUP>
void score(float *scores, long pitch, const Lanes *query, const T *keys, const Span &span, long size, long row) {
    const long parts = (size + WIDE - 1) / WIDE, whole = size / WIDE;
    Lanes tile[GROUP][WIDE];
    long done = 0;
    const auto flush = [&] {
        for (int g = 0; g < GROUP; ++g) {
            const Lanes all = sums(tile[g]);
            std::memcpy(scores + g * pitch + (done - 1) / WIDE * WIDE, &all, sizeof all);
        }
    };
    for (long at = span.first; at < span.last;) {
        const T *key = keys + span.row(at) * row;
        for (const long end = span.page_end(at); at < end; ++at, key += row) {
            Lanes dot[GROUP] = {};
#pragma GCC unroll 4
            for (long part = 0; part < whole; ++part) {
                const Lanes k = load(key + part * WIDE);
                for (int g = 0; g < GROUP; ++g) dot[g] = multiply_add(query[g * parts + part], k, dot[g]);
            }
            if (whole < parts) {
                const Lanes k = load(key + whole * WIDE, size - whole * WIDE);
                for (int g = 0; g < GROUP; ++g) dot[g] = multiply_add(query[g * parts + whole], k, dot[g]);
            }
            for (int g = 0; g < GROUP; ++g) tile[g][done % WIDE] = dot[g];
            if (++done % WIDE == 0) flush();
        }
    }
    if (done % WIDE) flush();
}

// out[g] = sum of weights[g][i] * value[i] over sizes [from, from + PARTS * 16), times share[g].
template <typename T, int GROUP, int PARTS>
void mix(T *out, const float *weights, long pitch, const float *shares, const T *values, const Span &span, long size,
         long row, long from) {
    Lanes sum[GROUP][PARTS] = {};
    for (long at = span.first; at < span.last;) {
        const T *value = values + span.row(at) * row + from;
        for (const long end = span.page_end(at); at < end; ++at, value += row) {
            Lanes v[PARTS];
            for (int part = 0; part < PARTS; ++part)
                v[part] = PARTS > 1 ? load(value + part * WIDE) : load(value, size - from);
            for (int g = 0; g < GROUP; ++g)
                for (int part = 0; part < PARTS; ++part)
                    sum[g][part] = multiply_add(weights[g * pitch + at - span.first] - Lanes{}, v[part], sum[g][part]);
        }
    }
    for (int g = 0; g < GROUP; ++g)
        for (long i = 0; i < std::min(PARTS * WIDE, size - from); ++i)
            out[g * size + from + i] = from_float<T>(sum[g][i / WIDE][i % WIDE] * shares[g]);
}

// Softmax without the division, in place; returns one divided by the sum. Not inlined, so that every caller sums in the
// same order.
__attribute__((noinline)) float exponentials(float *scores, long count) {
    float most = scores[0], total = 0;
    for (long i = 0; i < count; ++i) most = scores[i] > most ? scores[i] : most;
    for (long i = 0; i < count; ++i) total += scores[i] = exponential(scores[i] - most);
    return 1.0f / total;
}

// GROUP query heads of one token that share a key head: scores, softmax, and the weighted sum of values.
template <typename T, int GROUP>
void attend_heads(T *out, const T *query, const T *keys, const T *values, const Span &span, long size, long row,
                  float scale, std::vector<Lanes> &scratch) {
    const long parts = (size + WIDE - 1) / WIDE, blocks = (span.last - span.first + WIDE - 1) / WIDE;
    const long count = span.last - span.first, pitch = blocks * WIDE;
    scratch.resize(GROUP * (parts + blocks));
    Lanes *scaled = scratch.data();
    float *scores = reinterpret_cast<float *>(scaled + GROUP * parts);
    for (int g = 0; g < GROUP; ++g)
        for (long part = 0; part < parts; ++part)
            scaled[g * parts + part] = load(query + g * size + part * WIDE, size - part * WIDE) * scale;
    score<T, GROUP>(scores, pitch, scaled, keys, span, size, row);
    float shares[GROUP];
    for (int g = 0; g < GROUP; ++g) shares[g] = exponentials(scores + g * pitch, count);
    long from = 0;
    for (; from + 4 * WIDE <= size; from += 4 * WIDE)
        mix<T, GROUP, 4>(out, scores, pitch, shares, values, span, size, row, from);
    for (; from < size; from += WIDE) mix<T, GROUP, 1>(out, scores, pitch, shares, values, span, size, row, from);
}

// One token of a request with few new tokens, and one key head.
template <typename T>
void attend_token(T *out, const T *query, const T *keys, const T *values, const Pages &pages, long token, long head,
                  const Heads &is) {
    static thread_local std::vector<Lanes> scratch;
    const long last = pages.seen[token], row = is.key_heads * is.size, group = is.heads / is.key_heads;
    const Span span{pages.table + pages.request[token] * pages.width, pages.page_size,
                    is.window ? std::max(0L, last - is.window) : 0, last};
    for (long done = 0; done < group;) {
        const long left = group - done, at = head * group + done;
        const long now = left >= 4 ? 4 : left;
        const auto run = now == 4   ? attend_heads<T, 4>
                         : now == 3 ? attend_heads<T, 3>
                         : now == 2 ? attend_heads<T, 2>
                                    : attend_heads<T, 1>;
        run(out + (token * is.heads + at) * is.size, query + token * is.query_stride + at * is.size,
            keys + head * is.size, values + head * is.size, span, is.size, row, is.scale, scratch);
        done += now;
    }
}

// ---------------------------------------------------------------- many new tokens of a request
constexpr int TOGETHER = 12;  // queries that share a pass; a multiple of ROWS
constexpr long LONG_QUERIES = 4 * TOGETHER;  // fewer are not worth the copies

// Keeps the order of sums: the compiler is allowed to change it (-fassociative-math).
inline Lanes sum_of(Lanes a, Lanes b) {
    Lanes sum = a + b;
#ifdef __AVX512F__
    asm("" : "+v"(sum));
#else
    asm("" : "+m"(sum));
#endif
    return sum;
}

// scores[g][i] = query[g] . key[i] of sixteen keys, for queries [parts * 16][TOGETHER] and keys [parts * 16][16]. The
// products are summed as in `score`: by lane of a key, then the halves of the lanes, and so on.
inline void score_block(float *scores, long pitch, const float *queries, const float *keys, long parts) {
    Lanes eighth[2][TOGETHER], quarter[2][TOGETHER], half[2][TOGETHER];
    const auto lane = [&](long first, Lanes *sum) {
        Lanes low[TOGETHER] = {}, high[TOGETHER] = {};
        for (long at = first; at < parts * WIDE; at += WIDE) {
            const Lanes low_keys = load(keys + at * WIDE), high_keys = load(keys + (at + WIDE / 2) * WIDE);
            for (int g = 0; g < TOGETHER; ++g) {
                low[g] = multiply_add(queries[at * TOGETHER + g] - Lanes{}, low_keys, low[g]);
                high[g] = multiply_add(queries[(at + WIDE / 2) * TOGETHER + g] - Lanes{}, high_keys, high[g]);
            }
        }
        for (int g = 0; g < TOGETHER; ++g) sum[g] = sum_of(low[g], high[g]);
    };
    for (int odd = 0; odd < 2; ++odd) {
        for (int upper = 0; upper < 2; ++upper) {
            lane(odd + 2 * upper, eighth[0]);
            lane(odd + 2 * upper + 4, eighth[1]);
            for (int g = 0; g < TOGETHER; ++g) quarter[upper][g] = sum_of(eighth[0][g], eighth[1][g]);
        }
        for (int g = 0; g < TOGETHER; ++g) half[odd][g] = sum_of(quarter[0][g], quarter[1][g]);
    }
    for (int g = 0; g < TOGETHER; ++g) {
        const Lanes all = sum_of(half[0][g], half[1][g]);
        std::memcpy(scores + g * pitch, &all, sizeof all);
    }
}

// Copies of the keys and values of a head and a request, as floats padded with zeros.
struct HeadCopy {
    float *keys;    // [blocks][parts * 16][16]
    float *values;  // [size / COLUMNS][positions][COLUMNS]
    long positions, parts;

    template <typename T> void copy(const T *from_keys, const T *from_values, Span span, long block, long size, long row) {
        const long first = block * WIDE, last = std::min(positions, first + WIDE);
        float *to = keys + block * parts * WIDE * WIDE;
        std::memset(to, 0, parts * WIDE * WIDE * sizeof(float));
        for (long at = first; at < last; ++at) {
            const T *key = from_keys + span.row(at) * row, *value = from_values + span.row(at) * row;
            for (long i = 0; i < size; ++i) to[i * WIDE + at - first] = to_float(key[i]);
            for (long i = 0; i < size; i += COLUMNS)
                for (long half = 0; half < COLUMNS; half += WIDE) {
                    const Lanes some = load(value + i + half, size - i - half);
                    std::memcpy(values + i * positions + at * COLUMNS + half, &some, sizeof some);
                }
        }
    }
};

// Up to TOGETHER queries of one key head, from the one with this number on.
template <typename T>
void attend_copy(T *out, const T *query, const HeadCopy &copy, const Pages &pages, long first_token, long number,
                 long count, long head, const Heads &is) {
    static thread_local std::vector<Lanes> scratch;
    const long group = is.heads / is.key_heads, parts = copy.parts, width = parts * WIDE;
    const auto token_of = [=](long g) { return first_token + (number + g) / group; };
    const auto offset_of = [=](long g) { return (head * group + (number + g) % group) * is.size; };
    long end = 0;
    for (long g = 0; g < count; ++g) end = std::max<long>(end, pages.seen[token_of(g)]);
    const long blocks = (end + WIDE - 1) / WIDE, pitch = blocks * WIDE;
    scratch.resize(TOGETHER * (parts + blocks));
    float *queries = reinterpret_cast<float *>(scratch.data()), *scores = queries + TOGETHER * width;
    std::memset(queries, 0, TOGETHER * width * sizeof(float));
    for (long g = 0; g < count; ++g)
        for (long i = 0; i < is.size; ++i)
            queries[i * TOGETHER + g] = to_float(query[token_of(g) * is.query_stride + offset_of(g) + i]) * is.scale;
    for (long block = 0; block < blocks; ++block)
        score_block(scores + block * WIDE, pitch, queries, copy.keys + block * width * WIDE, parts);
    float shares[TOGETHER];
    for (long g = 0; g < count; ++g) {
        const long last = pages.seen[token_of(g)];
        shares[g] = exponentials(scores + g * pitch, last);
        for (long i = last; i < end; ++i) scores[g * pitch + i] = 0;
    }
    alignas(64) float sums[ROWS * COLUMNS];
    for (long first = 0; first < is.size; first += COLUMNS)
        for (long top = 0; top < count; top += ROWS) {
            const long rows = std::min<long>(ROWS, count - top);
            const auto multiply = tile_of<float, false>(rows, std::make_integer_sequence<int, ROWS>());
            multiply(sums, scores + top * pitch, pitch, copy.values + first * copy.positions, end, NO_BIAS, 0);
            for (long g = 0; g < rows; ++g)
                for (long i = 0; i < std::min(COLUMNS, is.size - first); ++i)
                    out[token_of(top + g) * is.heads * is.size + offset_of(top + g) + first + i] =
                        from_float<T>(sums[g * COLUMNS + i] * shares[top + g]);
        }
}

// Tokens [first, after) of one request, which attend to all positions that they see.
template <typename T>
void attend_together(T *out, const T *query, const T *keys, const T *values, const Pages &pages, long first, long after,
                     const Heads &is) {
    static thread_local std::vector<Lanes> memory;
    const long parts = (is.size + WIDE - 1) / WIDE, tiles = (is.size + COLUMNS - 1) / COLUMNS;
    const long row = is.key_heads * is.size, count = (after - first) * (is.heads / is.key_heads);
    long positions = 0;
    for (long token = first; token < after; ++token) positions = std::max<long>(positions, pages.seen[token]);
    const long blocks = (positions + WIDE - 1) / WIDE;
    memory.resize(blocks * parts * WIDE + tiles * positions * 2);
    float *cells = reinterpret_cast<float *>(memory.data());
    HeadCopy copy{cells, cells + blocks * parts * WIDE * WIDE, positions, parts};
    const Span span{pages.table + pages.request[first] * pages.width, pages.page_size, 0, positions};
    for (long head = 0; head < is.key_heads; ++head) {
        const T *from_keys = keys + head * is.size, *from_values = values + head * is.size;
        each(blocks, positions * is.size > SMALL,
             [&](long block) { copy.copy(from_keys, from_values, span, block, is.size, row); });
        each((count + TOGETHER - 1) / TOGETHER, true, [&](long number) {
            const long at = number * TOGETHER;
            attend_copy(out, query, copy, pages, first, at, std::min<long>(TOGETHER, count - at), head, is);
        });
    }
}

// Paged attention of all tokens. query is [tokens, heads, size], rows of query_stride.
template <typename T>
void attend(T *out, const T *query, const T *keys, const T *values, const Pages &pages, const Heads &is) {
    static thread_local std::vector<long> memory;
    std::vector<long> &few = memory;  // tokens of requests with few new tokens, and those beyond a sliding window
    few.clear();
    const auto is_whole = [&](long token) { return !is.window || pages.seen[token] <= is.window; };
    for (long first = 0, after; first < pages.tokens; first = after) {
        after = first + 1;
        while (after < pages.tokens && pages.request[after] == pages.request[first] && is_whole(first) == is_whole(after))
            ++after;
        if (is_whole(first) && (after - first) * (is.heads / is.key_heads) >= LONG_QUERIES)
            attend_together(out, query, keys, values, pages, first, after, is);
        else
            for (long token = first; token < after; ++token) few.push_back(token);
    }
    const long *tokens = few.data();
    each(few.size() * is.key_heads, true, [&](long number) {
        attend_token(out, query, keys, values, pages, tokens[number / is.key_heads], number % is.key_heads, is);
    });
}

// Rotary embedding, KV cache write and paged attention for the output of a fused QKV projection,
// [tokens, heads + 2 key_heads, size].
template <typename T>
void attend_joined(T *out, const T *joined, const T *cosines, const T *sines, T *keys, T *values, const Pages &pages,
                   long heads, long key_heads, long size, float scale, long window) {
    const long stride = (heads + 2 * key_heads) * size, row = key_heads * size, tokens = pages.tokens;
    static thread_local std::vector<T> query, key;
    query.resize(tokens * heads * size);
    key.resize(tokens * row);
    rotate(query.data(), joined, cosines, sines, tokens, heads, size, stride);
    rotate(key.data(), joined + heads * size, cosines, sines, tokens, key_heads, size, stride);
    write(keys, values, key.data(), joined + (heads + key_heads) * size, pages.places, tokens, row, row, stride);
    attend(out, query.data(), keys, values, pages, {heads, key_heads, size, heads * size, scale, window});
}

