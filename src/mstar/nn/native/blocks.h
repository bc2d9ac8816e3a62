// All blocks of a bidirectional transformer in one call, a few rows at a time, so that activations stay in the cache of
// a core. Included by kernels.cpp.

template <typename T> struct Block {  // norms, and matrices as tiles
    const T *norm1, *norm1_bias, *joined, *joined_bias, *output, *output_bias;
    const T *norm2, *norm2_bias, *widen, *widen_bias, *narrow, *narrow_bias;
};

// Rotary embedding of queries and keys: factors of a channel and of its two neighbors; [tokens][2 width].
template <typename T> struct Rotations {
    const T *own, *right, *left;
};

// KV cache: strides of layers, of keys and values, of rows and of heads; the tokens of a head are contiguous.
template <typename T> struct KVCache {
    T *cells;
    long layer, half, row, head, tokens;
};

struct Stage {
    long rows, tokens, width, hidden, heads;
    float epsilon;
};

// (x - mean) / deviation * weight + bias of each row.
template <typename T>
void layer_norm(T *out, const T *x, const T *weight, const T *bias, long rows, long size, float epsilon) {
    each(rows, rows * size > SMALL, [=](long row) {
        const T *from = x + row * size;
        float sum = 0, squares = 0;
        for (long i = 0; i < size; ++i) sum += to_float(from[i]);
        const float mean = sum / size;
        for (long i = 0; i < size; ++i) squares += (to_float(from[i]) - mean) * (to_float(from[i]) - mean);
        const float scale = 1.0f / std::sqrt(squares / size + epsilon);
        for (long i = 0; i < size; ++i)
            out[row * size + i] = from_float<T>((to_float(from[i]) - mean) * scale * to_float(weight[i]) + to_float(bias[i]));
    });
}

template <typename T> void rotate_channels(T *read, const Rotations<T> &by, long rows, long tokens, long width) {
    const long count = 2 * width;
    static thread_local std::vector<T> memory;
    memory.resize(count + 2);  // one element of padding on each side
    const T *__restrict before = memory.data() + 1;
    for (long row = 0; row < rows * tokens; ++row) {
        T *__restrict channels = read + row * 3 * width;
        const long at = row % tokens * count;
        const T *__restrict own = by.own + at, *__restrict right = by.right + at, *__restrict left = by.left + at;
        std::memcpy(memory.data() + 1, channels, (count + 1) * sizeof(T));
        for (long i = 0; i < count; ++i)
            channels[i] = from_float<T>(to_float(before[i]) * to_float(own[i]) + to_float(before[i + 1]) * to_float(right[i]) +
                                      to_float(before[i - 1]) * to_float(left[i]));
    }
}

// Keys (half 0) or values (half 1) of a layer, from row `first` on.
template <typename T> Strided<T> half_of(const KVCache<T> &cache, long layer, long half, long first, long tokens, long size) {
    return {cache.cells + layer * cache.layer + half * cache.half + first * cache.row, cache.row, cache.head, size, tokens};
}

// Appends the keys and values of some rows, [tokens][3 width] each, to the KV cache.
template <typename T> void append_kv(const KVCache<T> &cache, const T *read, long layer, long first, long rows, const Stage &is) {
    const long size = is.width / is.heads;
    for (long row = 0; row < rows; ++row)
        for (long token = 0; token < is.tokens; ++token, read += 3 * is.width) {
            T *to = cache.cells + layer * cache.layer + (first + row) * cache.row + (cache.tokens - is.tokens + token) * size;
            for (long head = 0; head < is.heads; ++head, to += cache.head) {
                std::memcpy(to, read + is.width + head * size, size * sizeof(T));
                std::memcpy(to + cache.half, read + 2 * is.width + head * size, size * sizeof(T));
            }
        }
}

// Attention of some rows: to themselves, or to the KV caches if there are any.
template <typename T>
void attend_rows(T *seen, const T *read, const KVCache<T> &shared, const KVCache<T> &own, long layer, long first, long rows,
                 const Stage &is) {
    const long size = is.width / is.heads, wide = 3 * is.width, all = is.tokens * wide;
    KeysValues<T> sources{};
    if (own.cells) {
        append_kv(own, read, layer, first, rows, is);
        sources.keys = half_of(own, layer, 0, first, own.tokens, size);
        sources.values = half_of(own, layer, 1, first, own.tokens, size);
        sources.shared_keys = half_of(shared, layer, 0, 0, shared.tokens, size);
        sources.shared_values = half_of(shared, layer, 1, 0, shared.tokens, size);
        sources.shared_keys.row = sources.shared_values.row = 0;  // one row for all
    } else {
        sources.keys = {read + is.width, all, size, wide, is.tokens};
        sources.values = {read + 2 * is.width, all, size, wide, is.tokens};
    }
    for (long row = 0; row < rows; ++row)
        for (long head = 0; head < is.heads; ++head)
            attend_head(seen + row * is.tokens * is.width + head * size, is.width, read + row * all + head * size, wide,
                        is.tokens, size, sources, row, head);
}

constexpr long CHUNK_ELEMENTS = 1 << 17;  // of the widest activation of a layer

// Runs all blocks in place on x, [rows][tokens][width].
template <typename T>
void run_blocks(T *x, const Block<T> *blocks, long count, const Rotations<T> &by, const KVCache<T> &shared, const KVCache<T> &cache,
                const Stage &is) {
    const long chunk_rows = std::max(1L, CHUNK_ELEMENTS / (is.tokens * is.hidden)), width = is.width;
    each((is.rows + chunk_rows - 1) / chunk_rows, is.rows * is.tokens * width * is.hidden > SMALL * 64, [&](long piece) {
        static thread_local std::vector<T> normed, read, seen, wide;
        const long first = piece * chunk_rows, rows = std::min(chunk_rows, is.rows - first), all = rows * is.tokens;
        normed.resize(all * width);
        read.resize(all * 3 * width);
        seen.resize(all * width);
        wide.resize(all * is.hidden);
        T *own = x + first * is.tokens * width, *none = nullptr;
        for (long layer = 0; layer < count; ++layer) {
            const Block<T> &block = blocks[layer];
            layer_norm(normed.data(), own, block.norm1, block.norm1_bias, all, width, is.epsilon);
            linear<T>(read.data(), normed.data(), block.joined, block.joined_bias, none, all, width, 3 * width, false);
            rotate_channels(read.data(), by, rows, is.tokens, width);
            attend_rows(seen.data(), read.data(), shared, cache, layer, first, rows, is);
            linear<T>(own, seen.data(), block.output, block.output_bias, own, all, width, width, false);
            layer_norm(normed.data(), own, block.norm2, block.norm2_bias, all, width, is.epsilon);
            linear<T>(wide.data(), normed.data(), block.widen, block.widen_bias, none, all, width, is.hidden, true);
            linear<T>(own, wide.data(), block.narrow, block.narrow_bias, own, all, is.hidden, width, false);
        }
    });
}
