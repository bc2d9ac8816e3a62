// All layers of a small decoder in one call, included by kernels.cpp.
//
// For networks where the overhead of one call per layer is larger than its work. The KV cache is contiguous:
// [layers][2][rows][positions][key heads][size].

// `query` and `key` are null in a network without these norms.
template <typename T> struct Layer {
    const T *before, *joined, *query, *key, *output, *between, *widen, *narrow;  // norms, and matrices as tiles
};

struct Sizes {
    long rows, tokens, width, hidden, heads, key_heads, size, positions;
    float epsilon;
};

template <typename T> struct Scratch {
    std::vector<T> normed, joined, query, seen, wide, gated, more;
    std::vector<Lanes> scores;
};

// Norms, rotary embedding, KV cache write and attention of one row, [tokens][heads + 2 key heads][size].
template <typename T>
void attend_row(T *seen, T *joined, T *keys, T *values, const Layer<T> &layer, const T *cosines, const T *sines,
                const Sizes &is, long start, Scratch<T> &scratch) {
    const long heads = is.heads, key_heads = is.key_heads, size = is.size, row = key_heads * size;
    const long stride = (heads + 2 * key_heads) * size, group = heads / key_heads;
    for (long token = 0; token < is.tokens; ++token) {
        T *own = joined + token * stride, *key = own + heads * size, *none = nullptr;
        if (layer.query) rms_norm<T>(own, none, own, none, layer.query, heads, size, is.epsilon);
        if (layer.key) rms_norm<T>(key, none, key, none, layer.key, key_heads, size, is.epsilon);
        const long at = start + token;
        rotate(scratch.query.data(), own, cosines + at * size, sines + at * size, 1, heads, size, stride);
        rotate(keys + at * row, key, cosines + at * size, sines + at * size, 1, key_heads, size, stride);
        std::memcpy(values + at * row, key + row, row * sizeof(T));
        const int32_t page = 0;
        const Span span{&page, is.positions, 0, at + 1};
        const float scale = 1.0f / std::sqrt(static_cast<float>(size));
        for (long head = 0; head < heads; ++head)
            attend_heads<T, 1>(seen + (token * heads + head) * size, scratch.query.data() + head * size,
                               keys + head / group * size, values + head / group * size, span, size, row, scale,
                               scratch.scores);
    }
}

template <typename T> void add(T *to, const T *more, long count) {
    for (long i = 0; i < count; ++i) to[i] = from_float<T>(to_float(to[i]) + to_float(more[i]));
}

// Runs all layers in place on hidden, [rows][tokens][width]. The first token has the position `start`.
template <typename T>
void run_layers(T *hidden, const Layer<T> *layers, long count, T *cache, const T *cosines, const T *sines,
                const Sizes &is, long start) {
    static thread_local Scratch<T> scratch;
    const long all = is.rows * is.tokens, own = is.heads * is.size, joined = own + 2 * is.key_heads * is.size;
    const long half = is.rows * is.positions * is.key_heads * is.size;
    T *none = nullptr;
    scratch.normed.resize(all * is.width);
    scratch.joined.resize(all * joined);
    scratch.query.resize(own);
    scratch.seen.resize(all * own);
    scratch.wide.resize(all * 2 * is.hidden);
    scratch.gated.resize(all * is.hidden);
    scratch.more.resize(all * is.width);
    for (long number = 0; number < count; ++number, cache += 2 * half) {
        const Layer<T> &layer = layers[number];
        T *normed = scratch.normed.data(), *more = scratch.more.data();
        rms_norm<T>(normed, none, hidden, none, layer.before, all, is.width, is.epsilon);
        linear<T>(scratch.joined.data(), normed, layer.joined, none, none, all, is.width, joined, false);
        for (long row = 0; row < is.rows; ++row) {
            T *keys = cache + row * (half / is.rows), *values = keys + half;
            attend_row(scratch.seen.data() + row * is.tokens * own, scratch.joined.data() + row * is.tokens * joined,
                       keys, values, layer, cosines, sines, is, start, scratch);
        }
        linear<T>(more, scratch.seen.data(), layer.output, none, none, all, own, is.width, false);
        rms_norm<T>(normed, hidden, hidden, more, layer.between, all, is.width, is.epsilon);
        linear<T>(scratch.wide.data(), normed, layer.widen, none, none, all, is.width, 2 * is.hidden, false);
        silu_mul(scratch.gated.data(), scratch.wide.data(), all, is.hidden);
        linear<T>(more, scratch.gated.data(), layer.narrow, none, none, all, is.hidden, is.width, false);
        add(hidden, more, all * is.width);
    }
}
