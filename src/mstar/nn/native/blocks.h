// All layers of a network that reads many tokens at once, a few rows at a time, so that what layers tell each other
// stays in a core's cache: a part of kernels.cpp, whose functions it strings together.

template <typename T> struct Block {  // norms as they are, matrices in tiles
    const T *norm1, *norm1_bias, *joined, *joined_bias, *output, *output_bias;
    const T *norm2, *norm2_bias, *widen, *widen_bias, *narrow, *narrow_bias;
};

// How channels of queries and keys are turned: what is kept of each, and added of its neighbours; [tokens][2 width].
template <typename T> struct Turns {
    const T *own, *right, *left;
};

// Keys and values that stay: layers, both of them, rows and heads are so far apart, then tokens follow each other.
template <typename T> struct Kept {
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

template <typename T> void turn(T *read, const Turns<T> &by, long rows, long tokens, long width) {
    const long count = 2 * width;
    static thread_local std::vector<T> memory;
    memory.resize(count + 2);  // one before the first, which nothing is added of, and one behind the last
    const T *__restrict before = memory.data() + 1;
    for (long row = 0; row < rows * tokens; ++row) {
        T *__restrict turned = read + row * 3 * width;
        const long at = row % tokens * count;
        const T *__restrict own = by.own + at, *__restrict right = by.right + at, *__restrict left = by.left + at;
        std::memcpy(memory.data() + 1, turned, (count + 1) * sizeof(T));
        for (long i = 0; i < count; ++i)
            turned[i] = from_float<T>(to_float(before[i]) * to_float(own[i]) + to_float(before[i + 1]) * to_float(right[i]) +
                                      to_float(before[i - 1]) * to_float(left[i]));
    }
}

// Of a layer and one of its halves: so many tokens of each row from the first on.
template <typename T> Told<T> told_of(const Kept<T> &kept, long layer, long half, long first, long tokens, long size) {
    return {kept.cells + layer * kept.layer + half * kept.half + first * kept.row, kept.row, kept.head, size, tokens};
}

// Keeps the keys and values of some rows, [tokens][3 width] each, behind those that were kept before.
template <typename T> void keep(const Kept<T> &kept, const T *read, long layer, long first, long rows, const Stage &is) {
    const long size = is.width / is.heads;
    for (long row = 0; row < rows; ++row)
        for (long token = 0; token < is.tokens; ++token, read += 3 * is.width) {
            T *to = kept.cells + layer * kept.layer + (first + row) * kept.row + (kept.tokens - is.tokens + token) * size;
            for (long head = 0; head < is.heads; ++head, to += kept.head) {
                std::memcpy(to, read + is.width + head * size, size * sizeof(T));
                std::memcpy(to + kept.half, read + 2 * is.width + head * size, size * sizeof(T));
            }
        }
}

// What some rows see: of themselves, or, if it is kept, of all that was kept.
template <typename T>
void attend_rows(T *seen, const T *read, const Kept<T> &shared, const Kept<T> &own, long layer, long first, long rows,
                 const Stage &is) {
    const long size = is.width / is.heads, wide = 3 * is.width, all = is.tokens * wide;
    Seen<T> told{};
    if (own.cells) {
        keep(own, read, layer, first, rows, is);
        told.keys = told_of(own, layer, 0, first, own.tokens, size);
        told.values = told_of(own, layer, 1, first, own.tokens, size);
        told.shared_keys = told_of(shared, layer, 0, 0, shared.tokens, size);
        told.shared_values = told_of(shared, layer, 1, 0, shared.tokens, size);
        told.shared_keys.row = told.shared_values.row = 0;  // they have one row, for all
    } else {
        told.keys = {read + is.width, all, size, wide, is.tokens};
        told.values = {read + 2 * is.width, all, size, wide, is.tokens};
    }
    for (long row = 0; row < rows; ++row)
        for (long head = 0; head < is.heads; ++head)
            attend_head(seen + row * is.tokens * is.width + head * size, is.width, read + row * all + head * size, wide,
                        is.tokens, size, told, row, head);
}

constexpr long AT_ONCE = 1 << 17;  // so many numbers of a layer's widest product

// x, [rows][tokens][width], through all layers, in its place.
template <typename T>
void run_blocks(T *x, const Block<T> *blocks, long count, const Turns<T> &by, const Kept<T> &shared, const Kept<T> &kept,
                const Stage &is) {
    const long at_once = std::max(1L, AT_ONCE / (is.tokens * is.hidden)), width = is.width;
    each((is.rows + at_once - 1) / at_once, is.rows * is.tokens * width * is.hidden > SMALL * 64, [&](long piece) {
        static thread_local std::vector<T> normed, read, seen, wide;
        const long first = piece * at_once, rows = std::min(at_once, is.rows - first), all = rows * is.tokens;
        normed.resize(all * width);
        read.resize(all * 3 * width);
        seen.resize(all * width);
        wide.resize(all * is.hidden);
        T *own = x + first * is.tokens * width, *none = nullptr;
        for (long layer = 0; layer < count; ++layer) {
            const Block<T> &block = blocks[layer];
            layer_norm(normed.data(), own, block.norm1, block.norm1_bias, all, width, is.epsilon);
            linear<T>(read.data(), normed.data(), block.joined, block.joined_bias, none, all, width, 3 * width, false);
            turn(read.data(), by, rows, is.tokens, width);
            attend_rows(seen.data(), read.data(), shared, kept, layer, first, rows, is);
            linear<T>(own, seen.data(), block.output, block.output_bias, own, all, width, width, false);
            layer_norm(normed.data(), own, block.norm2, block.norm2_bias, all, width, is.epsilon);
            linear<T>(wide.data(), normed.data(), block.widen, block.widen_bias, none, all, width, is.hidden, true);
            linear<T>(own, wide.data(), block.narrow, block.narrow_bias, own, all, is.hidden, width, false);
        }
    });
}
