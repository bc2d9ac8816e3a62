// Matrix products in float, whatever numbers are stored as: a part of kernels.cpp, whose numbers it uses.
//
// For few rows, where a library's product is mostly overhead, and for bf16 on processors that cannot multiply it. Each
// result is one sum over the depth in its order, so that a row's results do not depend on its company.

#ifdef __AVX512F__
constexpr int ROWS = 12;  // with two lanes of columns each, as many sums as there are registers for
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#else
constexpr int ROWS = 3;
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return a * b + c; }
#endif
constexpr long COLUMNS = 2 * WIDE;  // of a tile, which is [depth][COLUMNS]; of bf16, lanes of both halves alternate

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

// sums = x tile for so many rows of x, which is [rows][size].
template <typename T, int COUNT> void multiply_tile(float *sums, const float *x, const T *tile, long size) {
    Lanes own[COUNT][2] = {};
#pragma GCC unroll 2
    for (long k = 0; k < size; ++k) {
        Lanes pair[2];
        load_pair(pair, tile + k * COLUMNS);
        for (int row = 0; row < COUNT; ++row) {
            const Lanes value = x[row * size + k] - Lanes{};
            own[row][0] = multiply_add(value, pair[0], own[row][0]);
            own[row][1] = multiply_add(value, pair[1], own[row][1]);
        }
    }
    std::memcpy(sums, own, sizeof own);
}

template <typename T> using MultiplyTile = void (*)(float *, const float *, const T *, long);

template <typename T, int... COUNT> MultiplyTile<T> tile_of(long rows, std::integer_sequence<int, COUNT...>) {
    static constexpr MultiplyTile<T> all[] = {multiply_tile<T, COUNT + 1>...};
    return all[rows - 1];
}

inline const float *as_floats(const float *x, long, std::vector<float> &) { return x; }

inline const float *as_floats(const bf16 *x, long count, std::vector<float> &memory) {
    memory.resize(count);
    for (long i = 0; i < count; ++i) memory[i] = to_float(x[i]);
    return memory.data();
}

// x weight + bias. The weight lies in tiles, with zeros up to the last one's end.
template <typename T>
void linear(T *out, const T *x, const T *tiles, const T *bias, long rows, long size, long columns) {
    static thread_local std::vector<float> memory;
    const float *wide = as_floats(x, rows * size, memory);
    each((columns + COLUMNS - 1) / COLUMNS, rows * size * columns > SMALL * 64, [=](long number) {
        const long first = number * COLUMNS;
        const T *tile = tiles + first * size;
        const long width = std::min(COLUMNS, columns - first);
        alignas(64) float sums[ROWS * COLUMNS];
        for (long top = 0; top < rows; top += ROWS) {
            const long height = std::min<long>(ROWS, rows - top);
            tile_of<T>(height, std::make_integer_sequence<int, ROWS>())(sums, wide + top * size, tile, size);
            for (long row = 0; row < height; ++row)
                for (long i = 0; i < width; ++i) {
                    const float sum = sums[row * COLUMNS + i];
                    out[(top + row) * columns + first + i] =
                        from_float<T>(bias ? sum + to_float(bias[first + i]) : sum);
                }
        }
    });
}
