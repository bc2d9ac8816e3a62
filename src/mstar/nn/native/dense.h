// Attention over contiguous keys and values, without a mask, included by kernels.cpp.
//
// For many short rows, where the attention of a library is mostly overhead. A vector has one element per query, so that
// no horizontal sums are needed.

// Strided keys or values: strides of rows, heads and tokens. Those shared by all rows have one row.
template <typename T> struct Strided {
    const T *first;
    long row, head, token, count;
};

// Keys and values shared by all rows, and those of each row.
template <typename T> struct KeysValues {
    Strided<T> shared_keys, shared_values, keys, values;
};

struct HeadMemory {
    std::vector<float> keys;     // [seen][size, up to whole lanes]
    std::vector<float> values;   // [size / COLUMNS][seen][COLUMNS]
    std::vector<float> queries;  // [size][COLUMNS]
    std::vector<float> scores;   // [seen][COLUMNS]
};

// Copies `count` values of each token as floats, padded with zeros to `width`, a multiple of the vector size.
template <typename T> void copy_tokens(float *to, long width, const T *from, const Strided<T> &tokens_in, long count) {
    for (long token = 0; token < tokens_in.count; ++token, from += tokens_in.token, to += width)
        for (long i = 0; i < width; i += WIDE) {
            const Lanes some = load(from + i, count - i);
            std::memcpy(to + i, &some, sizeof some);
        }
}

// Softmax without the division: exponentials of the scores, [seen][COLUMNS], less the maximum of each query, and their sums.
inline void exponentiate(float *scores, long seen, float *totals) {
    Lanes most[2], own[2];
    load_pair(most, scores);
    for (long key = 1; key < seen; ++key) {
        load_pair(own, scores + key * COLUMNS);
        for (int half = 0; half < 2; ++half) most[half] = own[half] > most[half] ? own[half] : most[half];
    }
    alignas(64) float less[COLUMNS];
    std::memcpy(less, most, sizeof less);
    std::memset(totals, 0, sizeof less);
    for (long key = 0; key < seen; ++key)
        for (long i = 0; i < COLUMNS; ++i) {
            float &score = scores[key * COLUMNS + i];
            score = exponential(score - less[i]);
            totals[i] += score;
        }
}

// Attention of up to COLUMNS queries of one head of one row; queries and outputs are strided.
template <typename T>
void attend_block(T *out, long out_stride, const T *query, long stride, long count, long size, long seen,
                  HeadMemory &memory) {
    const long pitch = (size + WIDE - 1) / WIDE * WIDE;
    const float scale = 1.0f / std::sqrt(static_cast<float>(size));
    float *queries = memory.queries.data(), *scores = memory.scores.data();
    for (long row = 0; row < count; ++row)  // columns without a query are not initialized: their scores are not used
        for (long i = 0; i < size; ++i) queries[i * COLUMNS + row] = to_float(query[row * stride + i]) * scale;
    for (long first = 0; first < seen; first += ROWS) {
        const long height = std::min<long>(ROWS, seen - first);
        const auto multiply = tile_of<float, false>(height, std::make_integer_sequence<int, ROWS>());
        multiply(scores + first * COLUMNS, memory.keys.data() + first * pitch, pitch, queries, size, NO_BIAS, 0);
    }
    alignas(64) float totals[COLUMNS], sums[ROWS * COLUMNS];
    exponentiate(scores, seen, totals);
    for (long top = 0; top < count; top += ROWS) {
        const long height = std::min<long>(ROWS, count - top);
        const auto multiply = tile_of<float, true>(height, std::make_integer_sequence<int, ROWS>());
        for (long first = 0; first < size; first += COLUMNS) {
            multiply(sums, scores + top, COLUMNS, memory.values.data() + first * seen, seen, NO_BIAS, 0);
            for (long row = 0; row < height; ++row) {
                const float share = 1.0f / totals[top + row];
                T *to = out + (top + row) * out_stride + first;
                for (long i = 0; i < std::min(COLUMNS, size - first); ++i)
                    to[i] = from_float<T>(sums[row * COLUMNS + i] * share);
            }
        }
    }
}

// Attention of one head of one row; queries and outputs are strided.
template <typename T>
void attend_head(T *out, long out_stride, const T *query, long stride, long tokens, long size, const KeysValues<T> &is,
                 long row, long head) {
    static thread_local HeadMemory memory;
    const long seen = is.shared_keys.count + is.keys.count, pitch = (size + WIDE - 1) / WIDE * WIDE;
    memory.keys.resize(seen * pitch);
    memory.values.resize((size + COLUMNS - 1) / COLUMNS * seen * COLUMNS);
    memory.queries.resize(size * COLUMNS);
    memory.scores.resize(seen * COLUMNS);
    long before = 0;
    for (const auto &[keys, values] : {std::pair{is.shared_keys, is.shared_values}, std::pair{is.keys, is.values}}) {
        if (!keys.count) continue;
        copy_tokens(memory.keys.data() + before * pitch, pitch, keys.first + row * keys.row + head * keys.head, keys, size);
        for (long first = 0; first < size; first += COLUMNS)
            copy_tokens(memory.values.data() + first * seen + before * COLUMNS, COLUMNS,
                        values.first + row * values.row + head * values.head + first, values, size - first);
        before += keys.count;
    }
    for (long top = 0; top < tokens; top += COLUMNS)
        attend_block(out + top * out_stride, out_stride, query + top * stride, stride, std::min(COLUMNS, tokens - top),
                     size, seen, memory);
}
