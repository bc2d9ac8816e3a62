// Matrix products in float arithmetic for float and bf16, included by kernels.cpp.
//
// Each result is one sum in a fixed order, whatever the rows, the blocks and the threads are, so that the result of a row
// does not depend on other rows. Libraries choose by the number of rows how they sum.

#ifdef __AVX512F__
constexpr int ROWS = 12;  // with two vectors of columns each, the sums fill the registers
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#else
constexpr int ROWS = 3;
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return a * b + c; }
#endif
constexpr long COLUMNS = 2 * WIDE;  // of a tile, which is [depth][COLUMNS]; in bf16 the halves are interleaved
constexpr float NO_BIAS[COLUMNS] = {};

inline void load_pair(Lanes *pair, const float *from) {
    pair[0] = load(from);
    pair[1] = load(from + WIDE);
}

inline void load_pair(Lanes *pair, const bf16 *from) {
    typedef uint32_t Whole __attribute__((vector_size(64)));
    Whole both;
    std::memcpy(&both, from, sizeof both);
    pair[0] = (Lanes)(both << 16);
    pair[1] = (Lanes)(both & 0xffff0000);
}

// sums = x tile + start for COUNT rows of x with this stride; if x is transposed, for columns. `start` is a bias, whose
// pitch is 0, or the sums of earlier blocks.
template <typename T, bool IS_TRANSPOSED, int COUNT>
void multiply_tile(float *sums, const float *x, long stride, const T *tile, long size, const float *start, long pitch) {
    Lanes own[COUNT][2];
    for (int row = 0; row < COUNT; ++row) load_pair(own[row], start + row * pitch);
    for (long k = 0; k < size; ++k) {
        Lanes pair[2];
        __builtin_prefetch(tile + (k + AHEAD) * COLUMNS);
        load_pair(pair, tile + k * COLUMNS);
        for (int row = 0; row < COUNT; ++row) {
            const Lanes value = (IS_TRANSPOSED ? x[k * stride + row] : x[row * stride + k]) - Lanes{};
            own[row][0] = multiply_add(value, pair[0], own[row][0]);
            own[row][1] = multiply_add(value, pair[1], own[row][1]);
        }
    }
    for (int row = 0; row < COUNT; ++row)
        for (int half = 0; half < 2; ++half) std::memcpy(sums + row * COLUMNS + half * WIDE, &own[row][half], sizeof(Lanes));
}

template <typename T> using MultiplyTile = void (*)(float *, const float *, long, const T *, long, const float *, long);

template <typename T, bool IS_TRANSPOSED, int... COUNT>
MultiplyTile<T> tile_of(long rows, std::integer_sequence<int, COUNT...>) {
    static constexpr MultiplyTile<T> all[] = {multiply_tile<T, IS_TRANSPOSED, COUNT + 1>...};
    return all[rows - 1];
}

inline const float *as_floats(const float *x, long, std::vector<float> &) { return x; }

inline const float *as_floats(const bf16 *x, long count, std::vector<float> &memory) {
    memory.resize(count);
    for (long i = 0; i < count; ++i) memory[i] = to_float(x[i]);
    return memory.data();
}

// x (1 + erf(x / sqrt 2)) / 2, to 1.5e-7 of x (Abramowitz and Stegun, 7.1.26).
inline float gelu(float x) {
    const float size = std::fabs(x), z = size * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z);
    float sum = 1.061405429f;
    for (const float next : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) sum = sum * t + next;
    return 0.5f * (x + size * (1.0f - sum * t * exponential(-z * z)));
}

// Epilogue of a row: gelu, or the residual add.
template <typename T> void finish(T *out, const float *sums, const T *more, long count, bool has_gelu) {
    if (has_gelu)
        for (long i = 0; i < count; ++i) out[i] = from_float<T>(gelu(sums[i]));
    else if (more)
        for (long i = 0; i < count; ++i) out[i] = from_float<T>(sums[i] + to_float(more[i]));
    else
        for (long i = 0; i < count; ++i) out[i] = from_float<T>(sums[i]);
}

// Result of a tile of columns, of which `width` exist, for some rows.
template <typename T>
void finish_rows(T *out, const float *sums, const T *more, long rows, long columns, long width, bool has_gelu) {
    for (long row = 0; row < rows; ++row) {
        const T *own_more = more ? more + row * columns : nullptr;
        if (width == COLUMNS)
            finish(out + row * columns, sums + row * COLUMNS, own_more, COLUMNS, has_gelu);
        else
            finish(out + row * columns, sums + row * COLUMNS, own_more, width, has_gelu);
    }
}

constexpr long BLOCK_DEPTH = 768;  // at most: its rows and a tile of the weight stay in the L2 cache of a core
constexpr long BLOCK_ROWS = 96;    // a multiple of ROWS
constexpr long BLOCK_PITCH = BLOCK_DEPTH + WIDE;
constexpr long ALIASED = 1024;  // rows at multiples of this distance share the lines of the L1 cache

// Rows of a block as floats at this pitch: where they are, or copied to `memory`.
inline const float *block_rows(const float *x, long size, long rows, long depth, float *memory, long *pitch) {
    *pitch = size;
    if (size % ALIASED) return x;
    *pitch = BLOCK_PITCH;
    for (long row = 0; row < rows; ++row) std::memcpy(memory + row * BLOCK_PITCH, x + row * size, depth * sizeof(float));
    return memory;
}

inline const float *block_rows(const bf16 *x, long size, long rows, long depth, float *memory, long *pitch) {
    *pitch = BLOCK_PITCH;
    for (long row = 0; row < rows; ++row)
        for (long k = 0; k < depth; ++k) memory[row * BLOCK_PITCH + k] = to_float(x[row * size + k]);
    return memory;
}

// Many rows: in blocks of rows and of the depth. A block continues the sums of the one before.
template <typename T>
void linear_blocks(T *out, const T *x, const T *tiles, const T *bias, const T *more, long rows, long size, long columns,
                   bool has_gelu) {
    static thread_local std::vector<float> rows_memory, sums_memory;
    const long count = (columns + COLUMNS - 1) / COLUMNS;
    rows_memory.resize(BLOCK_ROWS * BLOCK_PITCH);
    sums_memory.resize(BLOCK_ROWS * count * COLUMNS);
    float *all_sums = sums_memory.data();
    const long parts = (size + BLOCK_DEPTH - 1) / BLOCK_DEPTH, most = (size + parts - 1) / parts;
    for (long top = 0; top < rows; top += BLOCK_ROWS) {
        const long height = std::min(BLOCK_ROWS, rows - top);
        for (long start = 0; start < size; start += most) {
            const long depth = std::min(most, size - start);
            long pitch;
            const float *block = block_rows(x + top * size + start, size, height, depth, rows_memory.data(), &pitch);
            each(count, height * depth * columns > SMALL_PRODUCT, [=](long number) {
                const long first = number * COLUMNS, width = std::min(COLUMNS, columns - first);
                alignas(64) float own_bias[COLUMNS] = {};
                for (long i = 0; bias && i < width; ++i) own_bias[i] = to_float(bias[first + i]);
                for (long row = 0; row < height; row += ROWS) {
                    const long own = std::min<long>(ROWS, height - row), at = (top + row) * columns + first;
                    float *sums = all_sums + (number * BLOCK_ROWS + row) * COLUMNS;
                    const auto multiply = tile_of<T, false>(own, std::make_integer_sequence<int, ROWS>());
                    multiply(sums, block + row * pitch, pitch, tiles + first * size + start * COLUMNS, depth,
                             start ? sums : own_bias, start ? COLUMNS : 0);
                    if (start + depth == size)
                        finish_rows(out + at, sums, more ? more + at : nullptr, own, columns, width, has_gelu);
                }
            });
        }
    }
}

// x weight + bias, then gelu, or `more` added to it. The weight is packed in tiles, padded with zeros.
template <typename T>
void linear(T *out, const T *x, const T *tiles, const T *bias, const T *more, long rows, long size, long columns,
            bool has_gelu) {
    if (rows > 2 * ROWS) return linear_blocks(out, x, tiles, bias, more, rows, size, columns, has_gelu);
    static thread_local std::vector<float> memory;
    const float *wide = as_floats(x, rows * size, memory);
    each((columns + COLUMNS - 1) / COLUMNS, rows * size * columns > SMALL_PRODUCT, [=](long number) {
        const long first = number * COLUMNS, width = std::min(COLUMNS, columns - first);
        alignas(64) float sums[ROWS * COLUMNS], own_bias[COLUMNS] = {};
        for (long i = 0; bias && i < width; ++i) own_bias[i] = to_float(bias[first + i]);
        for (long top = 0; top < rows; top += ROWS) {
            const long height = std::min<long>(ROWS, rows - top), at = top * columns + first;
            const auto multiply = tile_of<T, false>(height, std::make_integer_sequence<int, ROWS>());
            multiply(sums, wide + top * size, size, tiles + first * size, size, own_bias, 0);
            finish_rows(out + at, sums, more ? more + at : nullptr, height, columns, width, has_gelu);
        }
    });
}
